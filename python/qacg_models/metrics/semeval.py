"""Metrics of SemEval-2014's aspect categories and their sentiment.

- aspect precision, recall and F1 of "the sentence is about this category", over all sentences and categories;
- k-class accuracy: accuracy over the rows whose true label is one of k labels. The prediction is the most probable of
  these k labels. The labels are positive and negative for k = 2; also neutral for k = 3; also conflict for k = 4.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qacg_models.metrics.base import Metrics, check_rows, f1, group_table, ratio

NONE, POSITIVE, NEUTRAL, NEGATIVE, CONFLICT = range(5)
CLASSES = {
    4: (POSITIVE, NEUTRAL, NEGATIVE, CONFLICT),
    3: (POSITIVE, NEUTRAL, NEGATIVE),
    2: (POSITIVE, NEGATIVE),
}


@dataclass(frozen=True)
class SemEvalMetrics(Metrics):
    """Six shares between 0 and 1; aspect precision and F1 are 0 if no category is predicted.

    The aspect metrics are NaN if every true label is "none". A k-class accuracy is NaN if no true label is among the k
    labels.
    """

    TITLES: ClassVar = {
        "aspect_precision": "aspect P",
        "aspect_recall": "aspect R",
        "aspect_f1": "aspect F1",
        "accuracy_4": "4-class accuracy",
        "accuracy_3": "3-class accuracy",
        "accuracy_2": "2-class accuracy",
    }

    aspect_precision: float
    aspect_recall: float
    aspect_f1: float
    accuracy_4: float
    accuracy_3: float
    accuracy_2: float
    undefined: tuple[str, ...] = ()


class SemEvalJudge:
    """A callable that computes the metrics of fixed rows for given weights of the rows.

    Args:
        groups: (N,) sentence of each row, in any order.
        aspects: (N,) category of each row; every sentence has every category once.
        gold: (N,) true classes: 0 none, 1 positive, 2 neutral, 3 negative, 4 conflict.
        probabilities: (N, 5). Of tied classes the lowest index is predicted.

    Raises:
        ValueError: shapes do not match, there are no rows, `gold` has an unknown class, a probability is negative or
            not finite, or a sentence lacks or repeats a category.
    """

    def __init__(
        self, groups: Sequence[Hashable], aspects: Sequence[str], gold: Sequence[int], probabilities: np.ndarray
    ):
        self.gold, probabilities = np.asarray(gold), np.asarray(probabilities, dtype=np.float64)
        group_table(groups, aspects)
        check_rows(self.gold, probabilities, len(groups), 5)
        self.named, self.guessed = self.gold != NONE, probabilities.argmax(axis=1) != NONE
        self.right = {
            count: np.asarray(classes)[probabilities[:, classes].argmax(axis=1)] == self.gold
            for count, classes in CLASSES.items()
        }

    def __call__(self, weights: np.ndarray | None = None) -> SemEvalMetrics:
        """Returns the metrics for (N,) weights; None: each row counts once."""
        weight = np.ones(len(self.gold)) if weights is None else np.asarray(weights, np.float64)
        hits, named, guessed = (
            (chosen * weight).sum() for chosen in (self.named & self.guessed, self.named, self.guessed)
        )
        recall = ratio(hits, named)
        precision = math.nan if math.isnan(recall) else ratio(hits, guessed) if guessed else 0.0
        accuracies = {}
        for count, classes in CLASSES.items():
            judged = np.isin(self.gold, classes) * weight
            accuracies[f"accuracy_{count}"] = ratio((self.right[count] * judged).sum(), judged.sum())
        values = {
            "aspect_precision": precision,
            "aspect_recall": recall,
            "aspect_f1": math.nan if math.isnan(recall) else f1(precision, recall),
            **accuracies,
        }
        return SemEvalMetrics(**values, undefined=tuple(name for name, value in values.items() if math.isnan(value)))
