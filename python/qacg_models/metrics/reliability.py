"""How far a model's probabilities may be believed: calibration error, reliability, accuracy against coverage.

- confidence of a row: the probability of its most probable label, whichever that is;
- expected calibration error (Naeini et al., 2015; Guo et al., 2017, arXiv:1706.04599, equation 3): rows are put by
  confidence into 15 bins of equal width between 0 and 1; the error is the mean of |accuracy - mean confidence| over
  the bins, each weighted by its share of the rows. A bin holds its upper end, and not its lower one;
- coverage at a threshold: share of the rows whose confidence is at least the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qacg_models.metrics.base import check_rows, ratio

BINS = 15
THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Bin:
    """The rows whose confidence is above `low` and at most `high`.

    Attributes:
        rows: how many.
        confidence, accuracy: mean over them; NaN without rows.
    """

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Covered:
    """The rows of which a model is sure enough.

    Attributes:
        threshold: least confidence.
        rows: how many have it, and `coverage` their share of all.
        accuracy: share of them with their right label; NaN without rows.
    """

    threshold: float
    rows: int
    coverage: float
    accuracy: float


@dataclass(frozen=True)
class Reliability:
    """What `reliability` found: the bins from the lowest confidence up, and the expected calibration error."""

    bins: tuple[Bin, ...]
    error: float


def reliability(gold: Sequence[int], probabilities: np.ndarray) -> Reliability:
    """Bins of the rows by confidence, and the expected calibration error over them.

    Args:
        gold: (N) true classes.
        probabilities: (N, classes). A tie for the highest goes to the class with the lower number.

    Raises:
        ValueError: sizes differ, no rows, an unknown class, or a probability that is negative or not finite.
    """
    confidence, right = _confidence(gold, probabilities)
    # Rounding may leave a probability a little above 1.
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
    """Accuracy of the rows whose confidence is at least each threshold; arguments and errors as for `reliability`."""
    confidence, right = _confidence(gold, probabilities)
    kept = [confidence >= threshold for threshold in thresholds]
    return [
        Covered(threshold, int(sure.sum()), float(sure.mean()), ratio(right[sure].sum(), sure.sum()))
        for threshold, sure in zip(thresholds, kept)
    ]


def _confidence(gold: Sequence[int], probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N) confidences, and (N) whether the most probable label is the right one."""
    truth, probabilities = np.asarray(gold), np.asarray(probabilities, dtype=np.float64)
    if probabilities.ndim != 2:
        raise ValueError(f"probabilities have shape {probabilities.shape}, wanted (rows, classes)")
    check_rows(truth, probabilities, len(truth), probabilities.shape[1])
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
