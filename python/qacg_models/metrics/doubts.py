"""Doubtful labels, found with the probabilities of models that were fitted to other rows (cross-fitting).

The rule follows confident learning (Northcutt, Jiang and Chuang, "Confident Learning", 2021). The threshold of a
label is its mean probability over the rows that have this label. A row's label is doubtful if another label reaches its
own threshold, and is more probable than the row's label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qacg_models.data.example import Example
from qacg_models.data.task import Task
from qacg_models.metrics.tfidf import cross_fitted


@dataclass(frozen=True)
class Doubt:
    """A row whose label may be wrong.

    Attributes:
        row: index of the row.
        suggested: class index of the more probable label.
        probability: probability of the suggested label.
        given: probability of the label that the row has.
    """

    row: int
    suggested: int
    probability: float
    given: float


def find_doubts(labels: Sequence[int], probabilities: np.ndarray) -> list[Doubt]:
    """Returns the rows with doubtful labels; the largest difference `probability` - `given` comes first.

    Args:
        labels: (N,) class indices.
        probabilities: (N, classes) probabilities, each row from a model that was not fitted to it.

    Raises:
        ValueError: `labels` and `probabilities` differ in N, or a label is not a class.

    Example:
        >>> shares = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.95, 0.05]])
        >>> [(one.row, one.suggested) for one in find_doubts([0, 0, 1, 1, 1], shares)]
        [(4, 0)]
    """
    rows, classes = probabilities.shape
    if len(labels) != rows:
        raise ValueError(f"labels: expected {rows} class indices, one for each row of probabilities, got {len(labels)}")
    if rows == 0:
        return []
    given = np.asarray(labels)
    if given.min() < 0 or given.max() >= classes:
        raise ValueError(f"labels: expected class indices from 0 to {classes - 1}, got {given.min()} to {given.max()}")
    typical = np.array(
        [probabilities[given == index, index].mean() if (given == index).any() else np.inf for index in range(classes)]
    )
    own = probabilities[np.arange(rows), given]
    others = np.where(probabilities >= typical, probabilities, -1.0)
    others[np.arange(rows), given] = -1.0
    best = others.argmax(axis=1)
    found = others[np.arange(rows), best]
    doubtful = np.flatnonzero((found > own) & (found >= 0))
    order = doubtful[np.argsort((own - found)[doubtful], kind="stable")]
    return [Doubt(int(row), int(best[row]), float(found[row]), float(own[row])) for row in order]


def baseline_doubts(rows: Sequence[Example], task: Task) -> list[Doubt]:
    """Returns the doubtful labels that the TF-IDF baseline finds; none for fewer than two distinct sentences.

    Args:
        rows: labelled rows.
        task: labels and aspects of the rows.
    """
    probabilities = cross_fitted(rows, task) if rows else None
    return [] if probabilities is None else find_doubts([row.label or 0 for row in rows], probabilities)
