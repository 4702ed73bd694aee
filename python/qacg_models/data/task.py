"""A task: its labels, aspects, context names and metrics."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from qacg_models.errors import InputError

METRICS = ("sentihood", "semeval", "classification")


@dataclass(frozen=True)
class Task:
    """Labels and aspects of one aspect-based sentiment task.

    Args:
        name: name of the task in saved files.
        labels: label names; the position is the class index (`data.example.class_index`).
        aspects: aspect names, in the order in which contexts, reports and, by default, predictions have them.
        metrics: one of METRICS.
        selection: name of the metric by which training selects a checkpoint.
        has_absent: whether the first label means "no opinion on this aspect".
        has_targets: whether a context also names a target, as in `location - 1 - price`.
        complete: whether every pair of a sentence and a target must have a row for every aspect.

    Raises:
        InputError: there are no aspects or fewer than two labels, a name is empty or repeated, or `metrics` is unknown.
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
                raise InputError(f"{field}: expected at least {least} distinct, non-empty names, got {list(names)}")
        if self.metrics not in METRICS:
            raise InputError(f"metrics: expected one of {', '.join(METRICS)}, got {self.metrics!r}")

    def context(self, target: str, aspect: str) -> str:
        """Returns the name of a context: "target - aspect" if the task has targets, else the aspect.

        Every pair has its own name. If "size" is an aspect too, the aspect "room - size" is in quotation marks, as in
        `hotel - "room - size"`, because `hotel - room` can also be a target.
        """
        return f"{target} - {self._names.get(aspect, aspect)}" if self.has_targets else aspect

    @cached_property
    def _names(self) -> dict[str, str]:
        """The aspects as they are written after a target."""

        def name(aspect: str) -> str:
            others = (other for other in self.aspects if other != aspect)
            ambiguous = '"' in aspect or any(f"- {aspect}".endswith(f" - {other}") for other in others)
            return json.dumps(aspect, ensure_ascii=False) if ambiguous else aspect

        return {aspect: name(aspect) for aspect in self.aspects}

    def contexts(self, targets: Iterable[str]) -> tuple[str, ...]:
        """Returns the names of the contexts of targets, in the order of their ids; aspects vary fastest.

        Args:
            targets: names of the targets; ("",) for a task without targets.
        """
        return tuple(self.context(target, aspect) for target in targets for aspect in self.aspects)

    def split_context(self, context: str) -> tuple[str, str]:
        """Returns target (empty if the task has none) and aspect of a context name in a published format.

        Raises:
            ValueError: the name does not end in an aspect of the task, or has no target although the task has targets.
        """
        target, dash, aspect = context.rpartition(" - ") if self.has_targets else ("", "-", context)
        if not dash or bool(target.strip()) != self.has_targets or aspect not in self.aspects:
            expected = ", ".join(repr(self.context("<target>", name)) for name in self.aspects)
            raise ValueError(f"context: expected one of {expected}, got {context!r}")
        return target, aspect


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
