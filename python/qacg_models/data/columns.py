"""Columns of a table: their names, which of them a file must have, and how the text of the file is stored."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from qacg_models.data.example import DataError
from qacg_models.data.text_files import UTF_8, checked_encoding
from qacg_models.errors import InputError

AUTO = "auto"
# auto: as minimal, but a field over lines that each look like a row is an error, or a warning if most other fields need
# their quotation marks; minimal: quotation marks may enclose a field, as in csv.QUOTE_MINIMAL; none: they are ordinary
# characters, as in csv.QUOTE_NONE.
QUOTING = (AUTO, "minimal", "none")
# Optional column that assigns a labelled row to a split.
SPLIT_COLUMN = "split"
SENTIHOOD_COLUMNS = ("id", "sentence1", "sentence2", "label")  # of a .tsv in SentiHood's format
DELIMITERS = (",", ";", "\t", "|")
# A file with both columns is a sheet of `qacg suggest`, whose cells are escaped for spreadsheets.
SHEET_COLUMNS = {SPLIT_COLUMN, "hint"}


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
        quoting: one of QUOTING: what quotation marks mean in CSV and TSV files.
        wide: whether the table has a column of labels for each aspect. `aspect` and `label` then
            name keys of the records, not columns of the table.
        aspect_columns: the aspect columns of a wide table; None: all named columns except text, id, target and `split`.

    Raises:
        InputError: two columns have the same name, the delimiter or `quoting` is invalid, or the encoding is not one of
            Python's text encodings for files (`text_files.checked_encoding`).
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


def shown_delimiter(delimiter: str) -> str:
    """Returns the delimiter as users type it in a shell."""
    return "\\t" if delimiter == "\t" else delimiter


def wide_aspects(names: Iterable[str], columns: Columns) -> list[str]:
    """Returns `columns.aspect_columns` if given; else the named columns except text, id, target and `split`."""
    if columns.aspect_columns is not None:
        return list(columns.aspect_columns)
    others = (*columns.required(), columns.split)
    # `distinct_names` names unnamed columns "", " (2)" and so on.
    return [name for name in names if name.strip() and not name.startswith(" (") and name not in others]


def distinct_names(names: list[str]) -> list[str]:
    """Returns the column names, with a number appended to repeated names, so that no column hides another."""
    found: list[str] = []
    for name in names:
        numbers = itertools.count(2)
        given = name
        while given in found:
            given = f"{name} ({next(numbers)})"
        found.append(given)
    return found


def check_names(path: Path, line: int, names: list[str], columns: Columns) -> None:
    """Raises DataError unless a header, or the keys of a JSON object, has each required column once."""
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
    if columns.wide and not wide_aspects(names, columns):
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
