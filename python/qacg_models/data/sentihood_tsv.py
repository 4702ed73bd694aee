"""Reader of SentiHood as pairs of sentence and context, the format of BERT-pair and QACG-BERT.

The tab-separated header is `id sentence1 sentence2 label` in any order; a row per sentence and context follows. Quotes
are ordinary characters, and the text `None` is the label for no opinion, not a missing value.
"""

from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.example import DataError, Example, class_index, split_context
from qacg_models.data.lines import numbered_lines
from qacg_models.data.task import SENTIHOOD, Task

COLUMNS = ("id", "sentence1", "sentence2", "label")


def read(path: Path, task: Task = SENTIHOOD) -> Iterator[Example]:
    """Yields the rows of a file, with one line in memory at a time.

    Raises:
        DataError: the file cannot be opened, or a line violates the format.
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
            raise DataError(path, line, f"expected {width} tab-separated fields as in the header, got {len(fields)}")
        row_id, sentence, context, label = (fields[index] for index in order)
        if not row_id or not sentence.strip():
            raise DataError(path, line, f"has an empty {'sentence1' if row_id else 'id'}")
        target, aspect = split_context(context, task, path, line)
        yield Example(row_id, sentence, context, target, aspect, class_index(label, task, path, line), line)


def recognised(path: Path) -> bool:
    """Whether the first line of a file contains sentence1 or sentence2, as SentiHood's header does.

    Also True for a file that cannot be opened.
    """
    try:
        with path.open("rb") as handle:
            header = handle.readline(1 << 16)
    except OSError:
        return True  # reading the file raises the error
    return b"sentence1" in header or b"sentence2" in header


def _column_order(path: Path, line: int, header: list[str]) -> list[int]:
    expected = f"header: expected {', '.join(COLUMNS)} (tab separated)"
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise DataError(path, line, f"{expected}, got a header without {', '.join(missing)}")
    if len(header) != len(COLUMNS):
        extra = [name for name in header if name not in COLUMNS] or ["a second column of the same name"]
        raise DataError(path, line, f"{expected}, got also {', '.join(extra)}")
    return [header.index(name) for name in COLUMNS]
