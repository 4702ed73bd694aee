"""TF-IDF with logistic regression: what a model has to beat before it is worth its minutes.

Counts of words and of pairs of neighbouring words, weighted by TF-IDF, and a logistic regression for each context, all
with scikit-learn's defaults.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from qacg_models.data.example import Example
from qacg_models.data.example_table import counts

# Of this many rows the regressions take some ten seconds of one core.
MOST_ROWS = 40_000
# L-BFGS ends well before; scikit-learn's own 100 steps are at times too few.
STEPS = 1_000


class TfidfBaseline:
    """One regression per context, fitted to labelled rows.

    A context with a single label, or without a word, has the shares of its labels; one that was never seen has those
    of all rows.

    Args:
        rows: of training.
        classes: number of labels.
        most_rows: of more rows, as many are taken in even steps, those of a context alike.

    Attributes:
        used: how many rows were taken.
    """

    def __init__(self, rows: Sequence[Example], classes: int, most_rows: int = MOST_ROWS):
        self.classes = classes
        labels = counts(rows, "label")
        self.shares = np.array([labels.get(label, 0) for label in range(classes)]) / len(rows)
        kept = _thinned(rows, max(1.0, len(rows) / most_rows))
        self.used = sum(len(found) for found in kept.values())
        self.models = {context: _Regression(found, classes) for context, found in kept.items()}

    def probabilities(self, rows: Sequence[Example]) -> np.ndarray:
        """(N, classes) float64, in the order of `rows`."""
        result = np.tile(self.shares, (len(rows), 1))
        places: dict[str, list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            places[row.context].append(index)
        for context, chosen in places.items():
            if context in self.models:
                result[chosen] = self.models[context]([rows[index].sentence for index in chosen])
        return result


class _Regression:
    """The regression of one context, from texts to (N, classes)."""

    def __init__(self, rows: Sequence[Example], classes: int):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression

        labels = [row.label for row in rows]
        self.shares, self.fitted = _shares(labels, classes), None
        words = TfidfVectorizer(ngram_range=(1, 2))
        try:
            counts = words.fit_transform([row.sentence for row in rows])
        except ValueError:  # no text has a word of two letters
            return
        if len(set(labels)) > 1:
            self.fitted = words, LogisticRegression(max_iter=STEPS).fit(counts, labels)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        if self.fitted is None:
            return np.tile(self.shares, (len(texts), 1))
        words, regression = self.fitted
        result = np.zeros((len(texts), len(self.shares)))
        result[:, regression.classes_] = regression.predict_proba(words.transform(texts))
        return result


def _thinned(rows: Sequence[Example], stride: float) -> dict[str, list[Example]]:
    """Rows of every context in even steps of `stride`, at least one; only they are in memory together."""
    total = counts(rows, "context")
    seen, kept = dict.fromkeys(total, 0), {context: [] for context in total}
    for row in rows:
        number, there, taken = seen[row.context], total[row.context], kept[row.context]
        if number == len(taken) * there // max(1, int(there / stride)):
            taken.append(row)
        seen[row.context] += 1
    return kept


def _shares(labels: Sequence[int | None], classes: int) -> np.ndarray:
    return np.bincount(labels, minlength=classes) / len(labels)
