"""`qacg predict`: labels and probabilities of aspects, for given texts or a file of texts."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qacg_models.cli.flags import (
    AS_IN_TRAINING,
    add_model_flags,
    add_text_flags,
    load_model,
    print_machine_line,
    resolve_text_flags,
)
from qacg_models.errors import InputError
from qacg_models.sentiment.columns import Columns
from qacg_models.sentiment.example import RowProblems, Source
from qacg_models.sentiment.tables import STANDARD_INPUT, read_texts
from qacg_models.utils.files import check_not_input, check_writable, explain_write_errors, lock_output, partial_path
from qacg_models.utils.machine import world_size
from qacg_models.utils.text import clipped, counted

if TYPE_CHECKING:
    import pandas as pd

    from qacg_models.sentiment.predictor import PredictionFormat
    from qacg_models.sentiment.trained_model import TrainedModel

USES_MODELS = True
FORMATS = ("csv", "jsonl")
WINDOW = 1024  # texts that are predicted and written at a time
# The arguments on which the predictions depend, besides the model and the texts.
DECIDING = ("aspects", "targets", "by", "attention", "min_confidence")
HELP = "predict labels and probabilities of aspects, for texts or a file of texts"
DESCRIPTION = (
    "Predicts every aspect of every text, or the given aspects. A file is read whole, and rows that cannot be used are "
    "listed before the first prediction. The output file appears when it is complete; --resume continues an "
    "interrupted run."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    confidence = "mark predictions with a lower probability as uncertain, such as 0.8; see the table of qacg evaluate"
    output.add_argument("--min-confidence", type=float, metavar="P", help=confidence)
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


def run(arguments: argparse.Namespace) -> int:
    from pandas.util import hash_pandas_object

    from qacg_models.sentiment.dataset import file_digest
    from qacg_models.sentiment.predictor import PredictionFormat, Predictor, describe_truncation

    data_format = _check(arguments)
    trained = load_model(arguments)
    if arguments.target_column is not None and not trained.task.has_targets:
        raise InputError(
            f"target-column: expected none, because this model has no targets, got {arguments.target_column}. Omit it."
        )
    skipped = RowProblems(Source(arguments.input or "--text"))
    table, names, frame, contexts = _read(arguments, trained, skipped)
    form = PredictionFormat(data_format, trained.task, tuple(name for name in table if name not in names.values()))
    predict = partial(
        Predictor(trained).predict,
        aspects=arguments.aspects,
        targets=arguments.targets,
        by=arguments.by,
        batch_size=arguments.batch_size,
        min_confidence=arguments.min_confidence,
        on_empty="skip" if arguments.skip_empty else "raise",
        keep=("id",) if "id" in names else (),
    )
    print_machine_line(trained, arguments.batch_size)
    notes = sys.stderr if arguments.output is None else sys.stdout
    if arguments.output is None:
        uncertain, total = _print(arguments, predict, frame, form, table)
    else:
        deciding = {name: getattr(arguments, name) for name in DECIDING} | {"columns": names}
        deciding["temperatures"] = list(trained.calibration.temperatures)
        deciding["precision"] = trained.precision
        deciding["model"] = file_digest(arguments.model / "model.safetensors")
        deciding["texts"] = hashlib.sha256(hash_pandas_object(table).to_numpy().tobytes()).hexdigest()
        uncertain, total = _write(arguments, predict, frame, form, table, deciding)
    if arguments.min_confidence is not None:
        are, their = ("is", "its") if uncertain == 1 else ("are", "their")
        reason = f"the probability of {their} label is below {arguments.min_confidence:g}"
        print(f"{uncertain:,} of {counted(total, 'prediction')} {are} uncertain: {reason}", file=notes)
    if skipped.total:
        rows = f"{counted(skipped.total, 'row')} ({skipped.summary()})"
        print(f"skipped {rows}; each has a line with an empty label in the output", file=notes)
    if arguments.by == "text":  # sentences that are too long are divided, not truncated
        advice = "--by sentence and --by document read the whole text"
        if note := describe_truncation(trained, zip(frame["text"], contexts), advice)[1]:
            print(note, file=notes)
    return 0


def _check(arguments: argparse.Namespace) -> str:
    """Checks the arguments before the model is loaded, and returns the format of the output; raises InputError."""
    if world_size() > 1:
        raise InputError(
            f"torchrun: expected one process for a prediction, got {world_size()}. Use an engine for many processes:"
            " docs/how-to/many-reviews.md shows how."
        )
    if arguments.resume and arguments.overwrite:
        raise InputError("resume, overwrite: expected at most one of them, got both. Omit one.")
    for name in ("aspect", "target"):
        if getattr(arguments, f"{name}_column") is not None and getattr(arguments, f"{name}s"):
            raise InputError(f"{name}s: expected either --{name}s or --{name}-column, got both. Omit one.")
    if arguments.input == STANDARD_INPUT and arguments.input_format == "auto":
        arguments.input_format = "txt"
    of_tables = ("skip_empty", "aspect_column", "target_column", "id_column")
    given = [name.replace("_", "-") for name in of_tables if getattr(arguments, name)]
    suffix = ".txt" if arguments.input is None else arguments.input.suffix.lower()
    if given and (arguments.input_format == "txt" or (arguments.input_format, suffix) == ("auto", ".txt")):
        raise InputError(
            f"{given[0]}: expected a table as --input, got lines of text, which have no columns and whose empty lines"
            f" are skipped. Omit --{given[0]}."
        )
    if arguments.output is None:
        for name in ("resume", "overwrite", "summary"):
            if getattr(arguments, name):
                raise InputError(f"{name}: expected --output FILE with --{name}, got none.")
        return "jsonl"
    for name, path in (("output", arguments.output), ("summary", arguments.summary)):
        if path is not None:
            check_writable(name, path)
            if arguments.input is not None:
                check_not_input(name, path, 0 if arguments.input == STANDARD_INPUT else arguments.input)
    if arguments.summary is not None and arguments.summary.resolve() == arguments.output.resolve():
        raise InputError(f"summary: expected a file other than --output, got {arguments.summary}.")
    data_format = arguments.output.suffix.lower().removeprefix(".")
    if data_format not in FORMATS:
        raise InputError(f"output: expected a name that ends in .{' or .'.join(FORMATS)}, got {arguments.output}.")
    return data_format


def _read(
    arguments: argparse.Namespace, trained: TrainedModel, skipped: RowProblems
) -> tuple[pd.DataFrame, dict[str, str], pd.DataFrame, list[list[str]]]:
    """Returns the input, the names of the columns to predict, their frame for the predictor, and each text's contexts.

    With --skip-empty, rows with an empty cell are kept, and counted in `skipped`. Other rows that cannot be predicted
    raise DataError with their lines.
    """
    import pandas as pd

    from qacg_models.sentiment.predictor import UnusableRows, contexts_of

    resolve_text_flags(arguments, arguments.model)
    names = {field: getattr(arguments, f"{field}_column") for field in ("text", "id", "target", "aspect")}
    if arguments.input is None:
        names = {"text": "text"}
        table = pd.DataFrame({"text": arguments.text}, index=range(1, len(arguments.text) + 1))
    else:
        reading = {name: getattr(arguments, name) for name in ("delimiter", "encoding", "quoting")}
        columns, counter = Columns(**names, label=None, **reading), skipped if arguments.skip_empty else None
        table = read_texts(arguments.input, columns, arguments.input_format, counter)
    names = {field: name for field, name in names.items() if name is not None}
    frame = table[[*names.values()]].set_axis([*names], axis=1).reset_index(drop=True)
    on_empty = "skip" if arguments.skip_empty else "raise"
    try:
        _, asked = contexts_of(trained, frame, arguments.aspects, arguments.targets, on_empty)
    except UnusableRows as error:
        problems = RowProblems(skipped.source)
        for place, reason in error.reasons.items():
            problems.add(int(table.index[place]), reason)
        raise problems.error("correct or remove these rows") from None
    return table, names, frame, [[trained.task.context(*pair) for pair in pairs] for pairs in asked]


def _windows(frame: pd.DataFrame, size: int, done: int = 0) -> Iterator[pd.DataFrame]:
    """Yields `size` rows at a time, from row `done` on."""
    return (frame[start : start + size] for start in range(done, len(frame), size))


def _print(
    arguments: argparse.Namespace, predict: partial, frame: pd.DataFrame, form: PredictionFormat, table: pd.DataFrame
) -> tuple[int, int]:
    """Prints the predictions of --text as a table, those of --input as JSONL; returns `_write`'s numbers."""
    from qacg_models.sentiment.predictor import UNCERTAIN
    from qacg_models.sentiment.report.tables import text_table

    marks: Counter[str] = Counter()
    for texts in _windows(frame, len(frame) if arguments.input is None else WINDOW):
        found = predict(texts)
        if arguments.min_confidence is not None:
            marks.update(found["certainty"].dropna())
        if arguments.input is not None:
            sys.stdout.write(form.lines(found, table))
            continue
        cells = found.drop(columns="sentence", errors="ignore")
        cells = cells.map(lambda cell: clipped(cell) if isinstance(cell, str) else f"{cell:.3f}")
        cells.insert(0, "text", cells.pop("text"))
        print(text_table([*cells], cells.to_numpy().tolist()))
    return marks[UNCERTAIN], marks.total()


