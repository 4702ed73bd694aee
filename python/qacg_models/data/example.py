"""An example (one sentence with one context), and the checks that every reader applies to its rows."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data.task import Task
from qacg_models.errors import InputError


class DataError(InputError):
    """A data file or folder that cannot be used; the message begins with the path and, if known, the line.

    Attributes:
        path, line, reason: the parts of the message.
        earlier: number of an earlier line that `reason` mentions as "on line N"; None if it mentions no such line.
    """

    def __init__(self, path: Path | str, line: int | None, reason: str, earlier: int | None = None):
        self.path, self.line, self.reason, self.earlier = Path(path), line, reason, earlier
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")


class ReadingWarning(UserWarning):
    """A property of a data file that its user should check, such as rows that are left out; begins with the path."""


@dataclass(frozen=True, slots=True)
class Example:
    """One sentence with one context, and the line of this row in the file.

    Attributes:
        id: id of the sentence in its file; if the file has no ids, "line N", where N is the first line of the sentence,
            or "text N" for the Nth text of XML. A further opinion on the same aspect and target has " (2)" at the end.
            If several files are read, the id begins with the number of the file, as in "2/line 7".
        sentence: the text.
        context: name of the context, as `Task.context` returns it.
        target: name of the target, or the words that an opinion is about, which are no part of the context; empty if
            there is none.
        aspect: name of the aspect.
        label: class index; None for texts to predict.
        line: line number in the file, from 1.
        split: content of the file's column `split`, in lower case; empty if there is none.
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
        """The pair (id, target). Rows with the same pair form a group, which metrics such as strict accuracy rate."""
        return self.id, self.target


def class_index(label: str, task: Task, path: Path | str, line: int) -> int:
    """Returns the class index of a label that was read from a file: its position in `task.labels`.

    Every reader of labelled data calls this function.

    Args:
        label: name of the label; spelling and case must match.
        task: the labels.
        path, line: file and line number of the label, for the error.

    Raises:
        DataError: the task has no such label.
    """
    try:
        return task.labels.index(label)
    except ValueError:
        raise DataError(path, line, f"label: expected one of {', '.join(task.labels)}, got {label!r}") from None


def split_context(context: str, task: Task, path: Path | str, line: int) -> tuple[str, str]:
    """Returns target (empty if the task has none) and aspect of a context name that was read from a file.

    Raises:
        DataError: the task has no such context.
    """
    try:
        return task.split_context(context)
    except ValueError as error:
        raise DataError(path, line, str(error)) from None


@dataclass(slots=True)
class _Group:
    line: int  # of its first row
    sentence: bytes  # digest of the text, which may be long
    lines: dict[int, int]  # line of each aspect's row, by index of the aspect


def checked(rows: Iterable[Example], path: Path | str, task: Task) -> Iterator[Example]:
    """Yields the rows, and checks that each row agrees with earlier rows of its group.

    A group consists of the rows of one id and target. A few hundred bytes per group are kept in memory.

    Raises:
        DataError: a row has the same aspect as an earlier row of its group, or a sentence that differs from that of its
            group. At the end: there are no rows, or a group lacks aspects although the task requires complete groups.
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
            reason = f"id {row.id!r} already has a row for {row.context!r} on line {earlier}"
            advice = "delete one of the rows, or give each sentence its own id"
            raise DataError(path, row.line, f"{reason}; {advice}", earlier)
        if group.sentence != sentence:
            reason = f"id {row.id!r} has a different sentence on line {group.line}"
            raise DataError(path, row.line, f"{reason}; give each sentence its own id", group.line)
        group.lines[aspect] = row.line
        yield row
    if not groups:
        raise DataError(path, None, "has no rows")
    for (group_id, target), group in groups.items() if task.complete else ():
        missing = [aspect for number, aspect in enumerate(task.aspects) if number not in group.lines]
        if missing:
            named = f"id {group_id!r}, target {target!r}" if target else f"id {group_id!r}"
            raise DataError(
                path,
                group.line,
                f"{named}: expected a row for each of {len(task.aspects)} aspects, got {len(group.lines)} (the first on"
                f" this line); add rows for {', '.join(missing)}",
            )


def text_digest(text: str) -> bytes:
    """Returns a 16-byte digest of a text, to compare millions of texts in little memory."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def text_fraction(text: str) -> float:
    """Returns a hash of a text, in [0, 1), to sample texts independently of their order."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
