"""Bars of speed-ups over eager, from rows: `python -m benchmarks.plot FILES -o speed.svg`.

Draws what the rows hold and measures nothing. Needs matplotlib.
"""

import argparse
import sys

from benchmarks import rows
from benchmarks.analysis.speedup_plot import DARK, LIGHT, draw


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description="A plot of speed-ups from rows.")
    parser.add_argument("files", nargs="+", help="files of rows, of one machine and commit")
    parser.add_argument("-o", "--output", default="speed.svg", help="an .svg, .png or .pdf file")
    parser.add_argument("--dtypes", nargs="+", help="only these types")
    parser.add_argument("--modes", nargs="+", help="only these passes")
    parser.add_argument("--dark", action="store_true", help="for a dark page")
    options = parser.parse_args(arguments)
    try:
        found = [
            row
            for row in rows.load(options.files)
            if isinstance(row, rows.TimeRow)
            and (options.dtypes is None or row.dtype in options.dtypes)
            and (options.modes is None or row.mode in options.modes)
        ]
        draw(found, options.output, DARK if options.dark else LIGHT)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
