"""CSV, JSON and JSONL of one's own, one record per sentence and aspect, under columns named by the user."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data.example import DataError
from qacg_models.data.lines import json_array, numbered_lines
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


def records(
    path: Path, columns: Columns, suffix: str | None = None, others: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """Line and wanted fields of every record of a file.

    Args:
        suffix: one of SUFFIXES, for a file that does not say by its own what it is.
        others: of a CSV, hand on its other fields behind them, as they are.

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
        yield line, record | fields if others and suffix == ".csv" else fields


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
                header = _distinct(header)
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
                "a quotation mark that nothing closes; wanted shorter texts, or JSONL, whose limit is that of a line",
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


def _distinct(names: list[str]) -> list[str]:
    """Names of columns with a number behind those that were there before, so that no column hides another."""
    found: list[str] = []
    for name in names:
        numbers = itertools.count(2)
        given = name
        while given in found:
            given = f"{name} ({next(numbers)})"
        found.append(given)
    return found


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
