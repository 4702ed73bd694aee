"""An example: one sentence seen under one context, as a row of a file has it, with its label and its line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
    """

    id: str
    sentence: str
    context: str
    target: str
    aspect: str
    label: int | None
    line: int

    @property
    def group(self) -> tuple[str, str]:
        """Rows with the same group are judged together: one sentence, one target, its aspects."""
        return self.id, self.target


def checked(rows: Iterable[Example], path: Path | str, task: Task) -> list[Example]:
    """The rows, once their groups are known to be whole.

    Raises:
        DataError: no rows; or at the first row that repeats an aspect of its group or has another sentence;
            or, where the task says that groups are complete, at the first row of a group that lacks an aspect.
    """
    kept: list[Example] = []
    groups: dict[tuple[str, str], dict[str, Example]] = {}
    for row in rows:
        group = groups.setdefault(row.group, {})
        if row.aspect in group:
            earlier = group[row.aspect].line
            raise DataError(path, row.line, f"id {row.id!r} already has a row for {row.context!r} on line {earlier}")
        first = next(iter(group.values()), row)
        if first.sentence != row.sentence:
            raise DataError(path, row.line, f"id {row.id!r} stands for another sentence on line {first.line}")
        group[row.aspect] = row
        kept.append(row)
    if not kept:
        raise DataError(path, None, "has no rows")
    for (group_id, target), group in groups.items() if task.complete else ():
        missing = [aspect for aspect in task.aspects if aspect not in group]
        if missing:
            named = f"id {group_id!r} and {target!r}" if target else f"id {group_id!r}"
            raise DataError(
                path,
                next(iter(group.values())).line,
                f"the group of {named} that starts here has {len(group)} of"
                f" {len(task.aspects)} rows; missing: {', '.join(missing)}",
            )
    return kept


def label_shares(rows: Sequence[Example], task: Task) -> list[float]:
    """Share of each label among the rows, in the task's order; sums to 1."""
    counts = Counter(row.label for row in rows)
    return [counts[index] / len(rows) for index in range(len(task.labels))]


def describe_examples(split: str, rows: Sequence[Example], task: Task) -> str:
    """One line with the size of a split and the shares of its labels."""
    shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(task.labels, label_shares(rows, task)))
    sentences = len({row.sentence for row in rows})
    groups = len({row.group for row in rows})
    return f"{split}: {sentences} sentences, {groups} groups, {len(rows)} rows ({shares})"
