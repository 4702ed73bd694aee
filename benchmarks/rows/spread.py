"""Numbers as rows hold them: the quartiles of repeats, and no more digits than were measured."""

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Of a list of numbers."""

    median: float
    least: float
    q1: float
    q3: float

    @classmethod
    def of(cls, numbers: list[float]) -> "Spread":
        if len(numbers) == 1:
            return cls(*numbers * 4)
        q1, median, q3 = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(median, min(numbers), q1, q3)


def figure(x: float) -> float:
    """Five significant digits: more than any of these measurements has."""
    return float(f"{x:.5g}")
