"""Calibration of a model's probabilities: reliability bins, calibration error, and accuracy by coverage.

- confidence of a row: the probability of its most probable label;
- expected calibration error (Naeini et al., 2015; Guo et al., 2017, arXiv:1706.04599, equation 3): rows are grouped by
  confidence into 15 bins of equal width between 0 and 1; the error is the mean of |accuracy - mean confidence| over the
  bins, weighted by their numbers of rows. A bin includes its upper end, and excludes its lower end;
- coverage at a threshold: share of the rows whose confidence is at least the threshold.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qacg_models.metrics.base import check_matrix, check_rows, ratio

BINS = 15
THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Bin:
    """The rows whose confidence is above `low` and at most `high`.

    Attributes:
        low, high: ends of the bin.
        rows: number of rows.
        confidence, accuracy: means over the rows; NaN without rows.
    """

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Covered:
    """Counts and accuracy of the rows whose confidence is at least a threshold.

    Attributes:
        threshold: the threshold.
        rows: number of rows whose confidence is at least the threshold.
        coverage: share of these rows among all rows.
        accuracy: share of these rows that are predicted correctly; NaN without rows.
    """

    threshold: float
    rows: int
    coverage: float
    accuracy: float


@dataclass(frozen=True)
class Reliability:
    """Reliability bins by increasing confidence, and the expected calibration error in [0, 1]."""

    bins: tuple[Bin, ...]
    error: float


def reliability(gold: Sequence[int], probabilities: np.ndarray) -> Reliability:
    """Returns reliability bins and expected calibration error.

    Args:
        gold: (N,) true classes.
        probabilities: (N, classes). Of tied classes the lowest index is predicted.

    Raises:
        ValueError: shapes do not match, there are no rows, `gold` has an unknown class, or a probability is negative
            or not finite.
    """
    confidence, right = _confidence(gold, probabilities)
    # Rounding can give a probability slightly above 1.
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    rows = np.bincount(place, minlength=BINS)
    sums = [np.bincount(place, weights, BINS) for weights in (confidence, right)]
    bins = tuple(
        Bin(index / BINS, (index + 1) / BINS, int(count), *(ratio(total[index], count) for total in sums))
        for index, count in enumerate(rows)
    )
    gaps = [one.rows * abs(one.accuracy - one.confidence) for one in bins if one.rows]
    return Reliability(bins, math.fsum(gaps) / len(confidence))


def accuracy_by_coverage(
    gold: Sequence[int], probabilities: np.ndarray, thresholds: Sequence[float] = THRESHOLDS
) -> list[Covered]:
    """Returns, for each threshold, count, share and accuracy of the rows with at least this confidence.

    Args:
        gold: (N,) true classes.
        probabilities: (N, classes). Of tied classes the lowest index is predicted.
        thresholds: thresholds of the confidence, between 0 and 1.

    Raises:
        ValueError: shapes do not match, there are no rows, `gold` has an unknown class, or a probability is negative
            or not finite.
    """
    confidence, right = _confidence(gold, probabilities)
    kept = [confidence >= threshold for threshold in thresholds]
    return [
        Covered(threshold, int(sure.sum()), float(sure.mean()), ratio(right[sure].sum(), sure.sum()))
        for threshold, sure in zip(thresholds, kept)
    ]


def _confidence(gold: Sequence[int], probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (N,) confidences, and (N,) booleans: True where the most probable label is correct."""
    truth, probabilities = np.asarray(gold), np.asarray(probabilities, dtype=np.float64)
    check_matrix("probabilities", probabilities)
    check_rows(truth, probabilities, len(truth), probabilities.shape[1])
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
