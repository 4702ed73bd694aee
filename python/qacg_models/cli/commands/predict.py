"""`qacg predict`: labels and probabilities of aspects, for given texts or a file of texts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qacg_models.cli.flags import (
    add_confidence_flag,
    add_model_flags,
    check_machine_flags,
    check_range,
    print_machine_line,
)
from qacg_models.cli.interruption import with_resume
from qacg_models.cli.text_flags import add_text_flags, resolve_text_flags
from qacg_models.data.lines import STANDARD_INPUT
from qacg_models.errors import InputError
from qacg_models.utils.cells import clipped, counted
from qacg_models.utils.distributed import world_size
from qacg_models.utils.output_lock import lock_output, partial_path

if TYPE_CHECKING:
    import pandas as pd

    from qacg_models.data.columns import Columns
    from qacg_models.data.row_problems import RowProblems
    from qacg_models.inference.prediction_format import PredictionFormat
    from qacg_models.inference.predictor import Predictor
    from qacg_models.reporting.prediction_summary import Summary

    Predict = Callable[..., pd.DataFrame]

USES_MODELS = True
COLUMNS = ("all", "none")
# The arguments on which the predictions depend, besides the model and the texts.
DECIDING = ("aspects", "targets", "by", "window", "attention", "int8", "min_confidence", "columns", "escape_formulas")
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
    asked = parser.add_argument_group("aspects and targets")
    asked.add_argument("--aspects", nargs="+", metavar="NAME", help="aspects to predict (default: all)")
    asked.add_argument(
        "--targets", nargs="+", metavar="NAME", help="targets to predict (default: the targets that occur in the text)"
    )
    asked.add_argument(
        "--by",
        default="text",
        choices=("text", "sentence", "document"),
        help="unit of a prediction: text, truncated to the maximum length of the model; sentence, each sentence of the "
        "text; or document, one prediction from all sentences of the text (default: %(default)s)",
    )
    file = parser.add_argument_group("input file")
    add_text_flags(file, "that of training")
    file.add_argument(
        "--aspect-column", metavar="NAME", help="column with the aspect of each row; no other aspect is predicted"
    )
    file.add_argument(
        "--target-column", metavar="NAME", help="column with the target of each row; no other target is predicted"
    )
    file.add_argument("--id-column", metavar="NAME", help="column with an id, which is copied to the output")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write, .csv or .jsonl (default: print a table for --text, JSONL for --input)",
    )
    output.add_argument(
        "--escape-formulas",
        action="store_true",
        help="put an apostrophe before cells of a .csv that a spreadsheet would run as formulas (= + - @) (default: "
        "write texts unchanged)",
    )
    output.add_argument(
        "--columns",
        choices=COLUMNS,
        help="columns of the input (CSV, TSV, Excel or Parquet) that are written after the predictions; all: those "
        "that are not read as text, aspect, target or id (default: all; for other formats none)",
    )
    add_confidence_flag(output)
    output.add_argument(
        "--summary",
        type=Path,
        metavar="FILE",
        help="page to write in addition to --output: shares of each label by aspect, with confidence intervals, and "
        "the sentences with the highest probabilities",
    )
    output.add_argument(
        "--group-column",
        metavar="NAME",
        help="column of the input; --summary also has the shares of the labels by its values",
    )
    output.add_argument(
        "--date-column",
        metavar="NAME",
        help="column of the input with dates; --summary also has the shares of the labels by month",
    )
    output.add_argument("--resume", action="store_true", help="continue an unfinished run")
    output.add_argument("--overwrite", action="store_true", help="replace an existing output or unfinished run")
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--window",
        type=int,
        default=1024,
        metavar="N",
        help="number of texts that are predicted and written at a time (default: %(default)s)",
    )
    add_model_flags(machine)


def arguments_to_resume(arguments: argparse.Namespace, given: Sequence[str]) -> list[str] | None:
    """Returns the arguments that resume an interrupted run; None if there is no unfinished run of --output."""
    if arguments.output is None or not partial_path(arguments.output).exists():
        return None
    # --overwrite, also if abbreviated, is dropped: --resume excludes it, and the state of the run has it.
    kept = [one for one in given if not (len(one) > 3 and "--overwrite".startswith(one))]
    return with_resume(kept, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Predicts, and writes or prints the predictions; returns 0."""
    from qacg_models.inference.prediction_format import PredictionFormat
    from qacg_models.inference.predictor import Predictor
    from qacg_models.inference.truncation import describe_truncation
    from qacg_models.utils.devices import local_device

    _check(arguments)
    _check_output(arguments)
    predictor = Predictor.from_pretrained(
        arguments.model,
        attention=arguments.attention,
        device=local_device(arguments.device),
        int8=arguments.int8,
        threads=arguments.threads,
    )
    if arguments.target_column is not None and not predictor.targets:
        raise InputError(
            f"target-column: expected none, because this model has no targets, got {arguments.target_column}. Omit it."
        )
    table, names = _read(arguments)
    others = () if arguments.columns == "none" else tuple(name for name in table if name not in names.values())
    _check_groups(arguments, others)
    skipped = _empty_cells(arguments, table, names)
    frame = table[[*names.values()]].set_axis([*names], axis=1).reset_index(drop=True)
    contexts = _contexts(arguments, predictor, table.index, frame)
    form = PredictionFormat(_form(arguments.output), predictor.trained.task, others, arguments.escape_formulas)
    predict = partial(
        predictor.predict,
        aspects=arguments.aspects,
        targets=arguments.targets,
        by=arguments.by,
        batch_size=arguments.batch_size,
        min_confidence=arguments.min_confidence,
        on_empty="skip" if arguments.skip_empty else "raise",
    )
    print_machine_line(predictor.trained, arguments.batch_size)
    if arguments.output is not None:
        _write(arguments, predict, frame, form, table, _dependencies(arguments, predictor, table))
    elif arguments.input is not None:
        _print(arguments, predict, frame, form, table)
    else:
        _print_table(arguments, predict(frame))
    notes = sys.stderr if arguments.output is None else sys.stdout
    if skipped.total:
        rows = f"{counted(skipped.total, 'row')} ({skipped.summary()})"
        print(f"skipped {rows}; each has a line with an empty label in the output", file=notes)
    if arguments.by == "text":  # sentences that are too long are divided, not truncated
        advice = "--by sentence and --by document read the whole text"
        if note := describe_truncation(predictor.trained, zip(frame["text"], contexts), advice)[1]:
            print(note, file=notes)
    return 0


