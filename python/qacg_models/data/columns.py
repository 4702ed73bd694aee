"""Reader of your own tables: CSV, JSON, JSONL, Excel and Parquet, with column names of your choice.

A table has a row for each sentence and aspect. A wide table has a row for each sentence, and a column with labels for
each aspect. Each row of a wide table becomes one record per aspect.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from qacg_models.data.cell_text import cell_text, is_missing
from qacg_models.data.csv_rows import csv_rows, fitting_rows
from qacg_models.data.delimiters import AUTO, DELIMITERS, QUOTING, find_delimiter, shown_delimiter
from qacg_models.data.encodings import UTF_8, checked_encoding
from qacg_models.data.example import DataError, ReadingWarning
from qacg_models.data.lines import json_items, json_lines, numbered_lines
from qacg_models.data.sentihood_tsv import COLUMNS as SENTIHOOD_COLUMNS
from qacg_models.data.tables import excel_rows, parquet_rows
from qacg_models.errors import InputError
from qacg_models.utils.plain_text import unescape_formula

TABLES = (".csv", ".tsv", ".xlsx", ".parquet")
SUFFIXES = (*TABLES, ".json", ".jsonl")

# Line number (row number for Excel and Parquet) where the record begins, and its texts by the names in `Columns`.
Record = tuple[int, dict[str, str]]
# Optional column that assigns a labelled row to a split.
SPLIT_COLUMN = "split"
# A file with both columns is a sheet of `qacg suggest`, whose cells are escaped for spreadsheets.
SHEET_COLUMNS = {SPLIT_COLUMN, "hint"}
_IMPORT_ID = re.compile(r'\s*\{\s*"ImportId"\s*:')  # a cell of the third header row of Qualtrics


@dataclass(frozen=True)
class Columns:
    """Column names (or JSON keys) of a table, and how its text is stored.

    Attributes:
        text: name of the text column.
        aspect: name of the aspect column; None if that column does not exist or is not read.
        label: name of the label column; None for texts to predict.
        id, target: names of the id column and the target column; None if they do not exist or are not read.
        delimiter: delimiter of CSV and TSV files; a backslash followed by t is a tab; "auto" detects the delimiter
            from the header.
        encoding: encoding of text files (CSV, TSV, JSON, JSONL and TXT).
        quoting: one of `delimiters.QUOTING`: what quotation marks mean in CSV and TSV files.
        wide: whether the table has a column of labels for each aspect. `aspect` and `label` then
            name keys of the records, not columns of the table.
        aspect_columns: the aspect columns of a wide table; None: all named columns except text, id, target and `split`.

    Raises:
        InputError: two columns have the same name, the delimiter or `quoting` is invalid, or the encoding is not one of
            Python's text encodings for files (`encodings.checked_encoding`).
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
    quoting: str = AUTO

    def __post_init__(self):
        if self.delimiter == "\\t":  # two characters, as typed in a shell
            object.__setattr__(self, "delimiter", "\t")
        for names in (self.names(), self.required()):
            if len(set(names)) < len(names):
                raise InputError(
                    f"columns: expected distinct names, got {', '.join(names)}; pass other names with --text-column,"
                    " --aspect-column, --label-column, --id-column or --target-column"
                )
        if self.delimiter != AUTO and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            expected = "auto or one character, except a quotation mark or line end"
            raise InputError(f"delimiter: expected {expected}, got {self.delimiter!r}")
        if self.quoting not in QUOTING:
            raise InputError(f"quoting: expected one of {', '.join(QUOTING)}, got {self.quoting!r}")
        object.__setattr__(self, "encoding", checked_encoding(self.encoding))

    def names(self) -> list[str]:
        """Returns the keys that every record has."""
        optional = (self.aspect, self.label, self.id, self.target)
        return [self.text, *(name for name in optional if name is not None)]

    def required(self) -> list[str]:
        """Returns the columns that a file must have."""
        if not self.wide:
            return self.names()
        optional = (self.id, self.target, *(self.aspect_columns or ()))
        return [self.text, *(name for name in optional if name is not None)]

    @property
    def split(self) -> str | None:
        """The name of the split column, SPLIT_COLUMN; None if `label` is None or another field has this name."""
        others = [*self.names(), *(self.aspect_columns or ())]
        return None if self.label is None or SPLIT_COLUMN in others else SPLIT_COLUMN

    def of_texts(self, **names: str | None) -> Columns:
        """Returns a copy for a file of texts without labels, which is not wide.

        Args:
            **names: names of columns by field; aspect, label, id and target are None unless they are given.
        """
        without = {"aspect": None, "label": None, "id": None, "target": None}
        return replace(self, **without | names, wide=False, aspect_columns=None)


