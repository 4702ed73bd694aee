"""SentiHood's five metrics, and the majority row that every table of results shows beside them.

All of them look at groups: the rows of one sentence and one target, one row per aspect. Rows may come in any
order; groups are found by id. Definitions, as the field computes them:

- strict accuracy: share of groups in which every aspect has its right label;
- aspect macro-F1: precision and recall of "has an opinion" are taken in each group that truly has one,
  averaged over these groups, and F1 is the harmonic mean of the two averages (not the average of F1);
- aspect AUC: ROC AUC of "no opinion" by its probability, per aspect, averaged over aspects;
- sentiment accuracy: over rows that truly have an opinion, Negative against Positive with None put aside;
- sentiment AUC: ROC AUC of that choice, per aspect, averaged over aspects.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

NONE, POSITIVE, NEGATIVE = 0, 1, 2

TITLES = {
    "strict_accuracy": "strict accuracy",
    "aspect_macro_f1": "aspect macro-F1",
    "aspect_auc": "aspect AUC",
    "sentiment_accuracy": "sentiment accuracy",
    "sentiment_auc": "sentiment AUC",
}


@dataclass(frozen=True)
class SentiHoodMetrics:
    """Five shares between 0 and 1. A figure without a single case to judge is NaN.

    Attributes:
        undefined: what could not be taken, such as `"sentiment_auc: safety"` (only one class occurs there);
            the AUC of the other aspects is averaged without it.
    """

    strict_accuracy: float
    aspect_macro_f1: float
    aspect_auc: float
    sentiment_accuracy: float
    sentiment_auc: float
    undefined: tuple[str, ...] = ()

    def to_json(self) -> dict:
        """As plain types for a JSON file; NaN, which JSON does not have, becomes None."""
        values = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(self).items()
        }
        return values | {"undefined": list(self.undefined)}

    @classmethod
    def from_json(cls, values: dict) -> SentiHoodMetrics:
        """Inverse of `to_json`."""
        figures = {name: math.nan if values[name] is None else values[name] for name in TITLES}
        return cls(**figures, undefined=tuple(values["undefined"]))


def sentihood_metrics(
    groups: Sequence[Hashable], aspects: Sequence[str], gold: Sequence[int], probabilities: np.ndarray
) -> SentiHoodMetrics:
    """The five metrics.

    Args:
        groups: (N,) group of each row; rows of one group need not be neighbours.
        aspects: (N,) aspect of each row; every group holds every aspect once.
        gold: (N,) true classes: 0 None, 1 Positive, 2 Negative.
        probabilities: (N, 3) class probabilities, or any scores >= 0 that rank as they do.
            A tie for the highest goes to the class with the lower number.

    Raises:
        ValueError: sizes differ, no rows, a class that is not 0, 1 or 2, a probability that is negative or
            not finite, or a group that lacks or repeats an aspect.
    """
    gold, probabilities = np.asarray(gold), np.asarray(probabilities, dtype=np.float64)
    names, table = _group_table(groups, aspects)
    _check(table, gold, probabilities)
    truth = gold[table]  # (groups, aspects)
    guess = probabilities.argmax(axis=1)[table]
    undefined: list[str] = []

    absence = probabilities[:, NONE][table]
    aspect_auc, one_class = _mean_auc(names, truth == NONE, absence, np.ones_like(truth, bool))
    undefined += [f"aspect_auc: {name}" for name in one_class]

    opinion = truth != NONE
    polar = probabilities[:, POSITIVE] + probabilities[:, NEGATIVE]
    # A model that is entirely sure of None leaves 0/0; it then has no preference.
    safe = np.where(polar > 0, polar, 1.0)
    negative = np.where(polar > 0, probabilities[:, NEGATIVE] / safe, 0.5)[table]
    sentiment_auc, one_class = _mean_auc(names, truth == NEGATIVE, negative, opinion)
    undefined += [f"sentiment_auc: {name}" for name in one_class]
    right = ((negative > 0.5) == (truth == NEGATIVE))[opinion]
    if not right.size:
        undefined.append("sentiment_accuracy")

    return SentiHoodMetrics(
        strict_accuracy=float((truth == guess).all(axis=1).mean()),
        aspect_macro_f1=_aspect_macro_f1(opinion, guess != NONE, undefined),
        aspect_auc=aspect_auc,
        sentiment_accuracy=float(right.mean()) if right.size else math.nan,
        sentiment_auc=sentiment_auc,
        undefined=tuple(undefined),
    )


def majority_probabilities(label_shares: Sequence[float], rows: int) -> np.ndarray:
    """(rows, classes) probabilities of a baseline that knows only the label shares of training."""
    return np.tile(np.asarray(label_shares, dtype=np.float64), (rows, 1))


def _group_table(groups: Sequence[Hashable], aspects: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Aspect names, and the row number of each (group, aspect)."""
    if len(groups) != len(aspects):
        raise ValueError(f"{len(groups)} groups but {len(aspects)} aspects")
    if not len(groups):
        raise ValueError("no rows to judge")
    names = sorted(set(aspects))
    column = {name: index for index, name in enumerate(names)}
    found: dict[Hashable, list[int]] = {}
    for row, (group, aspect) in enumerate(zip(groups, aspects)):
        cells = found.setdefault(group, [-1] * len(names))
        if cells[column[aspect]] != -1:
            raise ValueError(f"group {group!r} has two rows for the aspect {aspect!r}")
        cells[column[aspect]] = row
    table = np.array(list(found.values()))
    if (table < 0).any():
        group, aspect = np.argwhere(table < 0)[0]
        raise ValueError(f"group {list(found)[group]!r} has no row for the aspect {names[aspect]!r}")
    return names, table


