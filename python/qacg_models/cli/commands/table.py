"""`qacg table`: the figures of several trainings side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "a Markdown table of rows that qacg train --rows kept"
DESCRIPTION = (
    "One line per kind of run with the mean and standard deviation over its seeds, the majority row, the time, and a"
    " line that says on which machine and at which commit the rows were made."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.add_argument("rows", type=Path, nargs="+", metavar="ROWS", help="files of rows, or folders of them")
    parser.add_argument(
        "--split", choices=("dev", "test"), help="the figures to show; without it test, or dev where there is no test"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    from qacg_models.reporting.run_records import markdown, read_rows

    print(markdown(read_rows(arguments.rows), arguments.split))
    return 0
