"""What a task fixes: its labels, its aspects, and how a context name is put together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Labels and aspects of one aspect-based sentiment task.

    Args:
        name: how the task is called in saved files.
        labels: label names; the index is the class number. The first one means "no opinion".
        aspects: aspect names, in the order in which tables and groups list them.
    """

    name: str
    labels: tuple[str, ...]
    aspects: tuple[str, ...]

    def split_context(self, context: str) -> tuple[str, str]:
        """Split `"location - 1 - price"` into its target `"location - 1"` and its aspect `"price"`.

        Raises:
            ValueError: the name does not end in ` - ` and one of the task's aspects, or names no target.
        """
        target, dash, aspect = context.rpartition(" - ")
        if not dash or not target.strip() or aspect not in self.aspects:
            known = ", ".join(f"'<target> - {name}'" for name in self.aspects)
            raise ValueError(f"unknown context {context!r}; this task knows {known}")
        return target, aspect

    def label_index(self, label: str) -> int:
        """Class number of a label.

        Raises:
            ValueError: the task has no such label (spelling and case count).
        """
        try:
            return self.labels.index(label)
        except ValueError:
            raise ValueError(f"unknown label {label!r}; this task knows {', '.join(self.labels)}") from None


SENTIHOOD = Task(
    name="sentihood",
    labels=("None", "Positive", "Negative"),
    aspects=("general", "price", "safety", "transit location"),
)

TASKS = {task.name: task for task in (SENTIHOOD,)}
