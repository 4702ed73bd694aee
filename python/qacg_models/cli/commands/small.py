"""`qacg demo`, `qacg check`, `qacg table` and `qacg info`: commands without a model as input."""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

from qacg_models.cli.flags import (
    DATA_FLAGS,
    add_option_flags,
    add_set_flag,
    add_table_flags,
    given_data_options,
    selected_fields,
)
from qacg_models.sentiment.options import DataOptions, TrainingOptions

PRINTED_DOUBTS = 20  # --output has all


def _add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    for name, folder, text in (("report", "report", "the report"), ("output", "runs/demo", "the model")):
        default = f"folder of {text} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=Path, default=Path(folder), metavar="DIR", help=default)


def _demo(arguments: argparse.Namespace) -> int:
    """Runs the demonstration; returns 0, or 1 if a check fails."""
    from qacg_models.sentiment.demo import run, training_options
    from qacg_models.utils.files import check_writable

    for name, path in (("report", arguments.report), ("output", arguments.output)):
        check_writable(name, path)
    return run(arguments.report, arguments.output, training_options())


def _add_check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s DATA [DATA ...] [option ...]"
    parser.add_argument("data", type=Path, nargs="+", metavar="DATA", help="folder or files, as for qacg train --data")
    add_option_flags(parser, TrainingOptions, ["from_checkpoint", "max_length"])
    parser.add_argument("--output", type=Path, metavar="FILE", help="CSV file to write, with all doubtful labels")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    add_option_flags(parser, DataOptions, DATA_FLAGS)
    add_set_flag(parser, "an option for reading data that has no flag, such as dev_fraction=0.2")
    add_table_flags(parser)


def _check(arguments: argparse.Namespace) -> int:
    """Checks the data, prints the results, and writes the doubtful labels to --output; returns 0."""
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
    print(json.dumps(found.to_json(), indent=1) if arguments.json else found.text(PRINTED_DOUBTS))
    if arguments.output is not None and not arguments.json:
        print(f"{counted(len(found.doubts), 'doubtful label')} in {arguments.output}")
    return 0


def _add_table_arguments(parser: argparse.ArgumentParser) -> None:
    rows = "files that qacg train --rows wrote, or their folders"
    parser.add_argument("rows", type=Path, nargs="+", metavar="ROWS", help=rows)
    split = "split of the metrics (default: test, or dev if there is no test)"
    parser.add_argument("--split", choices=("dev", "test"), help=split)


def _table(arguments: argparse.Namespace) -> int:
    """Prints the Markdown tables; returns 0."""
    from qacg_models.sentiment.report.tables import markdown, read_rows

    print(markdown(read_rows(arguments.rows), arguments.split))
    return 0


def _add_info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _info(arguments: argparse.Namespace) -> int:
    """Prints versions, hardware and backends, as text or JSON; returns 0."""
    from qacg_kernels import info

    found = info.collect()
    print(json.dumps(found, indent=1) if arguments.json else info.render(found))
    return 0


demo = SimpleNamespace(
    USES_MODELS=True,
    HELP="check this machine, train on bundled reviews, write a report; in a terminal, label sentences that you type",
    add_arguments=_add_demo_arguments,
    run=_demo,
)
check = SimpleNamespace(
    USES_MODELS=True,
    HELP="check labelled data before training: balance, repeated rows, leakage, long texts, doubtful labels",
    DESCRIPTION="Reads data as qacg train does. Prints the format, rows by aspect and label, repeated and contradictory"
    " rows, sentences in two splits, texts that are truncated, and words that the vocabulary lacks. Also prints"
    " doubtful labels: rows whose label contradicts a classifier that was trained on other rows.",
    add_arguments=_add_check_arguments,
    run=_check,
)
table = SimpleNamespace(
    HELP="print a Markdown table of the records that qacg train --rows wrote",
    DESCRIPTION="Prints a table for each data set. Runs that differ only in their seed are one line, with the mean and"
    " standard deviation of each metric and of the time. Two more lines have the TF-IDF and majority baselines. The"
    " last line states how the checkpoints were selected, the machine, and the versions and commits of the trainings.",
    add_arguments=_add_table_arguments,
    run=_table,
)
info = SimpleNamespace(
    HELP="print versions, hardware and available backends", add_arguments=_add_info_arguments, run=_info
)
