"""Tables for a README, from rows: `python -m benchmarks.table FILES`."""

import argparse
import sys

from benchmarks import rows
from benchmarks.analysis.tables import markdown, of_machines
from benchmarks.rows.selection import at_most_threads


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description="Markdown tables from rows.")
    parser.add_argument("files", nargs="+", help="files of rows, of one machine and commit; not those of fewer threads")
    parser.add_argument("--machines", action="store_true", help="files of several machines: times in one table")
    parser.add_argument("--dtypes", nargs="+", help="of times, those of these types alone")
    parser.add_argument("--modes", nargs="+", help="of these passes alone")
    parser.add_argument("--dropouts", nargs="+", type=float, help="of these probabilities alone")
    options = parser.parse_args(arguments)
    try:
        found = [row for row in at_most_threads(rows.load(options.files)) if _wanted(row, options)]
        print(of_machines(found) if options.machines else markdown(found))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _wanted(row: rows.Row, options: argparse.Namespace) -> bool:
    return not isinstance(row, rows.TimeRow) or (
        (options.dtypes is None or row.dtype in options.dtypes)
        and (options.modes is None or row.mode in options.modes)
        and (options.dropouts is None or row.dropout in options.dropouts)
    )


if __name__ == "__main__":
    sys.exit(main())
