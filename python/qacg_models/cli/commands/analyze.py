"""`qacg analyze`: a page with the attention maps of a model."""

import argparse
from pathlib import Path

from qacg_models.cli.flags import add_set_flag, add_table_flags, given_data_options
from qacg_models.errors import InputError

USES_MODELS = True
HELP = "write a page with attention maps and token scores of sentences; of a QACG-BERT, also lambda, its gate"
DESCRIPTION = (
    "Writes one HTML file that needs no network. The numbers of its tables are beside it, as JSON."
    " Aspects of the same sentence are shown side by side."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s MODEL (--text TEXT ... | --data FILE --lines N ...) [option ...]"
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder that qacg train wrote")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", nargs="+", metavar="TEXT", help="sentences")
    source.add_argument("--data", type=Path, metavar="FILE", help="file of labelled data; --lines selects rows")
    parser.add_argument("--aspects", nargs="+", metavar="NAME", help="aspects of --text (default: all)")
    targets = "targets of --text (default: the targets that occur in the text)"
    parser.add_argument("--targets", nargs="+", metavar="NAME", help=targets)
    parser.add_argument("--lines", type=int, nargs="+", metavar="N", help="line numbers of rows in --data, from 1")
    output = "folder of the page; an earlier page is replaced (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=Path("analysis"), metavar="DIR", help=output)
    add_set_flag(parser, "an option for reading --data that has no flag, such as wide=false")
    add_table_flags(parser, of_model=True)


def run(arguments: argparse.Namespace) -> int:
    from qacg_models.sentiment.predictor import examples_of
    from qacg_models.sentiment.report.analysis import write_analysis
    from qacg_models.sentiment.trained_model import load_trained
    from qacg_models.utils.files import check_writable

    _check(arguments)
    check_writable("output", arguments.output)
    trained = load_trained(arguments.model)
    if arguments.data is None:
        rows = examples_of(trained, [*dict.fromkeys(arguments.text)], arguments.aspects, arguments.targets)
    else:
        rows = _rows(arguments, trained)
    path = write_analysis(trained, rows, arguments.output)
    print(f"page in {path} (open it in a browser), with the numbers of its tables in tables.json")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    of_text = [name for name in ("aspects", "targets") if getattr(arguments, name)]
    if arguments.data is None and arguments.lines:
        raise InputError(
            "lines: expected --data FILE with --lines, got --text. Omit --lines, or replace --text by --data."
        )
    if arguments.data is not None and of_text:
        raise InputError(
            f"{of_text[0]}: expected --text with --{of_text[0]}, got --data, whose rows name their {of_text[0]}. Omit "
            f"--{of_text[0]}, and select rows with --lines N."
        )
    if arguments.data is not None and not arguments.lines:
        raise InputError("lines: expected the line numbers of rows in --data, got none. Add --lines N.")


def _rows(arguments: argparse.Namespace, trained) -> list:
    from qacg_models.sentiment.dataset import check_contexts, load_file

    options = trained.record.data_options.overridden(given_data_options(arguments))
    rows: dict[int, list] = {}
    for row in load_file(arguments.data, trained.task, options):
        rows.setdefault(row.line, []).append(row)
    missing = [line for line in arguments.lines if line not in rows]
    if missing:
        raise InputError(
            f"lines: expected line numbers of rows, from {min(rows)} to {max(rows)}, got {missing[0]}, which "
            "no row has."
        )
    chosen = [row for line in dict.fromkeys(arguments.lines) for row in rows[line]]
    check_contexts(chosen, trained.contexts, arguments.data)
    return chosen