def _write(
    arguments: argparse.Namespace,
    predict: partial,
    frame: pd.DataFrame,
    form: PredictionFormat,
    table: pd.DataFrame,
    deciding: dict[str, Any],
) -> tuple[int, int]:
    """Writes --output and --summary; returns the numbers of uncertain and of all predictions with --min-confidence."""
    from qacg_models.sentiment.report.evaluation import summarize, write_summary
    from qacg_models.utils.progress import progress_bar

    with lock_output(arguments.output, print):
        file = PartialFile(arguments.output, deciding, arguments.resume, arguments.overwrite)
        done = file.texts
        with closing(progress_bar(len(frame), "predicting", "text", done=done)) as bar:
            for texts in _windows(frame, WINDOW, done):
                file.append(form.lines(predict(texts), table, header=not file.texts), len(texts))
                bar.update(len(texts))
        file.publish()
    note = f"; {counted(done, 'text')} of {len(frame):,} by the interrupted run" if done else ""
    print(f"predictions in {arguments.output}{note}")
    if arguments.min_confidence is None and arguments.summary is None:
        return 0, 0
    summary = summarize(arguments.output, form)  # with the predictions of the interrupted run
    if arguments.summary is not None:
        arguments.summary.parent.mkdir(parents=True, exist_ok=True)
        source = "the texts of --text" if arguments.input is None else arguments.input.name
        write_summary(arguments.summary, summary, source, arguments.by)
        print(f"summary in {arguments.summary} (open it in a browser)")
    return summary.uncertain, summary.total


