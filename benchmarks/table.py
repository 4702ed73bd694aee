"""Tables for a README, from rows: `python -m benchmarks.table FILES`."""

import argparse
import sys

from benchmarks import rows
from benchmarks.analysis.tables import markdown
from benchmarks.rows.selection import at_most_threads


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description="Markdown tables from rows.")
    parser.add_argument("files", nargs="+", help="files of rows, of one machine and commit; not those of fewer threads")
    try:
        print(markdown(at_most_threads(rows.load(parser.parse_args(arguments).files))))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
