"""SemEval-2014 restaurants as pairs: no header, tab separated: id, label, aspect, text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.example import DataError, Example
from qacg_models.data.lines import numbered_lines
from qacg_models.data.task import SEMEVAL, Task

COLUMNS = ("id", "label", "aspect", "text")


def read(path: Path, task: Task = SEMEVAL) -> Iterator[Example]:
    """Rows of a file, one line in memory at a time.

    Raises:
        DataError: at the first line that is not as the format wants it.
    """
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        fields = text.split("\t")
        if len(fields) != len(COLUMNS):
            raise DataError(
                path, line, f"has {len(fields)} tab-separated fields, wanted {len(COLUMNS)}: {', '.join(COLUMNS)}"
            )
        row_id, label, aspect, sentence = fields
        if not row_id or not sentence.strip():
            raise DataError(path, line, f"has an empty {'text' if row_id else 'id'}")
        try:
            task.split_context(aspect)
            index = task.label_index(label)
        except ValueError as error:
            raise DataError(path, line, str(error)) from None
        yield Example(row_id, sentence, aspect, "", aspect, index, line)
