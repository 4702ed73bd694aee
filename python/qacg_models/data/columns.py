"""Data of one's own: CSV, JSON and JSONL with one row per sentence and aspect, columns named by the user.

Labels and aspects are any names; the label `None` stays the text `None`. Where no column has ids, neighbouring rows
with the same text are one sentence, until an aspect comes again.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data.example import DataError, Row
from qacg_models.data.lines import json_array, numbered_lines
from qacg_models.data.task import Task
from qacg_models.errors import InputError
from qacg_models.utils.plain_text import parse_json

SUFFIXES = (".csv", ".json", ".jsonl")
# What divides the fields of a CSV that was read with the wrong delimiter, as a shell takes it.
_DELIMITERS = {";": ";", "\t": "\\t", "|": "|", ",": ","}


@dataclass(frozen=True)
class Columns:
    """Names of the columns, or keys, of the user's files.

    Attributes:
        aspect, label: None where records are read that have none, as texts to predict.
        id, target: None where the data has none.
        delimiter: of CSV files; a backslash and t is a tab.
    """

    text: str = "text"
    aspect: str | None = "aspect"
    label: str | None = "label"
    id: str | None = None
    target: str | None = None
    delimiter: str = ","

    def __post_init__(self):
        if self.delimiter == "\\t":  # as a shell hands it over
            object.__setattr__(self, "delimiter", "\t")
        names = self.names()
        if len(set(names)) < len(names):
            raise InputError(f"columns: got {', '.join(names)}, wanted distinct names")
        if len(self.delimiter) != 1:
            raise InputError(f"delimiter: got {self.delimiter!r}, wanted one character")

    def names(self) -> list[str]:
        """The columns that a file must have."""
        optional = (self.aspect, self.label, self.id, self.target)
        return [self.text, *(name for name in optional if name is not None)]


def read(path: Path, task: Task, columns: Columns) -> Iterator[Row]:
    """Rows of a file; CSV and JSONL are read one record at a time.

    Raises:
        DataError: the file lacks a column, or at the first record with an empty field, or with a label or aspect
            that the task does not have.
    """
    group, text_before, aspects_seen = "", None, set()
    for line, record in records(path, columns):
        text, aspect, label = record[columns.text], record[columns.aspect], record[columns.label]
        target = record[columns.target] if columns.target else ""
        if aspect not in task.aspects:
            raise DataError(path, line, f"unknown aspect {aspect!r}; this task knows {', '.join(task.aspects)}")
        try:
            index = task.label_index(label)
        except ValueError as error:
            raise DataError(path, line, str(error)) from None
        if columns.id:
            group = record[columns.id]
        elif text != text_before or (target, aspect) in aspects_seen:
            group, text_before, aspects_seen = f"line {line}", text, set()
        aspects_seen.add((target, aspect))
        yield Row(group, text, task.context(target, aspect), target, aspect, index, line)


def discover(
    path: Path,
    columns: Columns,
    *,
    aspects: tuple[str, ...] | None,
    labels: tuple[str, ...] | None,
    absent_label: str | None,
) -> Task:
    """The task of a training file.

    Args:
        aspects, labels: in the order of their numbers; None takes those of the file in natural order.
        absent_label: the label that means "no opinion"; None takes one that is called none, in any case.

    Raises:
        DataError: as for `records`, or there is nothing to tell apart.
        InputError: `absent_label` is not a label.
    """
    found_aspects, found_labels = set(aspects or ()), set(labels or ())
    if aspects is None or labels is None:
        for _, record in records(path, columns):
            found_aspects.add(record[columns.aspect])
            found_labels.add(record[columns.label])
        if not found_labels:
            raise DataError(path, None, "has no rows")
    names = list(labels or sorted(found_labels, key=natural_key))
    if len(names) < 2:
        raise DataError(path, None, f"has {len(names)} labels ({', '.join(names)}), wanted at least 2")
    absent = absent_label or next((name for name in names if name.casefold() == "none"), None)
    if absent is not None and absent not in names:
        raise InputError(f"absent label: got {absent!r}, wanted one of {', '.join(names)}")
    if absent is not None:
        names = [absent, *(name for name in names if name != absent)]
    return Task(
        name="own",
        labels=tuple(names),
        aspects=tuple(aspects or sorted(found_aspects if aspects is None else aspects, key=natural_key)),
        has_absent=absent is not None,
        has_targets=columns.target is not None,
    )


def records(path: Path, columns: Columns, suffix: str | None = None) -> Iterator[tuple[int, dict[str, str]]]:
    """Line and wanted fields of every record of a file.

    Args:
        suffix: one of SUFFIXES, for a file that does not say by its own what it is.

    Raises:
        DataError: another suffix, a file that is not as its suffix says, a missing column, or an empty field.
    """
    readers = {".csv": _csv_records, ".json": _json_records, ".jsonl": _jsonl_records}
    suffix = suffix or path.suffix.lower()
    if suffix not in readers:
        raise DataError(path, None, f"has the suffix {suffix!r}; wanted {', '.join(readers)}")
    for line, record in readers[suffix](path, columns):
        fields = {}
        for name in columns.names():
            value = record[name]
            # Numbers are fine as ids and as labels: 1 and "1" are the same name.
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise DataError(path, line, f"{name!r} is {value!r}, wanted a text")
            if isinstance(value, float) and not math.isfinite(value):  # what other programs write for nothing
                raise DataError(path, line, f"{name!r} is {value}, wanted a text or a finite number")
            if not str(value).strip():
                raise DataError(path, line, f"has an empty {name!r}")
            fields[name] = str(value)
        yield line, fields


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Sorts numbers inside texts by their value: 2 before 10."""
    key = []
    for part in re.split(r"([0-9]+)", text):
        if part and part[0] in "0123456789":
            digits = part.lstrip("0")
            key.append((0, len(digits), digits))  # as their values, which Python does not make of thousands of digits
        elif part:
            key.append((1, 0, part))
    return key


