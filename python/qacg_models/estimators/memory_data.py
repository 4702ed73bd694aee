"""A DataFrame as a data set: the frame is written to a temporary file of JSON lines, which is read like a data file."""

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
from qacg_models.utils.cells import counted

# Options that apply to files only.
_OF_FILES = ("format", "delimiter", "quoting", "encoding", "skip_empty")
FRAME_OPTIONS = tuple(field.name for field in fields(DataOptions) if field.name not in _OF_FILES)


@contextmanager
def frames_as_data(
    frames: Mapping[str, Any], options: DataOptions, on_empty: str, say: Callable[[str], None]
) -> Iterator[Dataset]:
    """Yields the data set of DataFrames; its temporary files exist until the block ends.

    Args:
        frames: DataFrames, or mappings of columns, by split. Without dev rows, a part of train becomes dev.
        options: options for reading the data, with the names of the columns.
        on_empty: for rows with an empty cell: "raise" InputError, or "skip" the rows. In a wide frame, an empty label
            skips only its aspect, not the row.
        say: called with a line for each split of which rows are skipped.

    Raises:
        TypeError: a frame is neither a DataFrame nor a mapping, or a cell is no text, number or boolean.
        InputError: a column is missing, `on_empty` has another value, a cell is empty and `on_empty` is "raise", no row
            is left, or the data cannot be used.
    """
    with TemporaryDirectory() as folder:
        indices = {}
        for split, frame in frames.items():
            file = Path(folder) / f"{split}.jsonl"
            indices[file] = _write(frame, file, split, options, on_empty, say)
        path = Path(folder) if len(frames) > 1 else Path(folder) / "train.jsonl"
        reading = _reading(options, on_empty)
        dataset = _with_rows_named(lambda: load_data(path, options=reading, optional=("test",)), indices)
        yield replace(
            dataset,
            sources=(),
            options=options,
            notes=dataset.notes[1:],  # the first note names the file
            indices={split: indices[file] for split, (file,) in dataset.files.items()},
        )


def labelled_rows(trained: TrainedModel, frame: Any, options: DataOptions, on_empty: str) -> Sequence[Example]:
    """Returns the rows of a DataFrame as labelled examples for a model.

    Args:
        trained: the model.
        frame: a DataFrame, or a mapping of column names to sequences.
        options: options for reading the data, with the names of the columns.
        on_empty: for rows with an empty cell: "raise" InputError, or "skip" the rows. In a wide frame, an empty label
            skips only its aspect, not the row.

    Raises:
        TypeError: `frame` is neither a DataFrame nor a mapping, or a cell is no text, number or boolean.
        InputError: a column is missing, `on_empty` has another value, a cell is empty and `on_empty` is "raise", no row
            is left, or the model does not have a label or an aspect of the rows.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "frame.jsonl"
        index = _write(frame, path, "frame", options, on_empty, lambda line: None)
        return _with_rows_named(
            lambda: load_file(path, trained.task, _reading(options, on_empty), contexts=trained.contexts), {path: index}
        )


def data_options(given: Mapping[str, object]) -> DataOptions:
    """Returns the options for reading a DataFrame.

    Args:
        given: the options that the user set, by name; other options have their defaults.

    Raises:
        TypeError: an option is unknown, or applies to files only.
        InputError: a value is out of range, or contradicts another one.
    """
    for name in given:
        if name not in FRAME_OPTIONS:
            advice = "Omit it; it applies to files." if name in _OF_FILES else "Check its spelling."
            raise TypeError(f"data options: expected one of {', '.join(FRAME_OPTIONS)}, got {name!r}. {advice}")
    return DataOptions(**given)  # type: ignore[arg-type]


def _write(frame: Any, path: Path, split: str, options: DataOptions, on_empty: str, say: Callable[[str], None]) -> list:
    """Writes one line for each row of a frame, blank for a skipped row; returns the index of the frame."""
    columns = _columns(frame, options)
    aspects = _aspects(frame, options) if on_empty == "skip" else ()  # the reader skips empty labels
    required = {name: values for name, values in columns.items() if name not in (SPLIT_COLUMN, *aspects)}
    count = len(next(iter(columns.values())))
    index = index_of(frame, count)
    kept = set(check_empty(required, on_empty, index))
    if not kept:
        raise InputError(
            f"frame: expected at least one row without empty cells, got none among {counted(count, 'row')}. Pass a"
            f" frame with rows, or fill in the columns {', '.join(required)}."
        )
    if len(kept) < count:
        say(f"left out of {split}: {count - len(kept):,} of {counted(count, 'row')}, because of an empty cell")
    with path.open("w", encoding="utf-8") as handle:
        for row in range(count):
            record = {name: values[row] for name, values in columns.items()} if row in kept else None
            handle.write("\n" if record is None else json.dumps(record, ensure_ascii=False) + "\n")
    return index


def _columns(frame: Any, options: DataOptions) -> dict[str, list[str]]:
    """Returns the columns that are read, by name, including a column `split`."""
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
    """Returns the aspect columns of a wide frame; an empty tuple for a frame with a row for each aspect."""
    if not options.is_wide:
        return ()
    others = {*options.columns().required(), SPLIT_COLUMN}
    return options.aspect_columns or tuple(name for name in column_names(frame) if name not in others)


def _reading(options: DataOptions, on_empty: str) -> DataOptions:
    """Returns the options for reading the temporary file: for a wide frame, `on_empty="skip"` skips empty labels."""
    return replace(options, skip_empty=options.is_wide and on_empty == "skip")


def _with_rows_named(load: Callable[[], Any], indices: Mapping[Path, list]) -> Any:
    """Returns the result of `load`; its errors show entries of the frame's index, not lines.

    Args:
        load: function that reads the files.
        indices: for each file, the index of the frame written to it; entry N - 1 of the index belongs to line N.

    Raises:
        InputError: `load` raised DataError.
    """
    try:
        return load()
    except DataError as error:
        index = indices.get(error.path, [])
        place = "frame" if error.line is None else f"frame: index {index[error.line - 1]!r}"
        reason = error.reason
        if error.earlier is not None:
            reason = reason.replace(f"on line {error.earlier}", f"at index {index[error.earlier - 1]!r}")
        raise InputError(f"{place}: {reason}") from None
