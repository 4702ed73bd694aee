"""Confidence intervals by the bootstrap over sentences (Efron, 1979): percentiles of resampled metrics."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from qacg_models.errors import InputError
from qacg_models.metrics.base import Metrics


def intervals(
    judge: Callable[[np.ndarray], Metrics],
    sentences: Sequence[Hashable],
    *,
    repeats: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Returns percentile bootstrap intervals of every metric.

    Sentences, not rows, are drawn with replacement: rows of a sentence are dependent, and drawing rows would make the
    intervals too narrow. A sample in which a metric is undefined is left out of the interval of that metric.

    Args:
        judge: function that computes the metrics for (N,) weights of the rows.
        sentences: (N,) sentence of each row, at least one.
        repeats: number of samples.
        level: confidence level, such as 0.95.
        seed: seed of the samples.

    Returns:
        Lower and upper bound by metric; NaN for a metric that is undefined in every sample.

    Raises:
        InputError: `repeats` is below 2, or `level` is outside (0, 1).
    """
    if repeats < 2 or not 0 < level < 1:
        raise InputError(
            f"bootstrap: expected at least 2 repeats and a level between 0 and 1, got {repeats} and {level}"
        )
    drawn: dict[str, list[float]] = {}
    for weights in resampled(sentences, repeats, np.random.default_rng(seed)):
        metrics = judge(weights)
        for name in metrics.TITLES:
            drawn.setdefault(name, []).append(getattr(metrics, name))
    tail = 100 * (1 - level) / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a metric that is undefined in all samples gives NaN
        bounds = {name: np.nanpercentile(values, (tail, 100 - tail)) for name, values in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def resampled(sentences: Sequence[Hashable], repeats: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Yields (N,) float64 weights of the rows for each sample.

    The weight of a row is the number of times that its sentence was drawn. Each sample draws, with replacement, as many
    sentences as there are distinct sentences.

    Args:
        sentences: (N,) sentence of each row, at least one.
        repeats: number of samples.
        generator: random generator, whose state changes.
    """
    numbers: dict[Hashable, int] = {}
    sentence = np.array([numbers.setdefault(text, len(numbers)) for text in sentences])
    for _ in range(repeats):
        picks = generator.integers(len(numbers), size=len(numbers))
        yield np.bincount(picks, minlength=len(numbers))[sentence].astype(np.float64)