def _csv_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict[str, str]]]:
    # csv keeps line ends inside quotes only if it gets them.
    lines = (text + "\n" for _, text in numbered_lines(path))
    reader = csv.reader(lines, delimiter=columns.delimiter, strict=True)
    header: list[str] | None = None
    start = 1
    try:
        for fields in reader:
            line, start = start, reader.line_num + 1
            if not any(field.strip() for field in fields):
                continue
            if header is None:
                header = [field.strip() for field in fields]
                _check_names(path, line, header, columns)
            elif len(fields) != len(header):
                raise DataError(path, line, f"has {len(fields)} fields, the header has {len(header)}")
            else:
                yield line, dict(zip(header, fields))
    except csv.Error as error:
        if "field limit" in str(error):
            raise DataError(
                path,
                start,
                f"has a field of more than {csv.field_size_limit():,} characters, the most that is read from a CSV, or "
                "a quotation mark that nothing closes; wanted shorter texts, or JSONL, which has no such limit",
            ) from None
        raise DataError(path, start, f"is not CSV with the delimiter {columns.delimiter!r} ({error})") from None


def _jsonl_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict]]:
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        try:
            record = parse_json(text)
        except json.JSONDecodeError as error:
            raise DataError(path, line, f"is not JSON ({error.msg}, column {error.colno})") from None
        yield line, _object(path, line, record, columns)


def _json_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict]]:
    for line, record in json_array(path):
        yield line, _object(path, line, record, columns)


def _object(path: Path, line: int, record: object, columns: Columns) -> dict:
    if not isinstance(record, dict):
        raise DataError(path, line, f"is a {type(record).__name__}, wanted an object with {', '.join(columns.names())}")
    _check_names(path, line, list(record), columns)
    return record


def _check_names(path: Path, line: int, names: list[str], columns: Columns) -> None:
    missing = [name for name in columns.names() if name not in names]
    if missing:
        has = ", ".join(map(repr, names)) or "nothing"
        other = next((typed for mark, typed in _DELIMITERS.items() if len(names) == 1 and mark in names[0]), None)
        hint = (
            f"another delimiter is given by --delimiter '{other}'"
            if other
            else "other names are given by --text-column and its like"
        )
        raise DataError(path, line, f"lacks {', '.join(map(repr, missing))}; it has {has}; {hint}")
    twice = [name for name in columns.names() if names.count(name) > 1]
    if twice:
        raise DataError(path, line, f"has {', '.join(map(repr, twice))} twice")
