"""Evaluation in detail: scores by label and aspect, confusion matrix, and the most confident errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from qacg_models.data import Example
from qacg_models.data.task import Task
from qacg_models.metrics.metrics import ClassScores, class_scores, confusion_matrix, plain
from qacg_models.utils.cells import percent

ERRORS = 20  # maximum number of listed errors
Cells = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class PredictionError:
    """A row with a wrong prediction.

    Attributes:
        line: line number in the file.
        text: text of the row.
        target: name of the target; empty if the task has no targets.
        aspect: name of the aspect.
        label: the true label.
        predicted: the most probable label.
        confidence: probability of `predicted`.
    """

    line: int
    text: str
    target: str
    aspect: str
    label: str
    predicted: str
    confidence: float


@dataclass(frozen=True)
class Breakdown:
    """Scores of a model on labelled rows, by label and aspect.

    Attributes:
        labels: names of the labels.
        confusion: (labels, labels) numbers of rows by true and predicted label.
        by_label: scores of each label.
        by_aspect: scores of each label, for each aspect that occurs in the rows.
        errors: the most confident errors, at most ERRORS, most confident first.
        error_count: number of all errors.
    """

    labels: tuple[str, ...]
    confusion: np.ndarray
    by_label: tuple[ClassScores, ...]
    by_aspect: dict[str, tuple[ClassScores, ...]]
    errors: tuple[PredictionError, ...]
    error_count: int

    @classmethod
    def of(cls, task: Task, rows: Sequence[Example], probabilities: np.ndarray) -> Breakdown:
        """Returns the breakdown of a model's predictions for labelled rows.

        Args:
            task: the task, which has the labels and aspects.
            rows: N labelled rows.
            probabilities: (N, labels) predicted probabilities, in the order of `rows`.
        """
        classes, predicted = len(task.labels), probabilities.argmax(axis=1)
        gold = np.array([row.label for row in rows])
        aspect = np.array([row.aspect for row in rows])
        confusion = confusion_matrix(gold, predicted, classes)
        by_aspect = {
            name: class_scores(confusion_matrix(gold[aspect == name], predicted[aspect == name], classes))
            for name in task.aspects
            if (aspect == name).any()
        }
        confidence = probabilities.max(axis=1)
        wrong = np.flatnonzero(gold != predicted)
        errors = []
        for index in wrong[np.argsort(-confidence[wrong], kind="stable")][:ERRORS]:
            row = rows[int(index)]
            names = task.labels[gold[index]], task.labels[predicted[index]]
            share = float(confidence[index])
            errors.append(PredictionError(row.line, row.sentence, row.target, row.aspect, *names, share))
        return cls(task.labels, confusion, class_scores(confusion), by_aspect, tuple(errors), len(wrong))

    def label_cells(self) -> Cells:
        """Returns header and rows of the table of scores by label."""
        return ["label", *_TITLES], [[name, *_scores(one)] for name, one in zip(self.labels, self.by_label)]

    def aspect_cells(self) -> Cells:
        """Returns header and rows of the table of scores by aspect and label; labels without rows are left out."""
        rows = [
            [aspect, name, *_scores(one)]
            for aspect, scores in self.by_aspect.items()
            for name, one in zip(self.labels, scores)
            if one.support
        ]
        return ["aspect", "label", *_TITLES], rows

    def confusion_cells(self) -> Cells:
        """Returns header and rows of the confusion matrix."""
        rows = [[name, *map(str, counts)] for name, counts in zip(self.labels, self.confusion.tolist())]
        return ["label", *(f"predicted {name}" for name in self.labels)], rows

    def error_cells(self) -> Cells:
        """Returns header and rows of the table of errors."""
        target = ["target"] if any(one.target for one in self.errors) else []
        names = [*target, "aspect", "label", "predicted"]
        rows = [
            [str(one.line), one.text, *(getattr(one, name) for name in names), f"{one.confidence:.2f}"]
            for one in self.errors
        ]
        return ["line", "text", *names, "confidence"], rows

    def to_json(self) -> dict:
        """Returns the breakdown as JSON types, with NaN as None."""

        def by_name(scores: Sequence[ClassScores]) -> dict:
            return {name: plain(one) for name, one in zip(self.labels, scores)}

        return {
            "labels": by_name(self.by_label),
            "aspects": {aspect: by_name(scores) for aspect, scores in self.by_aspect.items()},
            "confusion": self.confusion.tolist(),
            "error_count": self.error_count,
            "errors": [asdict(one) for one in self.errors],
        }


_TITLES = ("precision in %", "recall in %", "F1 in %", "rows")


def _scores(one: ClassScores) -> list[str]:
    shares = (one.precision, one.recall, one.f1)
    return [*map(percent, shares), str(one.support)]
