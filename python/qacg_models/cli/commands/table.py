"""`qacg table`: tables of results from the records of several trainings."""

import argparse
from pathlib import Path

HELP = "print a Markdown table of the metrics that several trainings stored"
DESCRIPTION = (
    "Prints a table for each data set. Runs that differ only in their seed are one line, with the mean and standard"
    " deviation of each metric and of the time. Two more lines have the TF-IDF and majority baselines. The last line"
    " states how the checkpoints were selected, the machine, and the versions and commits of the trainings."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    models = "folders that qacg train wrote, or folders of such folders, as with --seeds; only training.json is read"
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help=models)
    split = "split of the metrics (default: test, or dev if there is no test)"
    parser.add_argument("--split", choices=("dev", "test"), help=split)


def run(arguments: argparse.Namespace) -> int:
    from qacg_models.sentiment.report.tables import markdown, read_records

    print(markdown(read_records(arguments.models), arguments.split))
    return 0