def records(path: Path, columns: Columns, suffix: str | None = None, others: bool = False) -> Iterator[Record]:
    """Yields the line number and the requested fields of every record.

    An empty or blank cell becomes an empty text. If the file has the column of `columns.split`, its cells are yielded
    too, stripped and in lower case. Blank lines, and rows of CSV, TSV and Excel with empty cells only, are no records.

    Warns:
        ReadingWarning: header rows of a survey tool are left out, or texts of a table with one column have line ends.

    Args:
        path: the file.
        columns: names of the fields.
        suffix: one of SUFFIXES or ".txt" (read as CSV), which selects the format; None: the suffix of `path`.
        others: also yield the columns that `columns` does not name, if the suffix is one of TABLES.

    Raises:
        DataError: the file cannot be read, or violates its format; the message names the file and, if known, the line.
        InputError: the file is an Excel workbook, and openpyxl is not installed.
    """
    suffix = suffix or path.suffix.lower()
    names = columns.names()
    for line, record in _raw_records(path, columns, suffix):
        if suffix in TABLES and record.keys() >= SHEET_COLUMNS:
            record = {name: unescape_formula(cell) if isinstance(cell, str) else cell for name, cell in record.items()}
        for fields in _wide_rows(path, line, record, columns) if columns.wide else (record,):
            # In a wide table, the column of a label has the name of the aspect.
            shown = {columns.label: fields[columns.aspect]} if columns.wide else {}
            texts = {name: _text(path, line, shown.get(name, name), fields[name]) for name in names}
            if others and suffix in TABLES:
                texts = {name: "" if is_missing(cell) else str(cell) for name, cell in fields.items()} | texts
            if columns.split in fields:
                texts[columns.split] = _text(path, line, columns.split, fields[columns.split]).strip().lower()
            yield line, texts


def file_aspects(path: Path, columns: Columns) -> list[str]:
    """Returns the aspects of a wide table: `columns.aspect_columns` if given, else the first record's aspect columns.

    The result is an empty list for a file without rows.

    Raises:
        DataError: the file cannot be read, or violates its format.
        InputError: the file is an Excel workbook, and openpyxl is not installed.
    """
    record = next(_raw_records(path, columns, path.suffix.lower()), None)
    return [] if record is None else _wide_aspects(record[1], columns)


def _raw_records(path: Path, columns: Columns, suffix: str) -> Iterator[tuple[int, dict]]:
    """Returns an iterator over the line number and all fields of every row, except blank lines and blank Excel rows.

    Raises:
        DataError: the suffix is unknown.
    """
    readers = {".csv": _csv_records, ".tsv": _csv_records, ".json": _json_records, ".jsonl": _jsonl_records}
    readers |= {".xlsx": _excel_records, ".parquet": _parquet_records, ".txt": _csv_records}
    tables_with_header = (".csv", ".tsv", ".txt", ".xlsx")
    if suffix not in readers:
        raise DataError(
            path,
            None,
            f"suffix: expected one of {', '.join(readers)}, got {suffix!r}; save the table in one of these formats",
        )
    found = readers[suffix](path, columns)
    return _without_survey_header(path, found) if suffix in tables_with_header else found


def _without_survey_header(path: Path, rows: Iterator[tuple[int, dict]]) -> Iterator[tuple[int, dict]]:
    """Yields the rows without those that Qualtrics writes below the header: question texts, then import ids."""
    first = list(itertools.islice(rows, 2))
    ids = next((place for place, (_, record) in enumerate(first) if _has_import_ids(record)), None)
    if ids is not None:
        lines = " and ".join(str(line) for line, _ in first[: ids + 1])
        which = f"lines {lines}, which are header rows" if ids else f"line {lines}, which is a header row"
        warnings.warn(f"{path}: left out {which} of a survey tool (ImportId)", ReadingWarning, stacklevel=2)
        del first[: ids + 1]
    yield from itertools.chain(first, rows)


def _has_import_ids(record: dict) -> bool:
    cells = [cell for cell in record.values() if cell not in (None, "")]
    return bool(cells) and all(isinstance(cell, str) and _IMPORT_ID.match(cell) for cell in cells)


def _wide_aspects(names: Iterable[str], columns: Columns) -> list[str]:
    """Returns `columns.aspect_columns` if given; else the named columns except text, id, target and `split`."""
    if columns.aspect_columns is not None:
        return list(columns.aspect_columns)
    others = (*columns.required(), columns.split)
    # `_distinct` names unnamed columns "", " (2)" and so on.
    return [name for name in names if name.strip() and not name.startswith(" (") and name not in others]


def _wide_rows(path: Path, line: int, record: dict, columns: Columns) -> Iterator[dict]:
    """Yields a record for each aspect of a row; only one for a row without a text, so that the row is reported once."""
    same = {name: record[name] for name in (columns.text, columns.id, columns.target, columns.split) if name in record}
    aspects = _wide_aspects(record, columns)
    for aspect in aspects if _text(path, line, columns.text, record[columns.text]) else aspects[:1]:
        yield same | {columns.aspect: aspect, columns.label: record[aspect]}


def _text(path: Path, line: int, name: str, value: object) -> str:
    """Returns a cell as text (`cell_text`); raises DataError for a cell that is no text, number or boolean."""
    try:
        return cell_text(value)
    except TypeError as error:
        raise DataError(path, line, f"{name!r}: {error}") from None


