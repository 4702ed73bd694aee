"""`qacg demo`: check this machine, train on sample reviews, write a report; in a terminal, label typed sentences."""

import argparse
from pathlib import Path

USES_MODELS = True
HELP = "check this machine, train on bundled reviews, write a report; in a terminal, label sentences that you type"
DESCRIPTION = (
    "Checks this machine, trains on bundled reviews, and writes a report. In a terminal, the model then labels "
    "sentences that you type."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.add_argument(
        "--report", type=Path, default=Path("report"), metavar="DIR", help="folder of the report (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="folder of the model (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the demonstration; returns 0, or 1 if a check fails."""
    from qacg_models.sentiment.demo import run, training_options
    from qacg_models.utils.files import check_writable

    for name, path in (("report", arguments.report), ("output", arguments.output)):
        check_writable(name, path)
    return run(arguments.report, arguments.output, training_options())
