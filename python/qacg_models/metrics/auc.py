"""The area under the ROC curve of weighted cases, prepared once for many weights."""

from __future__ import annotations

import math

import numpy as np


class Auc:
    """P(score of a positive > score of a negative) + P(equal) / 2.

    Args:
        truth: (N) booleans.
        score: (N) numbers.
    """

    def __init__(self, truth: np.ndarray, score: np.ndarray):
        self.truth = truth.astype(bool)
        values, self.rank = np.unique(score, return_inverse=True)
        self.ranks = len(values)

    def __call__(self, weights: np.ndarray) -> float:
        """The area with (N) weights of the cases; NaN where one class has no weight."""
        positive, negative = (
            np.bincount(self.rank[chosen], weights[chosen], self.ranks) for chosen in (self.truth, ~self.truth)
        )
        total = positive.sum() * negative.sum()
        if not total:
            return math.nan
        below = np.cumsum(negative) - negative
        return float((positive * (below + negative / 2)).sum() / total)
