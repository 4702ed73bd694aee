"""Differences between models with intervals over test sentences and over seeds.

Paired bootstrap (Efron, 1979): in every repeat the same sentences are drawn for all models, since a sentence that is
hard for one is hard for another, and for each model as many of its seeds as it has, since those of two models have
nothing in common. What is compared are means over the seeds drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from qacg_models.metrics import Metrics

Judge = Callable[[np.ndarray | None], Metrics]
LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """How much higher a metric of one model is than that of another.

    Attributes:
        mean: of all seeds on the whole split.
        low, high: the interval that holds LEVEL of the repeats.
        above: share of the repeats in which it is above 0.
    """

    mean: float
    low: float
    high: float
    above: float


class Draws:
    """Metrics of every training on drawn sentences, of which all comparisons are made.

    Args:
        judges: by model, what takes weights of the rows for each of its seeds.
        sentences: (N) sentence of each row.
        metrics: names of the metrics.
        repeats: how often sentences are drawn.
        seed: of the draws.
    """

    def __init__(
        self,
        judges: dict[str, Sequence[Judge]],
        sentences: Sequence[Hashable],
        metrics: Sequence[str],
        repeats: int = 1000,
        seed: int = 0,
    ):
        numbers: dict[Hashable, int] = {}
        sentence = np.array([numbers.setdefault(text, len(numbers)) for text in sentences])
        self.metrics, self.repeats, generator = tuple(metrics), repeats, np.random.default_rng(seed)
        picks = [generator.integers(len(numbers), size=len(numbers)) for _ in range(repeats)]
        weights = [np.bincount(drawn, minlength=len(numbers))[sentence].astype(np.float64) for drawn in picks]
        # (seeds, metrics) on the whole split, and (repeats, seeds, metrics) on drawn sentences
        self.whole = {name: np.array([self._taken(judge, None) for judge in of]) for name, of in judges.items()}
        self.drawn = {
            name: np.array([[self._taken(judge, weight) for judge in of] for weight in weights])
            for name, of in judges.items()
        }
        # (repeats, seeds) which of its seeds a model has in each repeat, whomever it is compared with
        self.seeds = {name: generator.integers(len(of), size=(repeats, len(of))) for name, of in judges.items()}

    def _taken(self, judge: Judge, weights: np.ndarray | None) -> list[float]:
        metrics = judge(weights)
        return [getattr(metrics, name) for name in self.metrics]

    def mean(self, model: str, metric: str) -> float:
        """Over the seeds of a model."""
        return float(self.whole[model][:, self.metrics.index(metric)].mean())

    def deviation(self, model: str, metric: str) -> float:
        """Standard deviation over the seeds of a model; NaN for a single one."""
        values = self.whole[model][:, self.metrics.index(metric)]
        return float(values.std(ddof=1)) if len(values) > 1 else float("nan")

    def difference(self, model: str, other: str, metric: str) -> Difference:
        """How much higher the metric of `model` is than that of `other`."""
        found = np.sort(self._means(model, metric) - self._means(other, metric))
        low, high = np.quantile(found, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        mean = self.mean(model, metric) - self.mean(other, metric)
        return Difference(mean, float(low), float(high), float((found > 0).mean()))

    def _means(self, model: str, metric: str) -> np.ndarray:
        """(repeats) means over the seeds that are drawn."""
        values = self.drawn[model][..., self.metrics.index(metric)]
        return np.take_along_axis(values, self.seeds[model], axis=1).mean(axis=1)
