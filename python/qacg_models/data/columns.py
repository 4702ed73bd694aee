"""Tables of your own, CSV, JSON, JSONL, Excel and Parquet, under columns named by the user.

A table has a row for each sentence and aspect. A wide table has a row for each sentence and a column for each aspect,
whose cells are labels; each of its rows becomes a record for each aspect.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from qacg_models.data.delimiters import AUTO, DELIMITERS, find_delimiter, shown_delimiter
from qacg_models.data.encodings import UTF_8, checked_encoding
from qacg_models.data.example import DataError
from qacg_models.data.lines import json_array, numbered_lines
from qacg_models.data.sentihood_tsv import COLUMNS as SENTIHOOD_COLUMNS
from qacg_models.data.tables import excel_rows, parquet_rows
from qacg_models.errors import InputError
from qacg_models.utils.plain_text import parse_json, unescape_formula

TABLES = (".csv", ".tsv", ".xlsx", ".parquet")
SUFFIXES = (*TABLES, ".json", ".jsonl")

Record = tuple[int, dict[str, str]]  # the line where it begins; its texts by the names of `Columns`
# Says to which split a labelled row belongs. A file need not have it.
SPLIT_COLUMN = "split"
# Only the sheets of `qacg suggest` have both columns. Their cells are escaped for spreadsheets.
SHEET_COLUMNS = {SPLIT_COLUMN, "hint"}


@dataclass(frozen=True)
class Columns:
    """How the user's files are read: the names of their columns, or keys, and how text is stored.

    Attributes:
        aspect, label: None where records are read that have none, as texts to predict. Of a wide table they are the
            names that its records get.
        id, target: None where the data has none.
        delimiter: of CSV files; a backslash and t is a tab, and "auto" finds it from the header.
        encoding: of CSV, JSON and JSONL files.
        wide: whether there is a column for each aspect.
        aspect_columns: these columns of a wide table; None: all but those of text, id and target.
    """

    text: str = "text"
    aspect: str | None = "aspect"
    label: str | None = "label"
    id: str | None = None
    target: str | None = None
    delimiter: str = AUTO
    encoding: str = UTF_8
    wide: bool = False
    aspect_columns: tuple[str, ...] | None = None

    def __post_init__(self):
        if self.delimiter == "\\t":  # as a shell hands it over
            object.__setattr__(self, "delimiter", "\t")
        for names in (self.names(), self.required()):
            if len(set(names)) < len(names):
                raise InputError(f"columns: got {', '.join(names)}, wanted distinct names")
        if self.delimiter != AUTO and len(self.delimiter) != 1:
            raise InputError(f"delimiter: expected auto or one character, got {self.delimiter!r}")
        object.__setattr__(self, "encoding", checked_encoding(self.encoding))

    def names(self) -> list[str]:
        """The names under which a record has its texts."""
        optional = (self.aspect, self.label, self.id, self.target)
        return [self.text, *(name for name in optional if name is not None)]

    def required(self) -> list[str]:
        """The columns that a file must have."""
        if not self.wide:
            return self.names()
        optional = (self.id, self.target, *(self.aspect_columns or ()))
        return [self.text, *(name for name in optional if name is not None)]

    @property
    def split(self) -> str | None:
        """SPLIT_COLUMN, or None where rows have no labels, or another field has that name."""
        others = [*self.names(), *(self.aspect_columns or ())]
        return None if self.label is None or SPLIT_COLUMN in others else SPLIT_COLUMN

    def of_texts(self, **names: str | None) -> Columns:
        """The same for a file of texts without labels, whose other columns are `names` or none."""
        without = {"aspect": None, "label": None, "id": None, "target": None}
        return replace(self, **without | names, wide=False, aspect_columns=None)


def records(path: Path, columns: Columns, suffix: str | None = None, others: bool = False) -> Iterator[Record]:
    """Line and requested fields of every record of a file; an empty text where the file has nothing.

    Args:
        suffix: one of SUFFIXES, for a file whose own suffix is another.
        others: of TABLES, also return the other columns, as they are.

    Raises:
        DataError: another suffix, a file that is not as its suffix says, a missing column, or a field that is no text.
    """
    suffix = suffix or path.suffix.lower()
    names = columns.names()
    for line, record in _raw_records(path, columns, suffix):
        if suffix in TABLES and record.keys() >= SHEET_COLUMNS:
            record = {name: unescape_formula(cell) if isinstance(cell, str) else cell for name, cell in record.items()}
        for fields in _wide_rows(record, columns) if columns.wide else (record,):
            texts = {name: _text(path, line, name, fields[name]) for name in names}
            if others and suffix in TABLES:
                texts = {name: "" if cell is None else str(cell) for name, cell in fields.items()} | texts
            if columns.split in fields:
                texts[columns.split] = str(fields[columns.split] or "").strip().lower()
            yield line, texts


def file_aspects(path: Path, columns: Columns) -> list[str]:
    """The aspects of a wide table, in the order of its columns; none of a file without rows.

    Raises:
        DataError: as for `records`.
    """
    record = next(_raw_records(path, columns, path.suffix.lower()), None)
    return [] if record is None else _wide_aspects(record[1], columns)


def _raw_records(path: Path, columns: Columns, suffix: str) -> Iterator[tuple[int, dict]]:
    """Line and all fields of every row, as the file has them."""
    readers = {".csv": _csv_records, ".tsv": _csv_records, ".json": _json_records, ".jsonl": _jsonl_records}
    readers |= {".xlsx": _excel_records, ".parquet": _parquet_records, ".txt": _csv_records}
    if suffix not in readers:
        raise DataError(path, None, f"has the suffix {suffix!r}; wanted {', '.join(readers)}")
    return readers[suffix](path, columns)


def _wide_aspects(names: Iterable[str], columns: Columns) -> list[str]:
    """The aspects among the columns of a wide table; columns without a name are none."""
    if columns.aspect_columns is not None:
        return list(columns.aspect_columns)
    others = (*columns.required(), columns.split)
    # `_distinct` calls columns without a name "", " (2)" and so on.
    return [name for name in names if name.strip() and not name.startswith(" (") and name not in others]


def _wide_rows(record: dict, columns: Columns) -> Iterator[dict]:
    """A record for each aspect; of a row without a text only the first, which shows that it is empty."""
    same = {name: record[name] for name in (columns.text, columns.id, columns.target, columns.split) if name in record}
    aspects = _wide_aspects(record, columns)
    for aspect in aspects if str(record[columns.text] or "").strip() else aspects[:1]:
        yield same | {columns.aspect: aspect, columns.label: record[aspect]}


def _text(path: Path, line: int, name: str, value: object) -> str:
    """A cell as a text: numbers are fine as ids and as labels, where 1 and "1" are the same name."""
    if isinstance(value, str):
        return value if value.strip() else ""
    if value is None or (isinstance(value, float) and math.isnan(value)):  # what other programs write for nothing
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(path, line, f"{name!r} is {value!r}, wanted a text")
    if isinstance(value, float) and math.isinf(value):
        raise DataError(path, line, f"{name!r} is {value}, wanted a text or a finite number")
    return str(value)


def _csv_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict[str, str]]]:
    # csv keeps line ends inside quotes only if it gets them.
    lines: Iterator[str] = (text + "\n" for _, text in numbered_lines(path, columns.encoding))
    delimiter, before = columns.delimiter, 0
    if delimiter == AUTO:
        delimiter, before, lines = find_delimiter(lines, columns.required())
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    start = before + 1
    try:
        for fields in reader:
            line, start = start, before + reader.line_num + 1
            if not any(field.strip() for field in fields):
                continue
            if header is None:
                header = [field.strip() for field in fields]
                header = [unescape_formula(name) for name in header] if set(header) >= SHEET_COLUMNS else header
                _check_names(path, line, header, columns)
                header = _distinct(header)
            elif len(fields) > len(header) or len(fields) < min(2, len(header)):
                advice = f"a field with {shown_delimiter(delimiter)!r} in it must stand in quotation marks"
                raise DataError(path, line, f"has {len(fields)} fields, the header has {len(header)}; {advice}")
            else:
                # Excel leaves out empty cells at the end of a row where 16 rows together have them.
                missing = [""] * (len(header) - len(fields))
                yield line, dict(zip(header, fields + missing))
    except csv.Error as error:
        if "field limit" in str(error):
            raise DataError(
                path,
                start,
                f"has a field of more than {csv.field_size_limit():,} characters, the most that is read from a CSV, or "
                "a quotation mark that nothing closes; wanted shorter texts, or JSONL, whose limit is that of a line",
            ) from None
        raise DataError(
            path, start, f"is not CSV with the delimiter {shown_delimiter(delimiter)!r} ({error})"
        ) from None


def _excel_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict]]:
    header: list[str] | None = None
    for line, cells in excel_rows(path):
        while cells and cells[-1] in (None, ""):
            cells.pop()
        if not cells:
            continue
        if header is None:
            header = [str("" if cell is None else cell).strip() for cell in cells]
            _check_names(path, line, header, columns)
            header = _distinct(header)
        elif len(cells) > len(header):
            raise DataError(path, line, f"has {len(cells)} cells, the header has {len(header)}; name every column")
        else:
            yield line, dict(itertools.zip_longest(header, cells))


def _parquet_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict]]:
    for line, record in parquet_rows(path):
        _check_names(path, line, list(record), columns)
        yield line, record


def _jsonl_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict]]:
    for line, text in numbered_lines(path, columns.encoding):
        if not text.strip():
            continue
        try:
            record = parse_json(text)
        except json.JSONDecodeError as error:
            raise DataError(path, line, f"is not JSON ({error.msg}, column {error.colno})") from None
        yield line, _object(path, line, record, columns)


def _json_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict]]:
    for line, record in json_array(path, columns.encoding):
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
        names = ", ".join(columns.required())
        raise DataError(path, line, f"is a {type(record).__name__}, wanted an object with {names}")
    _check_names(path, line, list(record), columns)
    return record


def _check_names(path: Path, line: int, names: list[str], columns: Columns) -> None:
    missing = [name for name in columns.required() if name not in names]
    if missing:
        has = ", ".join(map(repr, names)) or "nothing"
        raise DataError(path, line, f"lacks {', '.join(map(repr, missing))}; it has {has}; {_advice(path, names)}")
    twice = [name for name in columns.required() if names.count(name) > 1]
    if twice:
        raise DataError(path, line, f"has {', '.join(map(repr, twice))} twice")
    if columns.wide and not _wide_aspects(names, columns):
        raise DataError(path, line, f"has no column for an aspect; it has {', '.join(map(repr, names))}")


def _advice(path: Path, names: list[str]) -> str:
    """What to do about missing columns."""
    other = next((mark for mark in DELIMITERS if len(names) == 1 and mark in names[0]), None)
    if other is not None:
        return f"another delimiter is given by --delimiter '{shown_delimiter(other)}'"
    advice = "other names are given by --text-column and its like, or --wide for a column per aspect"
    if path.suffix.lower() == ".tsv":
        published = ", ".join(SENTIHOOD_COLUMNS)
        advice += f"; the file is read as a table of your own, because its header is not SentiHood's ({published})"
    return advice
