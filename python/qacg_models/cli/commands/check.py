"""`qacg check`: what a training would find wrong with labelled data, and doubtful labels."""

import argparse
from pathlib import Path

from qacg_models.cli.flags import (
    DATA_FLAGS,
    add_option_flags,
    add_set_flag,
    add_table_flags,
    given_data_options,
    selected_fields,
)
from qacg_models.sentiment.options import DataOptions, TrainingOptions

USES_MODELS = True
HELP = "check labelled data before training: balance, repeated rows, leakage, long texts, doubtful labels"
DESCRIPTION = (
    "Reads data as qacg train does. Prints the format, rows by aspect and label, repeated and contradictory rows,"
    " sentences in two splits, texts that are truncated, and words that the vocabulary lacks. Also prints doubtful"
    " labels: rows whose label contradicts a classifier that was trained on other rows."
)
PRINTED_DOUBTS = 20  # --output has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s DATA [DATA ...] [option ...]"
    parser.add_argument("data", type=Path, nargs="+", metavar="DATA", help="folder or files, as for qacg train --data")
    add_option_flags(parser, TrainingOptions, ["from_checkpoint", "max_length"])
    parser.add_argument("--output", type=Path, metavar="FILE", help="CSV file to write, with all doubtful labels")
    add_option_flags(parser, DataOptions, DATA_FLAGS)
    add_set_flag(parser, "an option for reading data that has no flag, such as dev_fraction=0.2")
    add_table_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    from qacg_models.sentiment.checks import check_data
    from qacg_models.sentiment.dataset import load_data
    from qacg_models.utils.files import check_not_input, check_writable
    from qacg_models.utils.text import counted

    if arguments.output is not None:
        check_writable("output", arguments.output)
        for source in arguments.data:
            check_not_input("output", arguments.output, source)
    training = TrainingOptions(**selected_fields(vars(arguments), TrainingOptions))
    options = DataOptions(**given_data_options(arguments))
    found = check_data(load_data(arguments.data, options=options, optional=("dev", "test")), training)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        found.write_doubts(arguments.output)
    print(found.text(PRINTED_DOUBTS))
    if arguments.output is not None:
        print(f"{counted(len(found.doubts), 'doubtful label')} in {arguments.output}")
    return 0
