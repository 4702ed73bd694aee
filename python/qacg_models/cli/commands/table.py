"""`qacg table`: tables of results from the records of several trainings."""

import argparse
from pathlib import Path

HELP = "print a Markdown table of the records that qacg train --rows wrote"
DESCRIPTION = (
    "Prints a table for each data set. Runs that differ only in their seed are one line, with the mean and standard"
    " deviation of each metric and of the time. Two more lines have the TF-IDF and majority baselines. The last line"
    " states how the checkpoints were selected, the machine, and the versions and commits of the trainings."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = "files that qacg train --rows wrote, or their folders"
    parser.add_argument("rows", type=Path, nargs="+", metavar="ROWS", help=rows)
    split = "split of the metrics (default: test, or dev if there is no test)"
    parser.add_argument("--split", choices=("dev", "test"), help=split)


def run(arguments: argparse.Namespace) -> int:
    from qacg_models.sentiment.report.tables import markdown, read_rows

    print(markdown(read_rows(arguments.rows), arguments.split))
    return 0
