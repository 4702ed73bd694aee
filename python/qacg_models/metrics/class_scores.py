"""Precision, recall and F1 of single classes, and the confusion matrix."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qacg_models.metrics.base import f1, ratio


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class.

    Attributes:
        precision: share of the predictions of the class that are correct; NaN if the class is never predicted.
        recall: share of the rows of the class for which the class is predicted; NaN if the class does not occur.
        f1: harmonic mean of precision and recall, 0 if no prediction is correct; NaN if the class does not occur.
        support: number of rows of the class.
    """

    precision: float
    recall: float
    f1: float
    support: int


def confusion_matrix(gold: Sequence[int], predicted: Sequence[int], classes: int) -> np.ndarray:
    """Returns (classes, classes) numbers of rows by true class (first index) and predicted class.

    Args:
        gold, predicted: (N,) classes from 0 to `classes` - 1.
        classes: number of classes.
    """
    pairs = np.asarray(gold, np.int64) * classes + np.asarray(predicted, np.int64)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def class_scores(confusion: np.ndarray) -> tuple[ClassScores, ...]:
    """Returns the scores of each class.

    Args:
        confusion: (classes, classes), as `confusion_matrix` returns it.
    """
    found = []
    for index, hits in enumerate(confusion.diagonal()):
        support, guessed = confusion[index].sum(), confusion[:, index].sum()
        precision, recall = ratio(hits, guessed), ratio(hits, support)
        harmonic = f1(precision if guessed else 0.0, recall) if support else recall
        found.append(ClassScores(precision, recall, harmonic, int(support)))
    return tuple(found)
