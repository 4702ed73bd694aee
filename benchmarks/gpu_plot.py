"""Rates over length, from rows: `python -m benchmarks.gpu_plot FILES -o rates.svg`. Needs matplotlib.

One panel for each head size and pass, in TFLOP/s by the rows' convention; the matrix peak of the same run as a line.
"""

import argparse
import sys

from benchmarks import rows
from benchmarks.analysis.rate_plot import draw


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_plot", description="Rates over length from rows.")
    parser.add_argument("files", nargs="+", help="files of rows, of one machine and commit")
    parser.add_argument("-o", "--output", default="rates.svg", help="an .svg, .png or .pdf file")
    options = parser.parse_args(arguments)
    try:
        draw(rows.load(options.files), options.output)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
