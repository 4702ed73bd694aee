"""The TF-IDF baseline: TF-IDF features with logistic regression, tuned by cross-validation on the training split.

Features are words, word pairs, and character n-grams (2 to 5) within words, with sublinear TF-IDF. Cross-validation
chooses C, class weights, and whether each context has its own regression or all contexts share one regression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from qacg_models.sentiment.example import Example, Task, counts, text_fraction
from qacg_models.sentiment.metrics import judge

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Maximum numbers of rows and of characters of their texts. They limit the time of the baseline on one core to seconds,
# for very large data to a minute.
FITTED = (40_000, 3_000_000)  # of the final fit
TUNED = (2_000, 200_000)  # of cross-validation
JOINT = (1_000, 100_000)  # of data on which cross-validation also tries joint regressions, which have more weights
MOST_GRAMS = 50_000  # maximum number of word n-grams and of character n-grams; the most frequent ones are kept
FOLDS = 5
STEPS = 200  # maximum number of L-BFGS iterations


@dataclass(frozen=True)
class Setting:
    """Hyperparameters that cross-validation chooses.

    `c` is the inverse strength of the L2 penalty. With `balanced`, all classes have the same total weight. With
    `joint`, one regression with shared and per-context weights serves all contexts; else each context has its own.
    """

    c: float
    balanced: bool
    joint: bool

    def __str__(self) -> str:
        weights = "balanced classes" if self.balanced else "unweighted classes"
        return f"C = {self.c:g}, {weights}, {'one regression' if self.joint else 'one regression per context'}"


# The first setting is chosen if cross-validation is impossible; of settings with the same metric, the first is chosen.
SETTINGS = tuple(Setting(*values) for values in product((1.0, 10.0), (True, False), (False, True)))
# For cross-fitted probabilities; with class weights, the probabilities would not match the label shares of the data.
UNTUNED = Setting(1.0, False, False)


class TfidfBaseline:
    """The tuned TF-IDF baseline; the same rows give the same baseline.

    For an unknown context, the baseline predicts the label shares of the fitted rows. If each context has its own
    regression and all fitted rows of a context have the same label, this label gets probability 1.

    `fitted` has the maximum numbers of fitted rows and of their characters. Of larger data, about every n-th row of
    each context is fitted. The attribute `used` is the number of fitted rows.
    """

    def __init__(self, rows: Sequence[Example], task: Task, fitted: tuple[int, int] = FITTED):
        classes, self.task = len(task.labels), task
        with _one_blas_thread():
            self.setting, self.score = _tuned(rows, task)
            kept = _thinned(rows, _stride(rows, fitted))
            self.used = len(kept)
            self.grams = _Grams(kept)
            self.regressions = _Regressions(kept, self.grams(kept), classes, self.setting)

    def describe(self) -> str:
        """Returns one line with the setting and how it was chosen."""
        metric = self.task.selection.replace("_", " ")
        chosen = "without cross-validation" if self.score is None else f"{self.score:.1%} {metric} in cross-validation"
        return f"baseline: TF-IDF + logistic regression, {self.setting}; {chosen} on train"

    def probabilities(self, rows: Sequence[Example]) -> np.ndarray:
        """Returns the probability of each class for each row, (N, classes) float64."""
        return self.regressions(rows, self.grams(rows))


def cross_fitted(rows: Sequence[Example], task: Task) -> np.ndarray | None:
    """Returns (N, classes) probabilities from an untuned baseline that was fitted to the other folds.

    All rows of a sentence are in the same fold. With fewer than two distinct sentences, the result is None.
    """
    folds = fold_numbers(rows)
    if folds.max() < 1:
        return None
    found = np.zeros((len(rows), len(task.labels)))
    for fold in range(folds.max() + 1):
        train, held = _divided(rows, folds == fold)
        kept = _thinned(train, _stride(train, FITTED))
        grams = _Grams(kept)
        with _one_blas_thread():
            fitted = _Regressions(kept, grams(kept), len(task.labels), UNTUNED)
        found[folds == fold] = fitted(held, grams(held))
    return found


def _one_blas_thread() -> AbstractContextManager:
    """Limits BLAS to one thread inside the block.

    L-BFGS works on short vectors, and BLAS threads spin while they wait: two threads on two busy cores took 50 times as
    long as one.
    """
    import sklearn.linear_model  # noqa: F401 -- loads scipy's BLAS, since only loaded libraries are limited
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, user_api="blas")


class _Grams:
    """TF-IDF features of words and characters, fitted to the texts of rows."""

    def __init__(self, rows: Sequence[Example]):
        from sklearn.feature_extraction.text import TfidfVectorizer

        texts = list(dict.fromkeys(row.sentence for row in rows))
        kinds = {"word": ((1, 2), r"(?u)\b\w+\b"), "char_wb": ((2, 5), None)}
        self.fitted = []
        for kind, (lengths, pattern) in kinds.items():
            grams = TfidfVectorizer(
                analyzer=kind, ngram_range=lengths, token_pattern=pattern, sublinear_tf=True, max_features=MOST_GRAMS
            )
            try:
                self.fitted.append(grams.fit(texts))
            except ValueError:  # the texts have no words
                continue

    def __call__(self, rows: Sequence[Example]) -> csr_matrix:
        """Returns (N, n-grams) features of the rows."""
        from scipy.sparse import csr_matrix, hstack

        places: dict[str, int] = {}
        which = [places.setdefault(row.sentence, len(places)) for row in rows]
        parts = [grams.transform(places) for grams in self.fitted]
        return hstack(parts, format="csr")[which] if parts else csr_matrix((len(which), 0))


class _Regressions:
    """Logistic regressions with one setting; a call returns (N, classes) probabilities."""

    def __init__(self, rows: Sequence[Example], features: csr_matrix, classes: int, setting: Setting):
        labels, contexts = np.array([row.label for row in rows]), [row.context for row in rows]
        self.joint = setting.joint
        self.shares = _shares(labels, classes)
        self.numbers = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
        which = self._which(contexts)
        features = self._joined(features, which)
        self.by_context = []
        for number in range(1 if setting.joint else len(self.numbers)):
            chosen = slice(None) if setting.joint else which == number
            self.by_context.append(_fitted(features[chosen], labels[chosen], classes, setting))

    def __call__(self, rows: Sequence[Example], features: csr_matrix) -> np.ndarray:
        which = self._which([row.context for row in rows])
        features = self._joined(features, which)
        result = np.tile(self.shares, (len(rows), 1))
        for number, found in enumerate(self.by_context):
            chosen = which >= 0 if self.joint else which == number
            if isinstance(found, np.ndarray):
                result[chosen] = found
            elif chosen.any():
                result[chosen] = 0
                result[np.ix_(chosen, found.classes_)] = found.predict_proba(features[chosen])
        return result

    def _which(self, contexts: Sequence[str]) -> np.ndarray:
        return np.array([self.numbers.get(context, -1) for context in contexts])

    def _joined(self, features: csr_matrix, which: np.ndarray) -> csr_matrix:
        """Returns the features of the rows; with `joint`, also columns for each context.

        These are a copy of the features, which is 0 in rows of other contexts, and an indicator of the context.
        """
        if not self.joint:
            return features
        from scipy.sparse import csr_matrix, diags, hstack

        own = [diags((which == number).astype(float)) @ features for number in range(len(self.numbers))]
        return hstack([features, *own, csr_matrix(which[:, None] == np.arange(len(self.numbers)))], format="csr")


def _fitted(features: csr_matrix, labels: np.ndarray, classes: int, setting: Setting):
    """Returns a fitted regression; the (classes,) label shares instead if there is only one label or no feature."""
    from sklearn.linear_model import LogisticRegression

    if len(set(labels.tolist())) < 2 or not features.shape[1]:
        return _shares(labels, classes)
    weights = "balanced" if setting.balanced else None
    return LogisticRegression(C=setting.c, class_weight=weights, max_iter=STEPS, tol=1e-3).fit(features, labels)


def _tuned(rows: Sequence[Example], task: Task) -> tuple[Setting, float | None]:
    """Returns the setting with the highest metric in cross-validation over sentences, and that metric.

    The metric is None, and the setting the first allowed one, if the metric is undefined for all settings or there are
    too few sentences.
    """
    stride = _stride(rows, TUNED)
    few = [row for row in rows if stride == 1 or text_fraction(row.sentence) * stride < 1]  # whole sentences
    settings = [one for one in SETTINGS if not one.joint or _stride(rows, JOINT) <= 1]
    folds = fold_numbers(few)
    if not few or folds.max() < 1 or len(settings) < 2:
        return settings[0], None
    found = {one: np.zeros((len(few), len(task.labels))) for one in settings}
    for fold in range(folds.max() + 1):
        train, held = _divided(few, folds == fold)
        grams = _Grams(train)
        inputs, asked = grams(train), grams(held)
        for one, probabilities in found.items():
            probabilities[folds == fold] = _Regressions(train, inputs, len(task.labels), one)(held, asked)
    scores = {one: getattr(judge(task, few, probabilities), task.selection) for one, probabilities in found.items()}
    best = max(scores, key=lambda one: -math.inf if math.isnan(scores[one]) else scores[one])
    return best, None if math.isnan(scores[best]) else scores[best]


def fold_numbers(rows: Sequence[Example]) -> np.ndarray:
    """Returns (N,) numbers of folds from 0 to FOLDS - 1, in the order of `rows`.

    All rows of a sentence are in the same fold, and sentences with rare labels are distributed evenly over the folds.
    With fewer distinct sentences than FOLDS, there are as many folds as sentences.
    """
    frequency = counts(rows, "label")
    rarest: dict[str, tuple[int, int | None]] = {}  # by sentence: the row count of its rarest label, and that label
    for row in rows:
        found = frequency[row.label], row.label
        rarest[row.sentence] = min(rarest.get(row.sentence, found), found)
    dealt = sorted(rarest, key=lambda text: (rarest[text], text_fraction(text)))
    numbers = {text: place % FOLDS for place, text in enumerate(dealt)}
    return np.array([numbers[row.sentence] for row in rows])


def _divided(rows: Sequence[Example], held: np.ndarray) -> tuple[list[Example], list[Example]]:
    return [row for row, out in zip(rows, held) if not out], [row for row, out in zip(rows, held) if out]


def _stride(rows: Sequence[Example], limits: tuple[int, int]) -> float:
    """Returns the smallest stride, at least 1, with which one row in `stride` is within the limits.

    The limits are numbers of rows and of characters.
    """
    most_rows, most_characters = limits
    return max(1.0, len(rows) / most_rows, sum(len(row.sentence) for row in rows) / most_characters)


def _thinned(rows: Sequence[Example], stride: float) -> list[Example]:
    """Returns about every `stride`-th row of each context, at least one per context."""
    total, kept = counts(rows, "context"), []
    seen, taken = dict.fromkeys(total, 0), dict.fromkeys(total, 0)
    for row in rows:
        number, there = seen[row.context], total[row.context]
        if number == taken[row.context] * there // max(1, int(there / stride)):
            kept.append(row)
            taken[row.context] += 1
        seen[row.context] += 1
    return kept


def _shares(labels: Sequence[int | None] | np.ndarray, classes: int) -> np.ndarray:
    return np.bincount(labels, minlength=classes) / len(labels)
