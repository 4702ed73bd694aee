"""Compares contestants, or variants of one, on a data set: means over seeds, and differences with intervals."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from qacg_models.data import load_data
from qacg_models.metrics import METRIC_CLASSES, Metrics, judge_for, majority_probabilities
from qacg_models.metrics.bootstrap import resampled
from qacg_models.metrics.tfidf import TfidfBaseline

from benchmarks.evidence.results import Result
from benchmarks.evidence.study import BERT, CHECKED, CONTESTANTS, DATA, HYPOTHESES, TRIED_ON

TFIDF, MAJORITY = "tfidf", "majority"
BASELINES = {TFIDF: "TF-IDF, logistic regression", MAJORITY: "majority"}


# Variants of QACG-BERT (CHECKED) with other weights of the quasi-attention map, and their names in tables.
VARIANTS = {"lambda-0": "no quasi-attention map", CHECKED: "as published"} | {
    name: one.title for name, one in HYPOTHESES.items()
}
Judge = Callable[[np.ndarray | None], Metrics]
LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """A metric of one model minus that of another.

    Attributes:
        mean: difference of the means over all seeds, on the whole split.
        low, high: quantiles of the bootstrap's repeats: bounds of the central interval of level LEVEL.
        above: share of the repeats in which the difference is above 0.
    """

    mean: float
    low: float
    high: float
    above: float


class Draws:
    """Metrics of every training run on resampled sentences (paired bootstrap, Efron 1979).

    Each repeat draws the same sentences for all models, since a sentence may be hard for all models. For each model it
    also draws seeds, with replacement and independently of the other models: as many as the model has.

    Args:
        judges: for each model one function per seed. The function takes a weight for each example, or None for equal
            weights, and returns the metrics.
        sentences: the sentence of each example.
        metrics: names of the metrics.
        repeats: number of draws.
        seed: seed of the draws.
    """

    def __init__(
        self,
        judges: dict[str, Sequence[Judge]],
        sentences: Sequence[Hashable],
        metrics: Sequence[str],
        repeats: int = 1000,
        seed: int = 0,
    ):
        self.metrics, self.repeats, generator = tuple(metrics), repeats, np.random.default_rng(seed)
        weights = list(resampled(sentences, repeats, generator))
        # Arrays by model: (seeds, metrics) on the whole split, and (repeats, seeds, metrics) on drawn sentences.
        self.whole = {name: np.array([self._values(judge, None) for judge in each]) for name, each in judges.items()}
        self.drawn = {
            name: np.array([[self._values(judge, weight) for judge in each] for weight in weights])
            for name, each in judges.items()
        }
        # The drawn seeds by model, (repeats, seeds), which all comparisons share.
        self.seeds = {name: generator.integers(len(each), size=(repeats, len(each))) for name, each in judges.items()}

    def _values(self, judge: Judge, weights: np.ndarray | None) -> list[float]:
        metrics = judge(weights)
        return [getattr(metrics, name) for name in self.metrics]

    def mean(self, model: str, metric: str) -> float:
        """The mean of a metric over the seeds of a model, on the whole split."""
        return float(self.whole[model][:, self.metrics.index(metric)].mean())

    def deviation(self, model: str, metric: str) -> float:
        """The standard deviation of a metric over the seeds of a model; NaN for a single seed."""
        values = self.whole[model][:, self.metrics.index(metric)]
        return float(values.std(ddof=1)) if len(values) > 1 else float("nan")

    def difference(self, model: str, other: str, metric: str) -> Difference:
        """The metric of `model` minus that of `other`, with its interval."""
        found = np.sort(self._means(model, metric) - self._means(other, metric))
        low, high = np.quantile(found, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        mean = self.mean(model, metric) - self.mean(other, metric)
        return Difference(mean, float(low), float(high), float((found > 0).mean()))

    def _means(self, model: str, metric: str) -> np.ndarray:
        """The mean of a metric over the drawn seeds of a model, (repeats)."""
        values = self.drawn[model][..., self.metrics.index(metric)]
        return np.take_along_axis(values, self.seeds[model], axis=1).mean(axis=1)


@dataclass(frozen=True)
class Comparison:
    """The results of all models on a data set.

    Attributes:
        data: name of the data set.
        titles: titles of the metrics in tables, by metric.
        names: titles of the models in tables, by model: contestants or variants, then baselines.
        results: training runs that were evaluated on test, by contestant or variant.
        draws: the bootstrap over all models.
        compared: pairs of models that are compared.
    """

    data: str
    titles: Mapping[str, str]
    names: Mapping[str, str]
    results: Mapping[str, Sequence[Result]]
    draws: Draws
    compared: Sequence[tuple[str, str]]

    @property
    def compared_models(self) -> list[tuple[str, str]]:
        """The compared pairs without a baseline."""
        return [pair for pair in self.compared if not BASELINES.keys() & {*pair}]


def compare(data: str, results: Sequence[Result], folder: Path) -> Comparison | None:
    """Compares all contestants on a data set; returns None if none of them has results on its test split.

    Args:
        data: name of the data set.
        results: results of all training runs.
        folder: folder of the published data sets.

    Raises:
        DataError: the data set does not exist.
        ValueError: the scores of a result do not have the shape of the test split.
    """
    evaluated = [one for one in results if one.trial.data == data and one.scores is not None and not one.trial.check]
    if not evaluated:
        return None
    own = {name: [one for one in evaluated if one.trial.contestant == name] for name in CONTESTANTS}
    own = {name: sorted(found, key=lambda one: one.trial.seed) for name, found in own.items() if found}
    compared = [(name, BERT) for name in (*own, *BASELINES) if name != BERT and BERT in own]
    alike = [(one.settings_of, name) for name, one in CONTESTANTS.items() if one.settings_of is not None]
    compared += [pair for pair in alike if {*pair} <= own.keys()]
    names = {name: one.title for name, one in CONTESTANTS.items()} | BASELINES
    return _compared(data, folder, names, own, compared)


def compare_variants(results: Sequence[Result], folder: Path) -> Comparison | None:
    """Compares the variants of QACG-BERT (CHECKED), over the seeds for which every variant has a result.

    Returns None if no seed has results of all variants.

    Args:
        results: results of all training runs.
        folder: folder of the published data sets.

    Raises:
        DataError: the data set does not exist.
        ValueError: the scores of a result do not have the shape of the test split.
    """
    found: dict[str, dict[int, Result]] = {name: {} for name in VARIANTS}
    for one in results:
        variant = one.trial.check or one.trial.contestant
        if variant in found and one.trial.data == TRIED_ON and one.scores is not None:
            found[variant][one.trial.seed] = one
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in found.values())))
    if not seeds:
        return None
    own = {name: [by_seed[seed] for seed in seeds] for name, by_seed in found.items()}
    return _compared(TRIED_ON, folder, VARIANTS, own, [(name, CHECKED) for name in own if name != CHECKED])


def _compared(
    data: str,
    folder: Path,
    names: Mapping[str, str],
    results: Mapping[str, Sequence[Result]],
    compared: Sequence[tuple[str, str]],
) -> Comparison:
    dataset = load_data(folder / DATA[data].name, ("train", "test"), DATA[data].options)
    train, examples = dataset.splits["train"], dataset.splits["test"]
    classes = len(dataset.task.labels)
    probabilities: dict[str, list[np.ndarray]] = {}
    if BASELINES.keys() <= names.keys():
        shares = np.bincount([row.label for row in train], minlength=classes) / len(train)
        probabilities[TFIDF] = [TfidfBaseline(train, dataset.task).probabilities(examples)]
        probabilities[MAJORITY] = [majority_probabilities(shares.tolist(), len(examples))]
    for name, found in results.items():
        for one in found:
            if one.scores.shape != (len(examples), classes):
                raise ValueError(
                    f"{one.trial.name}: expected scores of shape {(len(examples), classes)} for the test split in "
                    f"{folder / data}, got {one.scores.shape}"
                )
        probabilities[name] = [np.exp(one.scores.astype(np.float64)) for one in found]
    judges = {name: [judge_for(dataset.task, examples, one) for one in each] for name, each in probabilities.items()}
    titles = METRIC_CLASSES[dataset.task.metrics].TITLES
    draws = Draws(judges, [row.sentence for row in examples], list(titles))
    return Comparison(data, titles, names, results, draws, compared)
