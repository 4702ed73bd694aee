"""SentiHood's five metrics.

A group is the rows of one sentence and target, one row per aspect. Definitions, as in the literature:

- strict accuracy: share of groups in which every aspect is correct;
- aspect macro-F1: precision and recall of "the row has an opinion" in each group with an opinion, averaged over these
  groups; F1 is the harmonic mean of the two averages (not the average of F1);
- aspect AUC: ROC AUC of P(None) for "the row has no opinion", per aspect, averaged over aspects;
- sentiment accuracy: accuracy of the more probable of Positive and Negative, over rows that have an opinion;
- sentiment AUC: ROC AUC of P(Negative) / (P(Positive) + P(Negative)) for "the row is Negative", over rows that have an
  opinion, per aspect, averaged over aspects.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qacg_models.metrics.base import Metrics, check_rows, group_table, ratio

NONE, POSITIVE, NEGATIVE = 0, 1, 2


@dataclass(frozen=True)
class SentiHoodMetrics(Metrics):
    """Five shares between 0 and 1; an AUC is averaged over the aspects for which it is defined.

    An AUC without such an aspect is NaN. Aspect macro-F1 and sentiment accuracy are NaN if no row has an opinion.
    """

    TITLES: ClassVar = {
        "strict_accuracy": "strict accuracy",
        "aspect_macro_f1": "aspect macro-F1",
        "aspect_auc": "aspect AUC",
        "sentiment_accuracy": "sentiment accuracy",
        "sentiment_auc": "sentiment AUC",
    }

    strict_accuracy: float
    aspect_macro_f1: float
    aspect_auc: float
    sentiment_accuracy: float
    sentiment_auc: float
    undefined: tuple[str, ...] = ()


class Auc:
    """Area under the ROC curve: P(score of a positive > score of a negative) + P(equal) / 2.

    Args:
        truth: (N,) booleans: True for positives.
        score: (N,) numbers.
    """

    def __init__(self, truth: np.ndarray, score: np.ndarray):
        self.truth = truth.astype(bool)
        values, self.rank = np.unique(score, return_inverse=True)
        self.ranks = len(values)

    def __call__(self, weights: np.ndarray) -> float:
        """Returns the area for (N,) weights of the rows; NaN if all positives or all negatives have the weight 0."""
        positive, negative = (
            np.bincount(self.rank[chosen], weights[chosen], self.ranks) for chosen in (self.truth, ~self.truth)
        )
        total = positive.sum() * negative.sum()
        if not total:
            return math.nan
        below = np.cumsum(negative) - negative
        return float((positive * (below + negative / 2)).sum() / total)


class SentiHoodJudge:
    """A callable that computes the five metrics of fixed rows for given weights of the rows.

    Args:
        groups: (N,) group of each row, in any order.
        aspects: (N,) aspect of each row; every group has every aspect once.
        gold: (N,) true classes: 0 None, 1 Positive, 2 Negative.
        probabilities: (N, 3) class probabilities, or scores >= 0 with the same ranking. Of tied classes the lowest
            index is predicted.

    Raises:
        ValueError: shapes do not match; there are no rows; a class is not 0, 1 or 2; a probability is negative or not
            finite; or a group lacks or repeats an aspect.
    """

    def __init__(
        self, groups: Sequence[Hashable], aspects: Sequence[str], gold: Sequence[int], probabilities: np.ndarray
    ):
        gold, probabilities = np.asarray(gold), np.asarray(probabilities, dtype=np.float64)
        self.names, self.table = group_table(groups, aspects)
        check_rows(gold, probabilities, self.table.size, 3)
        truth = gold[self.table]  # (groups, aspects)
        guess = probabilities.argmax(axis=1)[self.table]
        self.right = (truth == guess).all(axis=1)
        self.opinion = truth != NONE
        self.hits = (self.opinion & (guess != NONE)).sum(axis=1)
        # A group without predicted opinions has a precision of 0.
        self.precision = self.hits / np.maximum((guess != NONE).sum(axis=1), 1)
        self.recall = self.hits / np.maximum(self.opinion.sum(axis=1), 1)
        polar = probabilities[:, POSITIVE] + probabilities[:, NEGATIVE]
        # Where P(None) = 1, the ratio is 0/0; 0.5 then means no preference.
        safe = np.where(polar > 0, polar, 1.0)
        negative = np.where(polar > 0, probabilities[:, NEGATIVE] / safe, 0.5)[self.table]
        self.right_sentiment = (negative > 0.5) == (truth == NEGATIVE)
        absence = probabilities[:, NONE][self.table]
        self.aspect_aucs = [Auc(truth[:, i] == NONE, absence[:, i]) for i in range(len(self.names))]
        self.sentiment_aucs = [
            Auc(truth[kept, i] == NEGATIVE, negative[kept, i]) for i, kept in enumerate(self.opinion.T)
        ]

    def __call__(self, weights: np.ndarray | None = None) -> SentiHoodMetrics:
        """Returns the metrics for (N,) weights, which must be equal within a group; None: each row counts once."""
        weight = np.ones(len(self.table)) if weights is None else np.asarray(weights, np.float64)[self.table[:, 0]]
        undefined: list[str] = []
        aspect_auc = self._mean("aspect_auc", [auc(weight) for auc in self.aspect_aucs], undefined)
        by_opinion = [auc(weight[kept]) for auc, kept in zip(self.sentiment_aucs, self.opinion.T)]
        sentiment_auc = self._mean("sentiment_auc", by_opinion, undefined)
        opinions = self.opinion * weight[:, None]
        sentiment_accuracy = ratio((self.right_sentiment * opinions).sum(), opinions.sum())
        if math.isnan(sentiment_accuracy):
            undefined.append("sentiment_accuracy")
        return SentiHoodMetrics(
            strict_accuracy=ratio((self.right * weight).sum(), weight.sum()),
            aspect_macro_f1=self._aspect_macro_f1(weight, undefined),
            aspect_auc=aspect_auc,
            sentiment_accuracy=sentiment_accuracy,
            sentiment_auc=sentiment_auc,
            undefined=tuple(undefined),
        )

    def _mean(self, metric: str, values: list[float], undefined: list[str]) -> float:
        """Returns the mean over the aspects whose value is defined; NaN if there is none.

        For each aspect whose value is undefined, "metric: aspect" is added to `undefined`.
        """
        undefined += [f"{metric}: {name}" for name, value in zip(self.names, values) if math.isnan(value)]
        known = [value for value in values if not math.isnan(value)]
        return float(np.mean(known)) if known else math.nan

    def _aspect_macro_f1(self, weight: np.ndarray, undefined: list[str]) -> float:
        weight = weight * self.opinion.any(axis=1)
        judged = weight.sum()
        if not judged:
            undefined.append("aspect_macro_f1")
            return math.nan
        # fsum: the result does not depend on the order of groups.
        precision, recall = (math.fsum(share * weight) / judged for share in (self.precision, self.recall))
        return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0
