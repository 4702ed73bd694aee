"""Texts to predict, read one at a time: lines of a text file, or records of CSV and JSONL."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data.columns import Columns, records
from qacg_models.data.example import DataError
from qacg_models.data.lines import numbered_lines, open_file

FORMATS = ("txt", "csv", "jsonl")


@dataclass(frozen=True, slots=True)
class Request:
    """One text.

    Attributes:
        line: of the file, where the text begins.
        id, target, aspect: None where the file has no such column.
        others: the other columns of a CSV, by name, where they are asked for.
    """

    line: int
    text: str
    id: str | None = None
    target: str | None = None
    aspect: str | None = None
    others: dict[str, str] | None = None


def format_of(path: Path, data_format: str = "auto") -> str:
    """The format of a file, one of FORMATS.

    Raises:
        DataError: no such file, or "auto" and a name that does not say.
    """
    if data_format == "auto":
        data_format = path.suffix.lower().removeprefix(".")
    if data_format not in FORMATS:
        known = ",".join(FORMATS)
        raise DataError(path, None, f"has no suffix of a known format; say which by --input-format {{{known}}}")
    open_file(path).close()
    return data_format


def read_requests(path: Path, data_format: str, columns: Columns, others: bool = False) -> Iterator[Request]:
    """The texts of a file, one at a time; empty lines are passed over.

    Args:
        path: `lines.STANDARD_INPUT` for standard input.
        data_format: one of FORMATS; a text file has a text on every line, and no columns.
        others: of a CSV, hand on the other columns as well.

    Raises:
        DataError: as for `columns.records`, or a file without texts.
    """
    request = None
    if data_format == "txt":
        for line, text in numbered_lines(path):
            if text.strip():
                request = Request(line, text)
                yield request
    else:
        for line, record in records(path, columns, f".{data_format}", others):
            own = (record[name] if name else None for name in (columns.id, columns.target, columns.aspect))
            more = {name: value for name, value in record.items() if name not in columns.names()} if others else None
            request = Request(line, record[columns.text], *own, more)
            yield request
    if request is None:
        raise DataError(path, None, "has no texts")


def count_texts(path: Path, data_format: str, delimiter: str = ",") -> int | None:
    """How many texts a file has, without a look at what they are; None where that cannot be said.

    Args:
        data_format: one of FORMATS.
        delimiter: of a CSV, whose header is no text.
    """
    lines = (text for _, text in numbered_lines(path))
    try:
        if data_format != "csv":
            return sum(bool(text.strip()) for text in lines)
        # A text may go over several lines.
        fields = csv.reader((f"{text}\n" for text in lines), delimiter=delimiter)
        return max(sum(any(cell.strip() for cell in cells) for cells in fields) - 1, 0)
    except (csv.Error, DataError):  # the reading of the texts says where
        return None
