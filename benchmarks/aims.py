"""What the CPU path and the layers around it are to reach: `python -m benchmarks.aims FILES` judges rows of them.

`python -m benchmarks.suite --parts aims` measures those of the operators, `python -m benchmarks.end_to_end` those of
whole steps. They come beside the marks of `marks.py`, are meant for two threads with AVX-512, and count 6 L S D a head
forward and 16 L S D backward.
"""

import argparse
import sys

from benchmarks import rows
from benchmarks.providers.registry import BACKENDS
from benchmarks.rows.selection import at_most_threads, disturbance_note, require_one_origin
from benchmarks.targets import step_marks
from benchmarks.targets.cpu_aims import judge_operators, notes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aims", description="Judges rows by the aims.")
    parser.add_argument("files", nargs="+", help="files of rows, of one machine and commit; not those of fewer threads")
    parser.add_argument("--backend", choices=(*BACKENDS, "reference"), default="cpu")
    options = parser.parse_args(arguments)
    try:
        measured = at_most_threads(rows.load(options.files))
        require_one_origin(measured)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    verdicts = [*judge_operators(measured, options.backend), *step_marks.judge(step_marks.AIMS, measured)]
    times = [row for row in measured if isinstance(row, (rows.TimeRow, rows.StepRow))]
    print("\n".join(map(str, [*verdicts, *notes(measured), *disturbance_note(times)])))
    print(f"{sum(verdict.met for verdict in verdicts)} of {len(verdicts)} aims met")
    return 0


if __name__ == "__main__":
    sys.exit(main())
