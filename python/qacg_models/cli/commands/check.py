"""`qacg check`: checks labelled data before training, and finds doubtful labels."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from qacg_models.cli.flags import add_flags, check_range, selected_fields
from qacg_models.data.options import DataOptions

USES_MODELS = True
HELP = "check labelled data before training: balance, repeated rows, leakage, long texts, doubtful labels"
DESCRIPTION = (
    "Reads data as qacg train does. Prints the format, rows by aspect and label, repeated and "
    "contradictory rows, sentences in two splits, texts that are truncated, and words that the vocabulary lacks. "
    "Also prints doubtful labels: rows whose label contradicts a "
    "classifier that was trained on other rows."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.usage = "%(prog)s DATA [DATA ...] [option ...]"
    parser.add_argument("data", type=Path, nargs="+", metavar="DATA", help="folder or files, as for qacg train --data")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="PATH",
        help="checkpoint with which training will start, or `minilm` or `scratch`, as for qacg train",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=128,
        metavar="N",
        help="planned maximum length in tokens (default: %(default)s)",
    )
    parser.add_argument(
        "--doubts",
        type=int,
        default=20,
        metavar="N",
        help="maximum number of doubtful labels to print (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="CSV file to write, with all doubtful labels")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    add_flags(parser, DataOptions)


def run(arguments: argparse.Namespace) -> int:
    """Checks the data, prints the results, and writes the doubtful labels to --output; returns 0."""
    from qacg_models.checking.data_check import check_data
    from qacg_models.data import load_data
    from qacg_models.runs.options import TrainingOptions
    from qacg_models.utils.cells import counted
    from qacg_models.utils.outputs import check_not_input, check_writable

    check_range("doubts", arguments.doubts, 0, 1_000_000)
    if arguments.output is not None:
        check_writable("output", arguments.output)
        for source in arguments.data:
            check_not_input("output", arguments.output, source)
    training = TrainingOptions(from_checkpoint=arguments.start, max_length=arguments.max_length)
    options = DataOptions(**selected_fields(vars(arguments), DataOptions))
    dataset = load_data(arguments.data, options=options, optional=("dev", "test"))
    found = check_data(dataset, training)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        found.write_doubts(arguments.output)
    print(json.dumps(found.to_json(), indent=1) if arguments.json else found.text(arguments.doubts))
    if arguments.output is not None and not arguments.json:
        print(f"{counted(len(found.doubts), 'doubtful label')} in {arguments.output}")
    return 0
