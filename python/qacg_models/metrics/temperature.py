"""The temperatures of a model's probabilities, softmax(logits / T), fitted on rows that it was not trained on.

Guo et al. (2017, arXiv:1706.04599) choose T by the likelihood of held-out labels. With b = 1 / T that is to minimise

    L(b) = sum over rows of  logsumexp(b z) - b z_gold,

which is convex in b, with the slope  E_p[z] - z_gold  and the curvature  Var_p[z]  of each row, p = softmax(b z). By
itself it has no minimum where every row is right (b grows without end, and probabilities become 0 and 1), or where
the wrong label wins on average (b falls to 0 and below). So b has a Gamma distribution beforehand, whose mode is 1 / M,
with M = 1 for the model as it is:

    L(b) + K (M b - log b),    slope + K (M - 1 / b),    curvature + K / b^2.

That is strictly convex and grows without bounds towards 0 and towards infinity, so it has one minimum, finite and above
0, for any finite logits. K = 25 weighs as much as the rows of a few sentences: it keeps few rows near b = 1 / M and is
nothing beside thousands.

One temperature is not enough where a model is right about one label and too sure of another, as it comes to be when
rare labels are drawn more often than they occur: on SentiHood's test the expected calibration error was 8.7 points, 4.6
with one temperature and 1.9 with one for each label that wins. What divides all logits of a row changes no label; the
order of rows by a probability, and so an AUC, it may change. The
temperature of a label is fitted in the same way to the rows on which it wins, with M that of all rows together, so
that a label with few rows has the common one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qacg_models.metrics.base import check_rows

PRIOR = 25.0  # K above
# A fit beyond them is held there: probabilities that are all but equal, or all but 0 and 1, are a fault of the model.
LEAST, MOST = 0.05, 20.0


def fit_temperatures(gold: Sequence[int], logits: np.ndarray) -> tuple[float, ...]:
    """The temperature of each label, for rows whose highest logit is that label's.

    Args and errors: as for `fit_temperature`.
    """
    common = fit_temperature(gold, logits)
    truth, scores = np.asarray(gold), np.asarray(logits, dtype=np.float64)
    winners = scores.argmax(axis=1)
    found = []
    for label in range(scores.shape[1]):
        rows = winners == label
        found.append(fit_temperature(truth[rows], scores[rows], common) if rows.any() else common)
    return tuple(found)


def fit_temperature(gold: Sequence[int], logits: np.ndarray, mode: float = 1.0) -> float:
    """The temperature with the highest posterior density, from LEAST to MOST.

    Newton's method, kept inside a bracket of the root of the slope: a step that leaves it is replaced by its middle.

    Args:
        gold: (N) true classes.
        logits: (N, classes), finite.
        mode: the most probable temperature beforehand.

    Raises:
        ValueError: sizes differ, no rows, an unknown class, or a logit that is not finite.
    """
    truth, scores = np.asarray(gold), np.asarray(logits, dtype=np.float64)
    if scores.ndim != 2:
        raise ValueError(f"logits have shape {scores.shape}, wanted (rows, classes)")
    if not np.isfinite(scores).all():
        raise ValueError(f"row {int(np.argwhere(~np.isfinite(scores))[0][0])} has a logit that is not finite")
    scores = scores - scores.max(axis=1, keepdims=True)  # what all classes share changes nothing
    check_rows(truth, np.exp(scores), len(truth), scores.shape[1])
    wanted = scores[np.arange(len(truth)), truth]

    def slope_and_curvature(inverse: float) -> tuple[float, float]:
        shares = np.exp(inverse * scores)
        shares /= shares.sum(axis=1, keepdims=True)
        mean = (shares * scores).sum(axis=1)
        spread = (shares * (scores - mean[:, None]) ** 2).sum(axis=1)
        slope = (mean - wanted).sum() + PRIOR * (mode - 1 / inverse)
        return float(slope), float(spread.sum() + PRIOR / inverse**2)

    low, high = 1 / MOST, 1 / LEAST
    if slope_and_curvature(low)[0] >= 0:
        return MOST
    if slope_and_curvature(high)[0] <= 0:
        return LEAST
    inverse = 1 / mode
    while high - low > 1e-12 * high:
        slope, curvature = slope_and_curvature(inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        following = inverse - slope / curvature
        if abs(following - inverse) <= 1e-12 * inverse:
            break
        inverse = following if low < following < high else (low + high) / 2
    return 1 / inverse
