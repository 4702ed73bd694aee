"""What a task fixes: its labels, its aspects, how a context is called, and which metrics judge it."""

from __future__ import annotations

from dataclasses import dataclass

from qacg_models.errors import InputError

METRICS = ("sentihood", "semeval", "classification")


@dataclass(frozen=True)
class Task:
    """Labels and aspects of one aspect-based sentiment task.

    Args:
        name: how the task is called in saved files.
        labels: label names; the index is the class number.
        aspects: aspect names, in the order in which tables and groups list them.
        metrics: one of METRICS.
        selection: the metric by which training keeps a checkpoint.
        has_absent: whether the first label means "no opinion on this aspect".
        has_targets: whether a context names a target too, as in `location - 1 - price`.
        complete: whether every sentence and target has a row for every aspect.

    Raises:
        InputError: no label or aspect, one that is empty or repeated, or unknown metrics.
    """

    name: str
    labels: tuple[str, ...]
    aspects: tuple[str, ...]
    metrics: str = "classification"
    selection: str = "macro_f1"
    has_absent: bool = False
    has_targets: bool = False
    complete: bool = False

    def __post_init__(self):
        for field, least in (("labels", 2), ("aspects", 1)):
            names = getattr(self, field)
            if len(names) < least or len(set(names)) < len(names) or not all(name.strip() for name in names):
                raise InputError(f"{field}: got {list(names)}, wanted at least {least} distinct names")
        if self.metrics not in METRICS:
            raise InputError(f"metrics: got {self.metrics!r}, wanted one of {', '.join(METRICS)}")

    def context(self, target: str, aspect: str) -> str:
        """The name of a context: its aspect, after its target where the task has targets."""
        return f"{target} - {aspect}" if self.has_targets else aspect

    def split_context(self, context: str) -> tuple[str, str]:
        """The target (empty where the task has none) and the aspect of a context's name.

        Raises:
            ValueError: the name does not end in one of the task's aspects, or lacks its target.
        """
        target, dash, aspect = context.rpartition(" - ") if self.has_targets else ("", "-", context)
        if not dash or bool(target.strip()) != self.has_targets or aspect not in self.aspects:
            known = ", ".join(repr(self.context("<target>", name)) for name in self.aspects)
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
    metrics="sentihood",
    selection="strict_accuracy",
    has_absent=True,
    has_targets=True,
    complete=True,
)
SEMEVAL = Task(
    name="semeval2014",
    labels=("none", "positive", "neutral", "negative", "conflict"),
    aspects=("price", "anecdotes", "food", "ambience", "service"),
    metrics="semeval",
    selection="aspect_f1",
    has_absent=True,
    complete=True,
)