class PartialFile:
    """The unfinished file of an output, OUTPUT.partial, to which whole chunks are appended.

    The first line of OUTPUT.partial.state has what the predictions depend on. After a chunk is on the disk, a line with
    the number of predicted texts and the size of the file follows. So a resumed run cuts a chunk that is not whole.
    """

    def __init__(self, output: Path, run: dict[str, Any], resume: bool, overwrite: bool):
        self.output, self.partial, self.texts = output, partial_path(output), 0
        self.state = self.partial.with_name(f"{self.partial.name}.state")
        if output.is_dir():
            raise InputError(f"output: expected a file, got the folder {output}")
        if overwrite:
            self.partial.unlink(missing_ok=True)
        begun = self.partial.exists()
        if begun and not resume:
            advice = "pass --resume to continue it, or --overwrite to start again"
            raise InputError(f"{self.partial}: has an unfinished run; {advice}")
        if not begun:
            self.state.unlink(missing_ok=True)
        replaces = self._continue(run) if begun else overwrite
        if output.exists() and not replaces:
            raise InputError(f"output: expected a new file, got {output}, which exists. Set --overwrite to replace it.")
        if not begun:
            self.state.write_text(json.dumps(run | {"replaces": replaces}) + "\n", encoding="utf-8")
            self.partial.touch()

    def _continue(self, run: dict[str, Any]) -> bool:
        """Cuts what follows the last whole chunk; returns whether the run was started to replace an existing file."""
        found, size = {}, 0
        try:
            content = self.state.read_text(encoding="utf-8")
            first, *chunks, torn = content.split("\n")
            found = dict(json.loads(first))
            self.texts, size = map(int, chunks[-1].split()) if chunks else (0, 0)
            os.truncate(self.state, len(content) - len(torn))
        except (FileNotFoundError, ValueError, TypeError):
            pass
        other = [name for name in run if found.get(name) != run[name]]
        other += ["the size of the file"] if self.partial.stat().st_size < size else []
        if other:
            raise InputError(
                f"{self.partial}: expected an unfinished run with the same model, options and texts, got one that"
                f" differs in {', '.join(other)}; pass --overwrite to start again"
            )
        os.truncate(self.partial, size)
        return bool(found.get("replaces"))

    def append(self, lines: str, texts: int) -> None:
        """Writes the lines of a number of texts to the disk, and then the state."""
        with explain_write_errors(self.partial), self.partial.open("ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())
            self.texts += texts
            with self.state.open("a", encoding="utf-8") as state:
                state.write(f"{self.texts} {file.tell()}\n")

    def publish(self) -> None:
        """Renames the complete file."""
        os.replace(self.partial, self.output)
        self.state.unlink(missing_ok=True)
