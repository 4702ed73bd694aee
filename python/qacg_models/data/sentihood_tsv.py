"""SentiHood as pairs, the format that BERT-pair and QACG-BERT are trained on.

The header is `id sentence1 sentence2 label` (any column order), tab separated, then one row per sentence and
context. Lines are split at tabs and nothing else: quotes are ordinary characters, and the label `None` stays the
text `None`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.example import DataError, Example
from qacg_models.data.lines import numbered_lines
from qacg_models.data.task import SENTIHOOD, Task

COLUMNS = ("id", "sentence1", "sentence2", "label")


def read(path: Path, task: Task = SENTIHOOD) -> Iterator[Example]:
    """Rows of a file, one line in memory at a time.

    Raises:
        DataError: at the first line that is not as the format wants it.
    """
    order: list[int] | None = None
    width = 0
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        fields = text.split("\t")
        if order is None:
            order, width = _column_order(path, line, fields), len(fields)
            continue
        if len(fields) != width:
            raise DataError(path, line, f"has {len(fields)} tab-separated fields, the header has {width}")
        row_id, sentence, context, label = (fields[index] for index in order)
        if not row_id or not sentence.strip():
            raise DataError(path, line, f"has an empty {'sentence1' if row_id else 'id'}")
        try:
            target, aspect = task.split_context(context)
            index = task.label_index(label)
        except ValueError as error:
            raise DataError(path, line, str(error)) from None
        yield Example(row_id, sentence, context, target, aspect, index, line)


def recognised(path: Path) -> bool:
    """Whether the header of a file is SentiHood's: it names sentence1 or sentence2."""
    try:
        with path.open("rb") as handle:
            header = handle.readline(1 << 16)
    except OSError:
        return True  # reading it raises the error
    return b"sentence1" in header or b"sentence2" in header


def _column_order(path: Path, line: int, header: list[str]) -> list[int]:
    wanted = f"; wanted: {', '.join(COLUMNS)} (tab separated)"
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise DataError(path, line, f"the header lacks {', '.join(missing)}{wanted}")
    if len(header) != len(COLUMNS):
        extra = [name for name in header if name not in COLUMNS] or ["a column twice"]
        raise DataError(path, line, f"the header also has {', '.join(extra)}{wanted}")
    return [header.index(name) for name in COLUMNS]