def _read(arguments: argparse.Namespace) -> tuple[pd.DataFrame, dict[str, str]]:
    """Returns the texts of --text or --input, and the names of their columns by `text`, `id`, `target` and `aspect`."""
    import pandas as pd

    from qacg_models.data.columns import Columns
    from qacg_models.data.requests import WITH_COLUMNS, format_of

    resolve_text_flags(arguments, arguments.model)
    if arguments.input is None:
        return pd.DataFrame({"text": arguments.text}, index=pd.RangeIndex(1, len(arguments.text) + 1)), {"text": "text"}
    fields = {name: getattr(arguments, f"{name}_column") for name in ("text", "id", "target", "aspect")}
    reading = {name: getattr(arguments, name) for name in ("delimiter", "encoding", "quoting")}
    columns = Columns(**fields, label=None, **reading)
    data_format = format_of(arguments.input, arguments.input_format)
    if arguments.columns == "all" and data_format not in WITH_COLUMNS:
        raise InputError(
            f"columns: expected an input in the format {', '.join(WITH_COLUMNS[:-1])} or {WITH_COLUMNS[-1]} with"
            f" --columns all, got {data_format}. Omit --columns."
        )
    names = {name: column for name, column in fields.items() if column is not None}
    return read_table(arguments.input, data_format, columns, names), names


def read_table(path: Path, data_format: str, columns: Columns, names: dict[str, str]) -> pd.DataFrame:
    """Returns the columns of a file as texts, empty for missing cells, with the line numbers as index."""
    import pandas as pd

    from qacg_models.data.requests import WITH_COLUMNS, read_requests
    from qacg_models.data.row_problems import RowProblems

    found = list(read_requests(path, data_format, columns, data_format in WITH_COLUMNS, RowProblems(path)))
    cells = {name: [getattr(one, field) for one in found] for field, name in names.items()}
    cells |= {name: [one.others[name] for one in found] for name in found[0].others or ()}
    return pd.DataFrame(cells, index=pd.Index([one.line for one in found], name="line"))


def _empty_cells(arguments: argparse.Namespace, table: pd.DataFrame, names: dict[str, str]) -> RowProblems:
    """Returns the rows with an empty cell; raises DataError for them unless --skip-empty is set."""
    from qacg_models.data.row_problems import RowProblems

    found, empty = RowProblems(arguments.input), table[[*names.values()]].eq("")
    for line, cells in empty[empty.any(axis=1)].iterrows():
        found.add(line, f"has an empty {cells.idxmax()!r}")
    if found.total and not arguments.skip_empty:
        raise found.error("fill in empty cells, or pass --skip-empty to leave such rows out")
    return found


def _contexts(
    arguments: argparse.Namespace, predictor: Predictor, lines: pd.Index, frame: pd.DataFrame
) -> list[list[str]]:
    """Returns the contexts of each text; raises DataError with the lines of the texts that cannot be predicted."""
    from qacg_models.data.row_problems import RowProblems
    from qacg_models.inference.predictor import UnusableRows, contexts_of

    on_empty = "skip" if arguments.skip_empty else "raise"
    try:
        asked = contexts_of(predictor.trained, frame, arguments.aspects, arguments.targets, on_empty)
    except UnusableRows as error:
        problems = RowProblems(arguments.input or Path("--text"))
        for place, reason in error.reasons.items():
            problems.add(lines[place], reason)
        raise problems.error("correct or remove these rows") from None
    return [[predictor.trained.task.context(*pair) for pair in pairs] for pairs in asked]


