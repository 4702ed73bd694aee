"""Reader of SemEval-2014 restaurant reviews with a line for each text and aspect.

A line has four tab-separated fields: id, label, aspect and text. There is no header.
"""

from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.example import DataError, Example, class_index, split_context
from qacg_models.data.lines import numbered_lines
from qacg_models.data.task import SEMEVAL, Task

COLUMNS = ("id", "label", "aspect", "text")


def read(path: Path, task: Task = SEMEVAL) -> Iterator[Example]:
    """Yields the rows of a file, with one line in memory at a time.

    Raises:
        DataError: the file cannot be opened, or a line violates the format.
    """
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        fields = text.split("\t")
        if len(fields) != len(COLUMNS):
            raise DataError(
                path, line, f"expected {len(COLUMNS)} tab-separated fields ({', '.join(COLUMNS)}), got {len(fields)}"
            )
        row_id, label, aspect, sentence = fields
        if not row_id or not sentence.strip():
            raise DataError(path, line, f"has an empty {'text' if row_id else 'id'}")
        split_context(aspect, task, path, line)
        yield Example(row_id, sentence, aspect, "", aspect, class_index(label, task, path, line), line)
