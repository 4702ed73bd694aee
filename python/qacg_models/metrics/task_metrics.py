"""The metrics of a task, and the majority baseline."""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from qacg_models.data.example import Example
from qacg_models.data.task import Task
from qacg_models.metrics.base import Metrics
from qacg_models.metrics.classification import ClassificationJudge, ClassificationMetrics
from qacg_models.metrics.semeval import SemEvalJudge, SemEvalMetrics
from qacg_models.metrics.sentihood import SentiHoodJudge, SentiHoodMetrics

METRIC_CLASSES: dict[str, type[Metrics]] = {
    "sentihood": SentiHoodMetrics,
    "semeval": SemEvalMetrics,
    "classification": ClassificationMetrics,
}


def titles_of(names: Collection[str]) -> dict[str, str]:
    """Returns titles by metric name, for the first class in METRIC_CLASSES whose metrics all occur in `names`.

    Args:
        names: names of metrics, such as the keys of stored metrics; other names are ignored.

    Raises:
        ValueError: there is no such class.
    """
    for kind in METRIC_CLASSES.values():
        if kind.TITLES.keys() <= set(names):
            return kind.TITLES
    raise ValueError(f"names: expected all metrics of one of {', '.join(METRIC_CLASSES)}, got {sorted(names)}")


def judge_for(task: Task, rows: Sequence[Example], probabilities: np.ndarray) -> Callable[[np.ndarray | None], Metrics]:
    """Returns a function that computes the task's metrics for given weights of the rows.

    Its argument is (N,) weights, equal for all rows of a group (a sentence and target); None: each row counts once.

    Args:
        task: the task, which selects the metrics.
        rows: labelled rows.
        probabilities: (N, classes), in the order of `rows`.

    Raises:
        ValueError: `probabilities` has another number of rows, there are no rows, a label is not a class, a probability
            is negative or not finite, or a group (a sentence and target) lacks or repeats an aspect although the
            metrics require each aspect once.
    """
    groups, gold = [row.group for row in rows], [row.label for row in rows]
    aspects = [row.aspect for row in rows]
    if task.metrics == "sentihood":
        return SentiHoodJudge(groups, aspects, gold, probabilities)
    if task.metrics == "semeval":
        return SemEvalJudge(groups, aspects, gold, probabilities)
    return ClassificationJudge(groups, gold, probabilities, has_absent=task.has_absent)


def judge(task: Task, rows: Sequence[Example], probabilities: np.ndarray) -> Metrics:
    """Returns the task's metrics; every row counts once.

    Args:
        task: the task, which selects the metrics.
        rows: labelled rows.
        probabilities: (N, classes), in the order of `rows`.

    Raises:
        ValueError: `probabilities` has another number of rows, there are no rows, a label is not a class, a probability
            is negative or not finite, or a group (a sentence and target) lacks or repeats an aspect although the
            metrics require each aspect once.
    """
    return judge_for(task, rows, probabilities)(None)


def majority_probabilities(label_shares: Sequence[float], rows: int) -> np.ndarray:
    """Returns (rows, classes) float64 probabilities of the majority baseline: the same label shares for every row.

    Args:
        label_shares: (classes,) share of each label in the training split.
        rows: number of rows.
    """
    return np.tile(np.asarray(label_shares, dtype=np.float64), (rows, 1))
