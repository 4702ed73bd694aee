"""A format of lines `aspect | label | text`; the text may contain bars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.sentiment.columns import Columns, text_table
from qacg_models.sentiment.example import DataError
from qacg_models.sentiment.tables import numbered_lines

if TYPE_CHECKING:
    from pandas import DataFrame

SUFFIX = ".lines"


def table(path: Path, columns: Columns) -> DataFrame:
    """Returns a table with a row for every line that is not empty."""
    if columns != Columns():
        raise DataError(path, None, "expected no --text-column or similar option: lines have no column names")
    rows, lines = [], []
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        parts = [part.strip() for part in text.split("|", 2)]
        if len(parts) < 3 or not all(parts):
            raise DataError(path, line, f"expected aspect | label | text, got {text!r}")
        rows.append(parts)
        lines.append(line)
    names = (columns.aspect, columns.label, columns.text)
    return text_table({name: [row[place] for row in rows] for place, name in enumerate(names)}, lines)
