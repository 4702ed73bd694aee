"""Peak memory of a forward and its backward: `python -m benchmarks.memory --shape 1,12,8192,64 --provider cpu`.

A fresh process, which prints one row. `measure/resident_memory.py` says why the number can be trusted.
"""

import sys

from benchmarks.measure.memory_process import main

if __name__ == "__main__":
    sys.exit(main())
