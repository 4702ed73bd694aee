"""Metrics of data with the user's labels and aspects; sentences need not have a row for every aspect.

- accuracy: share of rows that are predicted correctly;
- macro-F1: mean F1 of the labels that occur as true labels, as `f1_score(gold, predicted, labels=np.unique(gold),
  average="macro")` of scikit-learn; labels that are only predicted are not averaged;
- strict accuracy: share of groups (a sentence, or a sentence and a target) whose rows are all predicted correctly.

If a label means "no opinion", there are two more:

- aspect F1: F1 of "the row has an opinion" over all rows;
- sentiment accuracy: accuracy of the most probable label other than "no opinion", over the rows with an opinion.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qacg_models.metrics.base import Metrics, check_matrix, check_rows, f1, ratio


@dataclass(frozen=True)
class ClassificationMetrics(Metrics):
    """Five shares between 0 and 1; the last two are NaN if no label means "no opinion" or no row has an opinion."""

    TITLES: ClassVar = {
        "accuracy": "accuracy",
        "macro_f1": "macro-F1",
        "strict_accuracy": "strict accuracy",
        "aspect_f1": "aspect F1",
        "sentiment_accuracy": "sentiment accuracy",
    }

    accuracy: float
    macro_f1: float
    strict_accuracy: float
    aspect_f1: float
    sentiment_accuracy: float
    undefined: tuple[str, ...] = ()


class ClassificationJudge:
    """A callable that computes the metrics of fixed rows for given weights of the rows.

    Args:
        groups: (N,) group of each row, in any order.
        gold: (N,) true classes.
        probabilities: (N, classes). Of tied classes the lowest index is predicted.
        has_absent: whether class 0 means "no opinion".

    Raises:
        ValueError: shapes do not match, there are no rows, `gold` has an unknown class, or a probability is negative
            or not finite.
    """

    def __init__(self, groups: Sequence[Hashable], gold: Sequence[int], probabilities: np.ndarray, *, has_absent: bool):
        self.gold, probabilities = np.asarray(gold), np.asarray(probabilities, dtype=np.float64)
        check_matrix("probabilities", probabilities)
        check_rows(self.gold, probabilities, len(groups), probabilities.shape[1])
        self.guess, self.has_absent = probabilities.argmax(axis=1), has_absent
        self.right = self.guess == self.gold
        numbers: dict[Hashable, int] = {}
        self.group = np.array([numbers.setdefault(group, len(numbers)) for group in groups])
        self.right_group = np.bincount(self.group, ~self.right) == 0
        self.first = np.unique(self.group, return_index=True)[1]
        if has_absent:
            self.right_opinion = probabilities[:, 1:].argmax(axis=1) + 1 == self.gold

    def __call__(self, weights: np.ndarray | None = None) -> ClassificationMetrics:
        """Returns the metrics for (N,) weights, which must be equal within a group; None: each row counts once."""
        weight = np.ones(len(self.gold)) if weights is None else np.asarray(weights, np.float64)
        by_group = weight[self.first]
        scores = [
            self._f1(self.gold == label, self.guess == label, weight) for label in np.unique(self.gold[weight > 0])
        ]
        aspect_f1 = sentiment = math.nan
        if self.has_absent:
            opinion = (self.gold != 0) * weight
            aspect_f1 = self._f1(self.gold != 0, self.guess != 0, weight) if opinion.any() else math.nan
            sentiment = ratio((self.right_opinion * opinion).sum(), opinion.sum())
        values = {
            "accuracy": ratio((self.right * weight).sum(), weight.sum()),
            "macro_f1": math.fsum(scores) / len(scores) if scores else math.nan,
            "strict_accuracy": ratio((self.right_group * by_group).sum(), by_group.sum()),
            "aspect_f1": aspect_f1,
            "sentiment_accuracy": sentiment,
        }
        return ClassificationMetrics(
            **values, undefined=tuple(name for name, value in values.items() if math.isnan(value))
        )

    @staticmethod
    def _f1(truth: np.ndarray, guess: np.ndarray, weight: np.ndarray) -> float:
        hits, true, guessed = ((chosen * weight).sum() for chosen in (truth & guess, truth, guess))
        return float(f1(hits / guessed if guessed else 0.0, hits / true))
