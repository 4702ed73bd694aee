"""A format of lines `aspect | label | text`; the text may contain bars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.columns import Columns
from qacg_models.data.example import DataError
from qacg_models.data.lines import numbered_lines
from qacg_models.data.records import Record

SUFFIX = ".lines"


def records(path: Path, columns: Columns) -> Iterator[Record]:
    """Yields a record for every line that is not empty.

    Raises:
        DataError: a line without three parts, an empty part, or columns by name, which lines do not have.
    """
    if columns != Columns():
        raise DataError(path, None, "expected no --text-column or similar option: lines have no column names")
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        parts = [part.strip() for part in text.split("|", 2)]
        if len(parts) < 3 or not all(parts):
            raise DataError(path, line, f"expected aspect | label | text, got {text!r}")
        yield line, dict(zip((columns.aspect, columns.label, columns.text), parts))
