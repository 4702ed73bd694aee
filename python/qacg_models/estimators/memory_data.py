"""A DataFrame as a data set, read by the code that reads files: it is written as JSON lines to a temporary folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qacg_models.data import DataError, DataOptions, Dataset, Example, load_data, load_file
from qacg_models.data.columns import SPLIT_COLUMN
from qacg_models.data.frames import check_empty, column, column_names, index_of
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import TrainedModel

# Options that describe files.
_OF_FILES = ("format", "delimiter", "encoding", "skip_empty")


@contextmanager
def frames_as_data(
    frames: Mapping[str, Any], options: DataOptions, on_empty: str, say: Callable[[str], None]
) -> Iterator[Dataset]:
    """Yields the data set of DataFrames, whose files exist inside the block.

    Args:
        frames: DataFrames, or mappings of columns, by split; without dev, a part of train becomes dev, as for a file.
        options: names of the columns.
        on_empty: as for `AspectSentiment.fit`.
        say: receives lines about skipped rows.

    Raises:
        TypeError, InputError: as for `AspectSentiment.fit`.
    """
    with TemporaryDirectory() as folder:
        for split, frame in frames.items():
            _write(frame, Path(folder) / f"{split}.jsonl", split, options, on_empty, say)
        path = Path(folder) if len(frames) > 1 else Path(folder) / "train.jsonl"
        reading = _reading(options, on_empty)
        dataset = _with_rows_named(lambda: load_data(path, options=reading, optional=("test",)))
        yield replace(dataset, sources=(), options=options, notes=dataset.notes[1:])  # the first note names the file


def labelled_rows(trained: TrainedModel, frame: Any, options: DataOptions, on_empty: str) -> Sequence[Example]:
    """The rows of a DataFrame, for the task of a model; arguments and errors as for `AspectSentiment.evaluate`."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "frame.jsonl"
        _write(frame, path, "frame", options, on_empty, lambda line: None)
        return _with_rows_named(
            lambda: load_file(path, trained.task, _reading(options, on_empty), contexts=trained.contexts)
        )


def data_options(given: Mapping[str, object]) -> DataOptions:
    """Returns the options with which a frame is read.

    Args:
        given: the options that the user sets, by name.

    Returns:
        The options, with defaults for the others.

    Raises:
        TypeError: an option is unknown, or applies to files only.
    """
    known = [field.name for field in fields(DataOptions) if field.name not in _OF_FILES]
    for name in given:
        if name not in known:
            raise TypeError(f"data options: expected some of {', '.join(known)}, got {name!r}. Check its spelling.")
    return DataOptions(**given)  # type: ignore[arg-type]


def _write(frame: Any, path: Path, split: str, options: DataOptions, on_empty: str, say: Callable[[str], None]) -> None:
    columns = _columns(frame, options)
    aspects = _aspects(frame, options) if on_empty == "skip" else ()  # each cell is a row of its own, read later
    required = {name: values for name, values in columns.items() if name not in (SPLIT_COLUMN, *aspects)}
    kept = check_empty(required, on_empty, index_of(frame, len(next(iter(columns.values())))))
    count = len(next(iter(columns.values())))
    if not kept:
        raise InputError(f"frame: expected rows, got none ({count - len(kept):,} of {count:,} have an empty cell).")
    if len(kept) < count:
        say(f"left out of {split}: {count - len(kept):,} of {count:,} rows, with an empty cell")
    with path.open("w", encoding="utf-8") as handle:
        for row in kept:
            record = {name: values[row] for name, values in columns.items()}
            handle.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")


def _columns(frame: Any, options: DataOptions) -> dict[str, list]:
    """The cells of the columns that are read, by name."""
    names = options.columns()
    arguments = {"text": names.text, "id_column": names.id, "target_column": names.target}
    if not options.is_wide:
        arguments |= {"aspect": names.aspect, "label": names.label}
    found = {name: column(frame, name, argument) for argument, name in arguments.items() if name is not None}
    found |= {name: column(frame, name, "aspect_columns") for name in _aspects(frame, options)}
    if SPLIT_COLUMN in column_names(frame) and SPLIT_COLUMN not in found:
        found[SPLIT_COLUMN] = column(frame, SPLIT_COLUMN, "frame")
    return found


def _aspects(frame: Any, options: DataOptions) -> tuple[str, ...]:
    """The aspect columns of a wide frame; none for a frame with a row for each aspect."""
    if not options.is_wide:
        return ()
    others = {*options.columns().required(), SPLIT_COLUMN}
    return options.aspect_columns or tuple(name for name in column_names(frame) if name not in others)


def _reading(options: DataOptions, on_empty: str) -> DataOptions:
    """Options of reading the temporary file: empty cells of a wide frame are left out there."""
    return replace(options, skip_empty=options.is_wide and on_empty == "skip")


def _with_rows_named(load: Callable[[], Any]) -> Any:
    """Calls a reader; its errors name rows of the frame and not lines of the temporary file."""
    try:
        return load()
    except DataError as error:
        place = "frame" if error.line is None else f"frame: row {error.line}, counted from 1 without skipped rows"
        raise InputError(f"{place}: {error.reason}") from None
