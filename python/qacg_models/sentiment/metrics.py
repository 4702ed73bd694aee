"""Metrics of aspect-based sentiment, their confidence intervals, scores of single classes, and the majority baseline.

A judge is a callable that computes the metrics of fixed rows for given weights of the rows, as the bootstrap requires.

| metrics | group of rows | source |
|---|---|---|
| SentiHood | a sentence and target, with a row per aspect | Saeidi et al., 2016 |
| SemEval | a sentence, with a row per category | SemEval-2014, task 4 |
| classification | a sentence, or a sentence and target, with any rows | the user's data |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from qacg_models.sentiment.example import Example, Task
from qacg_models.utils.fields import convert_json_fields


@dataclass(frozen=True)
class Metrics:
    """Base class of sets of metrics: shares between 0 and 1, or NaN if a metric is undefined for the rows.

    `TITLES` has the title of each metric in tables, in their order. `undefined` has the names of undefined metrics. A
    metric that is a mean over aspects has no entry for the mean, but an entry "metric: aspect" for each aspect whose
    value is undefined, such as "sentiment_auc: safety".
    """

    TITLES: ClassVar[dict[str, str]]

    @classmethod
    def of(cls, **values: float) -> Metrics:
        """Returns metrics with these values; those that are NaN are undefined."""
        return cls(**values, undefined=tuple(name for name, value in values.items() if math.isnan(value)))

    def to_json(self) -> dict:
        """Returns the metrics and `undefined` as JSON types, with NaN as None."""
        return plain(self) | {"undefined": list(self.undefined)}

    @classmethod
    def from_json(cls, content: object, path: str = "") -> Metrics:
        """Returns the metrics that `to_json` converted; `path` is their position in the file, for errors."""
        kinds = dict.fromkeys(cls.TITLES, float | None) | {"undefined": tuple[str, ...]}
        values = convert_json_fields(kinds, content, path)
        return cls(**{name: math.nan if value is None else value for name, value in values.items()})


def plain(record: object) -> dict[str, object]:
    """Returns the fields of a dataclass, with NaN as None."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in asdict(record).items()  # type: ignore[call-overload]
    }


def ratio(part: float, whole: float) -> float:
    """Returns part / whole; NaN if `whole` is 0."""
    return float(part / whole) if whole else math.nan


def f1(precision: float, recall: float) -> float:
    """Returns the harmonic mean of precision and recall; 0 if both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def check_finite(name: str, values: np.ndarray) -> None:
    """Raises ValueError unless all (N, classes) values are finite, as those of a model that diverged are not."""
    if (rows := ~np.isfinite(values).all(axis=1)).any():
        row = int(rows.argmax())
        raise ValueError(f"{name}: expected finite numbers, got {values[row].tolist()} in row {row}")


def group_table(groups: Sequence[Hashable], aspects: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Arranges (N,) groups and aspects of rows as a table; raises ValueError if a group lacks or repeats an aspect.

    Returns the aspect names in alphabetical order, and a (groups, aspects) array of row indices, with groups in the
    order of their first rows.
    """
    names, column = np.unique(aspects, return_inverse=True)
    number = _numbers(groups)
    table = np.full((number.max() + 1, len(names)), -1)
    table[number, column] = np.arange(len(groups))
    if table.size != len(groups) or table.min() < 0:
        raise ValueError(
            f"rows: expected one row per group and aspect, {table.size} in all, got {len(groups)}; one is missing or"
            " repeated"
        )
    return names.tolist(), table


NONE = 0  # class index of "no opinion"


