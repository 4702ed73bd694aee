"""`qacg predict`: labels and probabilities of aspects, for given texts or a file of texts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.cli.flags import (
    AS_IN_TRAINING,
    add_confidence_flag,
    add_model_flags,
    add_text_flags,
    check_machine_flags,
    check_range,
    print_machine_line,
    resolve_text_flags,
)
from qacg_models.data.text_files import STANDARD_INPUT
from qacg_models.errors import InputError
from qacg_models.utils.cells import clipped, counted
from qacg_models.utils.distributed import world_size

if TYPE_CHECKING:
    from qacg_models.data.columns import Columns
    from qacg_models.data.example import RowProblems
    from qacg_models.data.requests import Request
    from qacg_models.inference.bulk_prediction import BulkPrediction

USES_MODELS = True
WINDOW = 1024  # texts that are predicted and written at a time
HELP = "predict labels and probabilities of aspects, for texts or a file of texts"
DESCRIPTION = (
    "Predicts every aspect of every text, or the given aspects. A file is read whole, and rows that cannot be used are "
    "listed before the first prediction. The output file appears when it is complete; --resume continues an "
    "interrupted run."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.usage = "%(prog)s MODEL (--text TEXT ... | --input FILE) [option ...]"
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder that qacg train wrote")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", nargs="+", metavar="TEXT", help="texts")
    source.add_argument("--input", type=Path, metavar="FILE", help="file of texts; - for standard input")
    parser.add_argument("--aspects", nargs="+", metavar="NAME", help="aspects to predict (default: all)")
    parser.add_argument(
        "--targets", nargs="+", metavar="NAME", help="targets to predict (default: those that occur in the text)"
    )
    parser.add_argument(
        "--by",
        default="text",
        choices=("text", "sentence", "document"),
        help="one prediction for a text, truncated to the model's maximum length; for each sentence; or for a document,"
        " from all of its sentences (default: %(default)s)",
    )
    note = f"{AS_IN_TRAINING} With --aspect-column or --target-column, only that of the row is predicted."
    add_text_flags(parser, ("aspect_column", "target_column", "id_column"), note)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write, .csv or .jsonl (default: print a table for --text, JSONL for --input)",
    )
    add_confidence_flag(output)
    output.add_argument(
        "--summary",
        type=Path,
        metavar="FILE",
        help="page to write in addition to --output: shares of each label by aspect, with confidence intervals, and "
        "the sentences with the highest probabilities",
    )
    output.add_argument("--resume", action="store_true", help="continue an unfinished run")
    output.add_argument("--overwrite", action="store_true", help="replace an existing output or unfinished run")
    add_model_flags(parser.add_argument_group("machine"))
    parser.set_defaults(columns=None, window=WINDOW, escape_formulas=False)


def run(arguments: argparse.Namespace) -> int:
    """Predicts, and writes or prints the predictions; returns 0."""
    from qacg_models.data.example import RowProblems
    from qacg_models.data.requests import check_requests
    from qacg_models.inference.aspect_predictor import AspectPredictor
    from qacg_models.inference.bulk_prediction import BulkPrediction
    from qacg_models.inference.prediction_format import PredictionLines
    from qacg_models.inference.truncation import TruncationCount
    from qacg_models.utils.devices import local_device

    _check(arguments)
    form = _form(arguments.output)
    _check_output(arguments)
    columns = _columns(arguments)
    skipped = RowProblems(Path("--text") if arguments.input is None else arguments.input)
    given = _requests(arguments, columns, skipped)
    ask = AspectPredictor.from_pretrained(
        arguments.model,
        attention=arguments.attention,
        device=local_device(arguments.device),
        int8=arguments.int8,
        threads=arguments.threads,
    )
    if arguments.target_column is not None and not ask.targets:
        raise InputError(
            f"target-column: expected none, because this model has no targets, got {arguments.target_column}. Omit it."
        )
    questions = ask.questions(arguments.aspects, arguments.targets)
    requests = check_requests(given, skipped.path, lambda one: questions.contexts(one.text, one.target, one.aspect))
    others = tuple(requests[0].others or ())
    lines = PredictionLines(
        form,
        ask.trained.task,
        arguments.id_column is not None,
        arguments.by == "sentence",
        arguments.escape_formulas,
        others,
        arguments.min_confidence,
    )
    bulk = BulkPrediction(ask, questions, lines, arguments.window, arguments.batch_size, arguments.by)
    print_machine_line(ask.trained, arguments.batch_size)
    if arguments.output is not None:
        _write(arguments, bulk, requests, skipped)
    elif arguments.input is not None:
        _print(bulk, requests, skipped)
    else:
        print(_table(bulk, requests))
    truncation = TruncationCount(ask.trained)
    if arguments.by == "text":  # sentences that are too long are divided, not truncated
        truncation.add_requests(requests, questions)
    if cut := truncation.describe("--by sentence and --by document read the whole text"):
        print(cut, file=sys.stderr if arguments.output is None else sys.stdout)
    return 0


def _requests(arguments: argparse.Namespace, columns: Columns, skipped: RowProblems) -> Iterable[Request]:
    """Returns the texts of --text or --input; checks now that the file can be opened, and reads it later."""
    from qacg_models.data.requests import Request, format_of, read_requests

    if arguments.input is None:
        return [Request(number, text) for number, text in enumerate(arguments.text, 1)]
    data_format = format_of(arguments.input, arguments.input_format)
    keeps_columns = _keeps_columns(arguments.columns, data_format)
    skips = skipped if arguments.skip_empty else None
    return read_requests(arguments.input, data_format, columns, keeps_columns, skips)


def _write(
    arguments: argparse.Namespace, bulk: BulkPrediction, requests: Sequence[Request], skipped: RowProblems
) -> None:
    from qacg_models.data import file_digest

    reused = bulk.write(
        requests,
        arguments.output,
        model_digest=file_digest(arguments.model / "model.safetensors"),
        resume=arguments.resume,
        overwrite=arguments.overwrite,
    )
    note = f"; {counted(reused, 'text')} of {len(requests):,} by the interrupted run" if reused else ""
    print(f"predictions in {arguments.output}{note}")
    if skipped.total:
        print(_describe_skipped(skipped))
    if arguments.min_confidence is not None:
        with arguments.output.open(encoding="utf-8", newline="") as handle:
            print(_describe_uncertain(arguments.min_confidence, *bulk.lines.count_uncertain(handle)))
    if arguments.summary is not None:
        _summarize(arguments, bulk)


def _summarize(arguments: argparse.Namespace, bulk: BulkPrediction) -> None:
    """Writes the page of --summary from the complete output, which has the predictions of resumed runs too."""
    from qacg_models.reporting.summary import summarize, write_summary

    summary = summarize(arguments.output, bulk.lines)
    arguments.summary.parent.mkdir(parents=True, exist_ok=True)
    source = "the texts of --text" if arguments.input is None else arguments.input.name
    write_summary(arguments.summary, summary, source, arguments.by)
    print(f"summary in {arguments.summary} (open it in a browser)")


def _columns(arguments: argparse.Namespace) -> Columns:
    """Returns the columns of the input, and fills in the flags of MODEL_DEFAULTS that are not given."""
    from qacg_models.data.columns import Columns

    resolve_text_flags(arguments, arguments.model)
    return Columns(
        text=arguments.text_column,
        aspect=arguments.aspect_column,
        label=None,
        id=arguments.id_column,
        target=arguments.target_column,
        delimiter=arguments.delimiter,
        encoding=arguments.encoding,
        quoting=arguments.quoting,
    )


def _print(bulk: BulkPrediction, requests: Sequence[Request], skipped: RowProblems) -> None:
    uncertain = total = 0
    for line in bulk.stream(requests):
        sys.stdout.write(line)
        if bulk.lines.min_confidence is not None and line:
            uncertain, total = (sum(pair) for pair in zip((uncertain, total), bulk.lines.count_uncertain([line])))
    if bulk.lines.min_confidence is not None:
        print(_describe_uncertain(bulk.lines.min_confidence, uncertain, total), file=sys.stderr)
    if skipped.total:
        print(_describe_skipped(skipped), file=sys.stderr)


def _describe_uncertain(least: float, uncertain: int, total: int) -> str:
    are, their = ("is", "its") if uncertain == 1 else ("are", "their")
    return (
        f"{uncertain:,} of {counted(total, 'prediction')} {are} uncertain: the probability of {their} label is below"
        f" {least:g}"
    )


def _describe_skipped(skipped: RowProblems) -> str:
    rows = f"{counted(skipped.total, 'row')} ({skipped.summary()})"
    return f"skipped {rows}; each has a line with an empty label in the output"


def _keeps_columns(columns: str | None, data_format: str) -> bool:
    from qacg_models.data.requests import WITH_COLUMNS

    if columns == "all" and data_format not in WITH_COLUMNS:
        raise InputError(
            f"columns: expected an input in the format {', '.join(WITH_COLUMNS[:-1])} or {WITH_COLUMNS[-1]} with"
            f" --columns all, got {data_format}. Omit --columns."
        )
    return data_format in WITH_COLUMNS and columns != "none"


def _check(arguments: argparse.Namespace) -> None:
    if world_size() > 1:
        raise InputError(
            f"torchrun: expected one process for a prediction, got {world_size()}. Split the input, predict each file"
            " with a command of its own, or use an engine for many machines: Ray Data, Spark or Dask."
        )
    check_range("window", arguments.window, 1, 1_000_000)
    check_machine_flags(arguments)
    if arguments.resume and arguments.overwrite:
        raise InputError("resume, overwrite: expected at most one of them, got both. Omit one.")
    if arguments.output is None:
        for name in ("resume", "overwrite", "summary"):
            if getattr(arguments, name):
                raise InputError(f"{name}: expected --output FILE with --{name}, got none.")
    if arguments.escape_formulas and (arguments.output is None or _form(arguments.output) != "csv"):
        raise InputError(
            f"escape-formulas: expected --output FILE.csv with --escape-formulas, got {arguments.output or 'none'}."
        )
    if arguments.columns is not None and arguments.input is None:
        raise InputError("columns: expected a table as --input, got --text. Omit --columns.")
    if arguments.input == STANDARD_INPUT and arguments.input_format == "auto":
        arguments.input_format = "txt"
    records = [
        f"{name}_column" for name in ("aspect", "target", "id") if getattr(arguments, f"{name}_column") is not None
    ]
    data_format = arguments.input_format
    by_suffix = arguments.input is not None and (data_format, arguments.input.suffix.lower()) == ("auto", ".txt")
    lines_only = arguments.input is None or data_format == "txt" or by_suffix
    if lines_only and arguments.skip_empty:
        raise InputError(
            "skip-empty: expected a table as --input, got lines of text. Omit --skip-empty: empty lines of a text file"
            " are always skipped."
        )
    if lines_only and records:
        flag = records[0].replace("_", "-")
        raise InputError(
            f"{flag}: expected a table as --input, got lines of text, which have no columns. Omit --{flag}."
        )
    for name in ("aspect", "target"):
        if getattr(arguments, f"{name}_column") is not None and getattr(arguments, f"{name}s"):
            raise InputError(f"{name}s: expected either --{name}s or --{name}-column, got both. Omit one.")


def _check_output(arguments: argparse.Namespace) -> None:
    from qacg_models.utils.outputs import check_not_input, check_writable

    if arguments.output is None:
        return
    for name in ("output", "summary"):
        path = getattr(arguments, name)
        if path is not None:
            check_writable(name, path)
        if path is not None and arguments.input is not None:
            check_not_input(name, path, 0 if arguments.input == STANDARD_INPUT else arguments.input)
    if arguments.summary is not None and arguments.summary.resolve() == arguments.output.resolve():
        raise InputError(f"summary: expected a file other than --output, got {arguments.summary}.")


def _form(output: Path | None) -> str:
    from qacg_models.inference.prediction_format import FORMATS

    data_format = "jsonl" if output is None else output.suffix.lower().removeprefix(".")
    if data_format not in FORMATS:
        raise InputError(f"output: expected a name that ends in .{' or .'.join(FORMATS)}, got {output}.")
    return data_format


def _table(bulk: BulkPrediction, requests: Sequence[Request]) -> str:
    from qacg_models.inference.prediction_format import UNCERTAIN
    from qacg_models.reporting.tables import text_table

    rows = []
    names = ["target", "aspect", "label"] if bulk.ask.targets else ["aspect", "label"]
    for request in requests:
        for _, answer in bulk.predictions([request])[0]:
            marks = [] if bulk.lines.min_confidence is None else [bulk.lines.certainty(answer)]
            shares = (f"{p:.3f}" for p in answer.probabilities.values())
            rows.append([clipped(answer.text), *(getattr(answer, name) for name in names), *marks, *shares])
    least = bulk.lines.min_confidence
    header = ["text", *names, *([] if least is None else ["certainty"])]
    table = text_table([*header, *(f"p({label})" for label in bulk.ask.labels)], rows)
    return (
        table
        if least is None
        else f"{table}\n{_describe_uncertain(least, sum(UNCERTAIN in row for row in rows), len(rows))}"
    )
