"""Wilson's score interval of a share."""

from __future__ import annotations

from statistics import NormalDist


def wilson_interval(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Returns the confidence interval of the share count / total (Wilson, 1927).

    The interval lies in [0, 1], and is valid even if `total` is small.

    Args:
        count: number of rows with the property.
        total: number of all rows, at least 1.
        level: confidence level, between 0 and 1.

    Returns:
        The lower and the upper bound.

    Example:
        >>> [round(bound, 3) for bound in wilson_interval(8, 10)]
        [0.49, 0.943]
    """
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, spread = count / total, z * z / total
    centre = (share + spread / 2) / (1 + spread)
    half = z * (share * (1 - share) / total + spread / (4 * total)) ** 0.5 / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