@dataclass(frozen=True)
class SentiHoodMetrics(Metrics):
    """SentiHood's five metrics, shares between 0 and 1. A group is the rows of one sentence and target.

    - strict accuracy: share of groups in which every aspect is correct;
    - aspect macro-F1: precision and recall of "the row has an opinion" in each group with an opinion, averaged over
      these groups; F1 is the harmonic mean of the two averages (not the average of F1);
    - aspect AUC: ROC AUC of P(None) for "the row has no opinion", per aspect, averaged over aspects;
    - sentiment accuracy: accuracy of the more probable of Positive and Negative, over rows that have an opinion;
    - sentiment AUC: ROC AUC of P(Negative) / (P(Positive) + P(Negative)) for "the row is Negative", over rows that have
      an opinion, per aspect, averaged over aspects.

    An AUC is averaged over the aspects for which it is defined, and NaN without such an aspect. Aspect macro-F1 and
    sentiment accuracy are NaN if no row has an opinion.
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
    """Area under the ROC curve: P(score of a positive > score of a negative) + P(equal) / 2, for (N,) rows."""

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
    """A callable that computes SentiHood's metrics of fixed rows for given weights of the rows.

    Every group has every aspect once, and the classes are 0 None, 1 Positive, 2 Negative. `probabilities` can also be
    scores >= 0 with the same ranking. Of tied classes the lowest index is predicted.
    """

    def __init__(
        self, groups: Sequence[Hashable], aspects: Sequence[str], gold: Sequence[int], probabilities: np.ndarray
    ):
        gold, probabilities = np.asarray(gold), np.asarray(probabilities, dtype=np.float64)
        self.names, self.table = group_table(groups, aspects)
        check_finite("probabilities", probabilities)
        truth = gold[self.table]  # (groups, aspects)
        guess = probabilities.argmax(axis=1)[self.table]
        self.right = (truth == guess).all(axis=1)
        self.opinion = truth != NONE
        self.hits = (self.opinion & (guess != NONE)).sum(axis=1)
        # A group without predicted opinions has a precision of 0.
        self.precision = self.hits / np.maximum((guess != NONE).sum(axis=1), 1)
        self.recall = self.hits / np.maximum(self.opinion.sum(axis=1), 1)
        positive, negative = 1, 2
        polar = probabilities[:, positive] + probabilities[:, negative]
        # Where P(None) = 1, the ratio is 0/0; 0.5 then means no preference.
        safe = np.where(polar > 0, polar, 1.0)
        against = np.where(polar > 0, probabilities[:, negative] / safe, 0.5)[self.table]
        self.right_sentiment = (against > 0.5) == (truth == negative)
        absence = probabilities[:, NONE][self.table]
        self.aspect_aucs = [Auc(truth[:, i] == NONE, absence[:, i]) for i in range(len(self.names))]
        self.sentiment_aucs = [
            Auc(truth[kept, i] == negative, against[kept, i]) for i, kept in enumerate(self.opinion.T)
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
        """Returns the mean over the aspects whose value is defined; adds the others to `undefined`."""
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
        return float(f1(precision, recall))


# Classes by k of a k-class accuracy: 1 positive, 2 neutral, 3 negative, 4 conflict.
SEMEVAL_CLASSES = {4: (1, 2, 3, 4), 3: (1, 2, 3), 2: (1, 3)}


@dataclass(frozen=True)
class SemEvalMetrics(Metrics):
    """Metrics of SemEval-2014's aspect categories and their sentiment, six shares between 0 and 1.

    - aspect precision, recall and F1 of "the sentence is about this category", over all sentences and categories;
    - k-class accuracy: accuracy over the rows whose true label is one of k labels. The prediction is the most probable
      of these k labels: positive and negative for k = 2; also neutral for k = 3; also conflict for k = 4.

    Aspect precision and F1 are 0 if no category is predicted. The aspect metrics are NaN if every true label is "none".
    A k-class accuracy is NaN if no true label is among the k labels.
    """

    TITLES: ClassVar = {
        "aspect_precision": "aspect P",
        "aspect_recall": "aspect R",
        "aspect_f1": "aspect F1",
        "accuracy_4": "4-class accuracy",
        "accuracy_3": "3-class accuracy",
        "accuracy_2": "2-class accuracy",
    }

    aspect_precision: float
    aspect_recall: float
    aspect_f1: float
    accuracy_4: float
    accuracy_3: float
    accuracy_2: float
    undefined: tuple[str, ...] = ()


class SemEvalJudge:
    """A callable that computes SemEval's metrics of fixed rows for given weights of the rows.

    The arguments are those of SentiHoodJudge, with sentences as groups and the classes 0 none, 1 positive, 2 neutral, 3
    negative, 4 conflict.
    """

    def __init__(
        self, groups: Sequence[Hashable], aspects: Sequence[str], gold: Sequence[int], probabilities: np.ndarray
    ):
        self.gold, probabilities = np.asarray(gold), np.asarray(probabilities, dtype=np.float64)
        group_table(groups, aspects)  # raises the error of rows for which the metrics are not defined
        check_finite("probabilities", probabilities)
        self.named, self.guessed = self.gold != NONE, probabilities.argmax(axis=1) != NONE
        self.right = {
            count: np.asarray(classes)[probabilities[:, classes].argmax(axis=1)] == self.gold
            for count, classes in SEMEVAL_CLASSES.items()
        }

    def __call__(self, weights: np.ndarray | None = None) -> Metrics:
        """Returns the metrics for (N,) weights; None: each row counts once."""
        weight = np.ones(len(self.gold)) if weights is None else np.asarray(weights, np.float64)
        hits, named, guessed = (
            (chosen * weight).sum() for chosen in (self.named & self.guessed, self.named, self.guessed)
        )
        recall = ratio(hits, named)
        precision = math.nan if math.isnan(recall) else ratio(hits, guessed) if guessed else 0.0
        accuracies = {}
        for count, classes in SEMEVAL_CLASSES.items():
            judged = np.isin(self.gold, classes) * weight
            accuracies[f"accuracy_{count}"] = ratio((self.right[count] * judged).sum(), judged.sum())
        return SemEvalMetrics.of(
            aspect_precision=precision,
            aspect_recall=recall,
            aspect_f1=math.nan if math.isnan(recall) else f1(precision, recall),
            **accuracies,
        )


@dataclass(frozen=True)
class ClassificationMetrics(Metrics):
    """Metrics of the user's labels and aspects, five shares between 0 and 1.

    - accuracy: share of rows that are predicted correctly;
    - macro-F1: mean F1 of the labels that occur as true labels, as `f1_score(gold, predicted, labels=np.unique(gold),
      average="macro")` of scikit-learn; labels that are only predicted are not averaged;
    - strict accuracy: share of groups (a sentence, or a sentence and a target) whose rows are all predicted correctly;
    - aspect F1: F1 of "the row has an opinion" over all rows;
    - sentiment accuracy: accuracy of the most probable label other than "no opinion", over the rows with an opinion.

    The last two are NaN if no label means "no opinion" or no row has an opinion.
    """

    TITLES: ClassVar = {
        "accuracy": "accuracy",
        "macro_f1": "macro-F1",
        "strict_accuracy": "strict accuracy",
        "aspect_f1": "aspect F1",
        "sentiment_accuracy": "sentiment accuracy",
    }

    accuracy: float
    macro_f1: float
    strict_accuracy: float
    aspect_f1: float
    sentiment_accuracy: float
    undefined: tuple[str, ...] = ()


class ClassificationJudge:
    """A callable that computes ClassificationMetrics of fixed rows for given weights of the rows.

    The arguments are those of SentiHoodJudge, with any rows in a group and any number of classes; `has_absent` is
    whether class 0 means "no opinion".
    """

    def __init__(self, groups: Sequence[Hashable], gold: Sequence[int], probabilities: np.ndarray, *, has_absent: bool):
        self.gold, probabilities = np.asarray(gold), np.asarray(probabilities, dtype=np.float64)
        check_finite("probabilities", probabilities)
        self.guess, self.has_absent = probabilities.argmax(axis=1), has_absent
        self.right = self.guess == self.gold
        group = _numbers(groups)
        self.right_group = np.bincount(group, ~self.right) == 0
        self.first = np.unique(group, return_index=True)[1]
        if has_absent:
            self.right_opinion = probabilities[:, 1:].argmax(axis=1) + 1 == self.gold

    def __call__(self, weights: np.ndarray | None = None) -> Metrics:
        """Returns the metrics for (N,) weights, which must be equal within a group; None: each row counts once."""
        weight = np.ones(len(self.gold)) if weights is None else np.asarray(weights, np.float64)
        by_group = weight[self.first]
        scores = [
            self._f1(self.gold == label, self.guess == label, weight) for label in np.unique(self.gold[weight > 0])
        ]
        aspect_f1 = sentiment = math.nan
        if self.has_absent:
            opinion = (self.gold != 0) * weight
            aspect_f1 = self._f1(self.gold != 0, self.guess != 0, weight) if opinion.any() else math.nan
            sentiment = ratio((self.right_opinion * opinion).sum(), opinion.sum())
        return ClassificationMetrics.of(
            accuracy=ratio((self.right * weight).sum(), weight.sum()),
            macro_f1=math.fsum(scores) / len(scores) if scores else math.nan,
            strict_accuracy=ratio((self.right_group * by_group).sum(), by_group.sum()),
            aspect_f1=aspect_f1,
            sentiment_accuracy=sentiment,
        )

    @staticmethod
    def _f1(truth: np.ndarray, guess: np.ndarray, weight: np.ndarray) -> float:
        hits, true, guessed = ((chosen * weight).sum() for chosen in (truth & guess, truth, guess))
        return float(f1(hits / guessed if guessed else 0.0, hits / true))


METRIC_CLASSES: dict[str, type[Metrics]] = {
    "sentihood": SentiHoodMetrics,
    "semeval": SemEvalMetrics,
    "classification": ClassificationMetrics,
}


def judge_for(task: Task, rows: Sequence[Example], probabilities: np.ndarray) -> Callable[[np.ndarray | None], Metrics]:
    """Returns a function that computes the task's metrics for given weights of labelled rows.

    Its argument is (N,) weights, equal for all rows of a group (a sentence and target); None: each row counts once.
    Probabilities that are not finite raise ValueError.
    """
    groups, gold = [row.group for row in rows], [row.label for row in rows]
    if task.metrics == "classification":
        return ClassificationJudge(groups, gold, probabilities, has_absent=task.has_absent)
    kind = SentiHoodJudge if task.metrics == "sentihood" else SemEvalJudge
    return kind(groups, [row.aspect for row in rows], gold, probabilities)


def judge(task: Task, rows: Sequence[Example], probabilities: np.ndarray) -> Metrics:
    """Returns the task's metrics; every row counts once."""
    return judge_for(task, rows, probabilities)(None)


