"""An example: one sentence seen under one context, as a row of a file has it, with its label and its line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data.task import Task
from qacg_models.errors import InputError


class DataError(InputError):
    """A data file or folder that cannot be used; the text begins with the file and the line."""

    def __init__(self, path: Path | str, line: int | None, reason: str):
        self.path, self.line, self.reason = Path(path), line, reason
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")


@dataclass(frozen=True, slots=True)
class Example:
    """One sentence seen under one context, with the line of the file it came from.

    Attributes:
        id: of the sentence, as the file has it; where it has none, made from the line of its first row.
        target: empty where the task has no targets.
        label: class number; None where nobody has said, as in texts to predict.
        split: what the file's column `split` says, in small letters; empty without such a column or in an empty cell.
    """

    id: str
    sentence: str
    context: str
    target: str
    aspect: str
    label: int | None
    line: int
    split: str = ""

    @property
    def group(self) -> tuple[str, str]:
        """Rows with the same group are judged together: one sentence, one target, its aspects."""
        return self.id, self.target


@dataclass(slots=True)
class _Group:
    line: int  # of its first row
    sentence: bytes  # a digest, since the text may be long
    lines: dict[int, int]  # of the row of each aspect, by the aspect's number


def checked(rows: Iterable[Example], path: Path | str, task: Task) -> Iterator[Example]:
    """The rows, one after the other, each once it is known to fit those before it.

    A few hundred bytes are kept of each group.

    Raises:
        DataError: at the first row that repeats an aspect of its group or has another sentence; after the last row, if
            there was none, or, where the task says that groups are complete, at the first row of a group that is not.
    """
    groups: dict[tuple[str, str], _Group] = {}
    numbers = {aspect: number for number, aspect in enumerate(task.aspects)}
    for row in rows:
        sentence, aspect = text_digest(row.sentence), numbers.setdefault(row.aspect, len(numbers))
        group = groups.get(row.group)
        if group is None:
            group = groups[row.group] = _Group(row.line, sentence, {})
        if aspect in group.lines:
            earlier = group.lines[aspect]
            raise DataError(path, row.line, f"id {row.id!r} already has a row for {row.context!r} on line {earlier}")
        if group.sentence != sentence:
            raise DataError(path, row.line, f"id {row.id!r} stands for another sentence on line {group.line}")
        group.lines[aspect] = row.line
        yield row
    if not groups:
        raise DataError(path, None, "has no rows")
    for (group_id, target), group in groups.items() if task.complete else ():
        missing = [aspect for number, aspect in enumerate(task.aspects) if number not in group.lines]
        if missing:
            named = f"id {group_id!r} and {target!r}" if target else f"id {group_id!r}"
            raise DataError(
                path,
                group.line,
                f"the group of {named} that starts here has {len(group.lines)} of"
                f" {len(task.aspects)} rows; missing: {', '.join(missing)}",
            )


def text_digest(text: str) -> bytes:
    """16 bytes that stand for a text where millions of texts are compared."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