def _csv_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict[str, str]]]:
    # The csv module keeps line ends inside quoted fields only if the lines that it receives end with a line end.
    lines: Iterator[str] = (text + "\n" for _, text in numbered_lines(path, columns.encoding))
    delimiter, before = columns.delimiter, 0
    if delimiter == AUTO:
        delimiter, before, lines = find_delimiter(lines, columns.required(), columns.quoting, path.suffix)
    header: list[str] = []
    rows = csv_rows(path, lines, delimiter, before, columns.quoting)
    for line, fields in fitting_rows(path, rows, delimiter):
        if header:
            yield line, dict(itertools.zip_longest(header, fields, fillvalue=""))
            continue
        header = [field.strip() for field in fields]
        header = [unescape_formula(name) for name in header] if set(header) >= SHEET_COLUMNS else header
        _check_names(path, line, header, columns)
        header = _distinct(header)


def _excel_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict]]:
    header: list[str] | None = None
    for line, cells in excel_rows(path):
        while cells and (cells[-1] is None or (isinstance(cells[-1], str) and not cells[-1].strip())):
            cells.pop()
        if not cells:
            continue
        if header is None:
            header = ["" if is_missing(cell) else str(cell).strip() for cell in cells]
            _check_names(path, line, header, columns)
            header = _distinct(header)
        elif len(cells) > len(header):
            raise DataError(
                path,
                line,
                f"expected {len(header)} cells as in the header, got {len(cells)}; name every column in the header",
            )
        else:
            yield line, dict(itertools.zip_longest(header, cells))


def _parquet_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict]]:
    for line, record in parquet_rows(path):
        _check_names(path, line, list(record), columns)
        yield line, record


def _jsonl_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict]]:
    for line, record in json_lines(path, numbered_lines(path, columns.encoding)):
        yield line, _object(path, line, record, columns)


def _json_records(path: Path, columns: Columns) -> Iterator[tuple[int, dict]]:
    for line, record in json_items(path, columns.encoding):
        yield line, _object(path, line, record, columns)


def _distinct(names: list[str]) -> list[str]:
    """Returns the column names, with a number appended to repeated names, so that no column hides another."""
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
        raise DataError(path, line, f"expected an object with the keys {names}, got the type {type(record).__name__}")
    _check_names(path, line, list(record), columns)
    return record


def _check_names(path: Path, line: int, names: list[str], columns: Columns) -> None:
    missing = [name for name in columns.required() if name not in names]
    if missing:
        has = ", ".join(map(repr, names)) or "nothing"
        expected = ", ".join(map(repr, missing))
        raise DataError(path, line, f"columns: expected {expected}, got {has}; {_advice(path, names, columns)}")
    twice = [name for name in columns.required() if names.count(name) > 1]
    if twice:
        shown = ", ".join(map(repr, twice))
        raise DataError(
            path, line, f"columns: expected each name once, got {shown} more than once; rename or delete a column"
        )
    if columns.wide and not _wide_aspects(names, columns):
        shown = ", ".join(map(repr, names))
        raise DataError(
            path,
            line,
            f"columns: expected a column for each aspect, got only {shown}; add aspect columns, or omit --wide",
        )


def _advice(path: Path, names: list[str], columns: Columns) -> str:
    """Returns advice for an error about missing columns."""
    other = next((mark for mark in DELIMITERS if len(names) == 1 and mark in names[0]), None)
    if other is not None:
        return f"pass the delimiter with --delimiter '{shown_delimiter(other)}'"
    flags = {
        "--text-column": [columns.text],
        "--aspect-column": [] if columns.wide else [columns.aspect],
        "--label-column": [] if columns.wide else [columns.label],
        "--aspect-columns": columns.aspect_columns or [],
        "--id-column": [columns.id],
        "--target-column": [columns.target],
    }
    missing = [flag for flag, given in flags.items() if any(name not in (None, *names) for name in given)]
    advice = f"pass {'other names' if missing[1:] else 'another name'} with {_listed(missing)}"
    if {"--aspect-column", "--label-column"} <= {*missing}:
        wide = _listed([flag for flag in missing if flag == "--text-column"] + ["--wide"])
        advice = f"for a table with a column for each aspect, pass {wide}; otherwise {advice}"
    if "--aspect-columns" in missing:
        advice += "; or, for a table with a row for each aspect, omit --aspect-columns and set wide=false (--set)"
    if path.suffix.lower() not in (".json", ".jsonl", ".parquet") and not set(columns.required()) & set(names):
        advice = f"the first row must be the header, with the names of the columns; {advice}"
    if path.suffix.lower() == ".xlsx":
        advice += "; only the first sheet of a workbook is read"
    if path.suffix.lower() == ".tsv":
        published = ", ".join(SENTIHOOD_COLUMNS)
        advice += f"; a .tsv file is in SentiHood's format only if its header is {published}"
    return advice


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