def _dependencies(arguments: argparse.Namespace, predictor: Predictor, table: pd.DataFrame) -> dict[str, Any]:
    """Returns what the predictions depend on, as JSON types."""
    import hashlib

    from qacg_models.data import file_digest

    texts = hashlib.sha256()
    for row in table.itertuples(name=None):
        texts.update(repr(row).encode())
    return {name: getattr(arguments, name) for name in DECIDING} | {
        "model": file_digest(arguments.model / "model.safetensors"),
        "temperatures": list(predictor.trained.calibration.temperatures),
        "texts": texts.hexdigest(),
    }


def _write(
    arguments: argparse.Namespace,
    predict: Predict,
    frame: pd.DataFrame,
    form: PredictionFormat,
    table: pd.DataFrame,
    dependencies: dict[str, Any],
) -> None:
    from qacg_models.inference.partial_file import PartialFile
    from qacg_models.reporting.prediction_summary import summarize
    from qacg_models.utils.progress import progress_bar

    count = len(frame)
    with lock_output(arguments.output, print):
        file = PartialFile(arguments.output, dependencies, resume=arguments.resume, overwrite=arguments.overwrite)
        done = file.texts
        with closing(progress_bar(count, "predicting", "text", done=done)) as bar:
            for start in range(done, count, arguments.window):
                texts = frame[start : start + arguments.window]

                def advance(share: float, start: int = start, size: int = len(texts)) -> None:
                    bar.update(start + int(share * size + 1e-6) - bar.n)  # whole texts

                file.append(form.lines(predict(texts, progress=advance), table, header=not start), len(texts))
                advance(1.0)
        file.publish()
    note = f"; {counted(done, 'text')} of {count:,} by the interrupted run" if done else ""
    print(f"predictions in {arguments.output}{note}")
    if arguments.min_confidence is None and arguments.summary is None:
        return
    columns = {"group_column": arguments.group_column, "date_column": arguments.date_column}
    summary = summarize(arguments.output, form, **columns)  # with the predictions of the interrupted run
    if arguments.min_confidence is not None:
        print(_describe_uncertain(arguments, summary.uncertain, summary.total))
    if arguments.summary is not None:
        _write_summary(arguments, summary)


def _write_summary(arguments: argparse.Namespace, summary: Summary) -> None:
    from qacg_models.reporting.summary_page import write_summary

    arguments.summary.parent.mkdir(parents=True, exist_ok=True)
    source = "the texts of --text" if arguments.input is None else arguments.input.name
    write_summary(arguments.summary, summary, source, arguments.by)
    print(f"summary in {arguments.summary} (open it in a browser)")
    if summary.undated:
        got = f", such as {summary.first_undated!r}" if summary.first_undated else ""
        print(
            f"no readable date in the column {arguments.date_column!r}: {summary.undated:,} of"
            f" {counted(summary.total, 'prediction')}{got}; write dates as 2024-05-31, 2024-05 or 31.05.2024"
        )


def _print(
    arguments: argparse.Namespace, predict: Predict, frame: pd.DataFrame, form: PredictionFormat, table: pd.DataFrame
) -> None:
    """Prints the predictions as JSONL."""
    from qacg_models.cli.standard_output import write_out
    from qacg_models.inference.predictor import UNCERTAIN

    uncertain = total = 0
    for start in range(0, len(frame), arguments.window):
        found = predict(frame[start : start + arguments.window])
        write_out(form.lines(found, table))
        if arguments.min_confidence is not None:
            uncertain += found["certainty"].eq(UNCERTAIN).sum()
            total += found["label"].count()
    if arguments.min_confidence is not None:
        print(_describe_uncertain(arguments, uncertain, total), file=sys.stderr)


def _print_table(arguments: argparse.Namespace, found: pd.DataFrame) -> None:
    from qacg_models.inference.predictor import UNCERTAIN
    from qacg_models.reporting.tables import text_table

    found = found.drop(columns="sentence", errors="ignore")
    shares = [name for name in found if name.startswith("p(")]
    cells = found.assign(text=found["text"].map(clipped), **{name: found[name].map("{:.3f}".format) for name in shares})
    header = ["text", *(name for name in found if name != "text")]
    print(text_table(header, cells[header].to_numpy().tolist()))
    if arguments.min_confidence is not None:
        print(_describe_uncertain(arguments, found["certainty"].eq(UNCERTAIN).sum(), len(found)))


def _describe_uncertain(arguments: argparse.Namespace, uncertain: int, total: int) -> str:
    are, their = ("is", "its") if uncertain == 1 else ("are", "their")
    return (
        f"{uncertain:,} of {counted(total, 'prediction')} {are} uncertain: the probability of {their} label is below"
        f" {arguments.min_confidence:g}"
    )


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


def _check_groups(arguments: argparse.Namespace, others: Sequence[str]) -> None:
    """Checks --group-column and --date-column; `others` are the columns that the output copies from the input."""
    for name in ("group_column", "date_column"):
        flag, column = name.replace("_", "-"), getattr(arguments, name)
        if column is not None and arguments.summary is None:
            raise InputError(f"{flag}: expected --summary FILE with --{flag}, got none.")
        if column is not None and column not in others:
            known = ", ".join(map(repr, others)) or "none: a table and --columns all are required"
            raise InputError(f"{flag}: expected a column that is copied to the output ({known}), got {column!r}.")


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