def majority_probabilities(label_shares: Sequence[float], rows: int) -> np.ndarray:
    """Returns (rows, classes) probabilities of the majority baseline: the label shares of train for every row."""
    return np.tile(np.asarray(label_shares, dtype=np.float64), (rows, 1))


def intervals(
    judge: Callable[[np.ndarray], Metrics], sentences: Sequence[Hashable], *, repeats: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Returns 95 % intervals of every metric by the bootstrap over sentences (Efron, 1979): percentiles of samples.

    Sentences, not rows, are drawn with replacement: rows of a sentence are dependent, and drawing rows would make the
    intervals too narrow. A sample in which a metric is undefined is left out of the interval of that metric; both ends
    are NaN if there is no other. `judge` computes the metrics for (N,) weights of the rows.
    """
    sentence, generator = _numbers(sentences), np.random.default_rng(seed)
    count = int(sentence.max()) + 1
    drawn: dict[str, list[float]] = {}
    for _ in range(repeats):
        times = np.bincount(generator.integers(count, size=count), minlength=count)  # by sentence
        metrics = judge(times[sentence].astype(np.float64))
        for name in metrics.TITLES:
            drawn.setdefault(name, []).append(getattr(metrics, name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a metric that is undefined in all samples gives NaN
        bounds = {name: np.nanpercentile(values, (2.5, 97.5)) for name, values in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def _numbers(values: Sequence[Hashable]) -> np.ndarray:
    """Returns (N,) numbers of the distinct values, in the order of their first occurrence."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values])


def wilson_interval(count: int, total: int) -> tuple[float, float]:
    """Returns the 95 % confidence interval of the share count / total, for a total of at least 1 (Wilson, 1927).

    The interval lies in [0, 1], and is valid even if `total` is small.
    """
    from scipy.stats import binomtest

    found = binomtest(count, total).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class, with `support`, its number of rows.

    Precision is NaN if the class is never predicted. Recall and F1 are NaN if the class does not occur; F1 is 0 if no
    prediction is correct.
    """

    precision: float
    recall: float
    f1: float
    support: int


def confusion_matrix(gold: Sequence[int], predicted: Sequence[int], classes: int) -> np.ndarray:
    """Returns (classes, classes) numbers of rows by true class (first index) and predicted class."""
    pairs = np.asarray(gold, np.int64) * classes + np.asarray(predicted, np.int64)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def class_scores(confusion: np.ndarray) -> tuple[ClassScores, ...]:
    """Returns the scores of each class from a `confusion_matrix`."""
    found = []
    for index, hits in enumerate(confusion.diagonal()):
        support, guessed = confusion[index].sum(), confusion[:, index].sum()
        precision, recall = ratio(hits, guessed), ratio(hits, support)
        harmonic = f1(precision if guessed else 0.0, recall) if support else recall
        found.append(ClassScores(precision, recall, harmonic, int(support)))
    return tuple(found)
