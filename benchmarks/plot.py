"""Bars of speed-ups over eager, from rows: `python -m benchmarks.plot FILES -o speed.svg`.

Draws what the rows hold and measures nothing. Needs matplotlib.
"""

import argparse
import sys

from benchmarks import rows
from benchmarks.analysis.speedup_plot import draw


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description="A plot of speed-ups from rows.")
    parser.add_argument("files", nargs="+", help="files of rows, of one machine and commit")
    parser.add_argument("-o", "--output", default="speed.svg", help="an .svg, .png or .pdf file")
    options = parser.parse_args(arguments)
    try:
        draw(rows.load(options.files), options.output)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
