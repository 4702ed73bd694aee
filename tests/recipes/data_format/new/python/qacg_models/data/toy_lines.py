"""Lines of one's own, `aspect | label | text`: a record each; what follows the second bar is the text, bars too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.columns import Columns
from qacg_models.data.example import DataError
from qacg_models.data.lines import numbered_lines
from qacg_models.data.records import Record

SUFFIX = ".lines"


def records(path: Path, columns: Columns) -> Iterator[Record]:
    """A record for every line that is not empty.

    Raises:
        DataError: a line without three parts, an empty part, or columns by name, which lines do not have.
    """
    if columns != Columns():
        raise DataError(path, None, "has no columns with names; wanted none of --text-column and its like")
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        parts = [part.strip() for part in text.split("|", 2)]
        if len(parts) < 3 or not all(parts):
            raise DataError(path, line, f"is {text!r}, wanted aspect | label | text")
        yield line, dict(zip((columns.aspect, columns.label, columns.text), parts))