def _check(table: np.ndarray, gold: np.ndarray, probabilities: np.ndarray) -> None:
    rows = table.size
    if gold.shape != (rows,) or probabilities.shape != (rows, 3):
        raise ValueError(
            f"{rows} rows want gold ({rows},) and probabilities ({rows}, 3);"
            f" got {gold.shape} and {probabilities.shape}"
        )
    if not np.isin(gold, (NONE, POSITIVE, NEGATIVE)).all():
        raise ValueError("gold holds a class that is not 0, 1 or 2")
    if not np.isfinite(probabilities).all() or (probabilities < 0).any():
        row = int(np.argwhere(~np.isfinite(probabilities) | (probabilities < 0))[0][0])
        values = probabilities[row].tolist()
        raise ValueError(f"row {row} has a probability that is negative or not finite: {values}")


def _aspect_macro_f1(truth: np.ndarray, guess: np.ndarray, undefined: list[str]) -> float:
    judged = truth.any(axis=1)
    if not judged.any():
        undefined.append("aspect_macro_f1")
        return math.nan
    truth, guess = truth[judged], guess[judged]
    hits = (truth & guess).sum(axis=1)
    # fsum: the last digit, too, is the same in any order of groups.
    precision = math.fsum(hits / np.maximum(guess.sum(axis=1), 1)) / len(hits)
    recall = math.fsum(hits / truth.sum(axis=1)) / len(hits)
    return float(2 * precision * recall / (precision + recall)) if hits.any() else 0.0


def _mean_auc(
    names: list[str], truth: np.ndarray, score: np.ndarray, keep: np.ndarray
) -> tuple[float, list[str]]:
    """Mean over aspects of the ROC AUC of `score` for `truth`, and the aspects with one class only.

    All arrays are (groups, aspects); `keep` says which cells take part.
    """
    from sklearn.metrics import roc_auc_score

    values, one_class = [], []
    for column, name in enumerate(names):
        kept = keep[:, column]
        classes = truth[kept, column]
        if classes.all() or not classes.any():
            one_class.append(name)
        else:
            values.append(roc_auc_score(classes, score[kept, column]))
    return (float(np.mean(values)) if values else math.nan), one_class
