"""`qacg demo`: checks this machine, trains on the bundled reviews, and writes a report."""

import argparse
from pathlib import Path

USES_MODELS = True
HELP = "check this machine, train on bundled reviews, write a report; in a terminal, label sentences that you type"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, folder, text in (("report", "report", "the report"), ("output", "runs/demo", "the model")):
        default = f"folder of {text} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=Path, default=Path(folder), metavar="DIR", help=default)


def run(arguments: argparse.Namespace) -> int:
    from qacg_models.sentiment.demo import run, training_options
    from qacg_models.utils.files import check_writable

    for name, path in (("report", arguments.report), ("output", arguments.output)):
        check_writable(name, path)
    return run(arguments.report, arguments.output, training_options())
