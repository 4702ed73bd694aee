"""`AspectSentimentClassifier`: `AspectSentiment` as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from qacg_models.data.frames import check_empty, column, index_of, is_frame, items, texts_of
from qacg_models.errors import InputError
from qacg_models.estimators.aspect_sentiment import AspectSentiment

_ADVICE = "Fill in these cells, or drop these rows of X and y."  # scikit-learn requires a prediction for every row


class AspectSentimentClassifier(ClassifierMixin, BaseEstimator):
    """A scikit-learn classifier of pairs of a text and an aspect.

    X is a DataFrame or a mapping of columns, with a row for each text and aspect, or a sequence of pairs of a text and
    an aspect; y has the labels. Drop rows with an empty text or aspect first: they raise InputError. For
    cross-validation, pass the texts as `groups` to `GroupKFold`, so that no text is in two folds.

    Args:
        text, aspect: names of the columns in a DataFrame or mapping X.
        start: "minilm", "scratch" (random weights) or the path of a checkpoint; None: MiniLM if its package is
            installed, the texts are English and no option excludes it, otherwise random weights. A model size,
            `tokenizer`, `max_length` above 512 and `protocol="released"` exclude it.
        options: other options of `qacg train` by name, such as {"epochs": 4}; None: no other options.
        random_state: seed of initial weights, order of rows and dropout, unless `options` has `seed`.
        verbose: whether `fit` prints log lines and progress.

    Attributes:
        classes_: the labels, in the order of the columns of `predict_proba`.
        sentiment_: the fitted `AspectSentiment`, which has `save_pretrained` and `push_to_hub`.

    Example:
        >>> texts = [f"the {noun} was {word} on day {day}" for day in range(8) for noun, word in
        ...          (("soup", "fine"), ("bill", "high"))]
        >>> pairs = list(zip(texts, ["food", "price"] * 8))
        >>> classifier = AspectSentimentClassifier(start="scratch", options={"max_steps": 2})
        >>> classifier.fit(pairs, ["good", "bad"] * 8).classes_.tolist()
        ['bad', 'good']
    """

    def __init__(
        self,
        *,
        text: str = "text",
        aspect: str = "aspect",
        start: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: int = 0,
        verbose: bool = False,
    ):
        self.text = text
        self.aspect = aspect
        self.start = start
        self.options = options
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags

    def fit(self, X: Any, y: Any = None) -> AspectSentimentClassifier:
        """Trains a model as `qacg train` does; a part of the sentences (`dev_fraction`) becomes dev.

        Args:
            X: a DataFrame or a mapping of columns with N rows, or a sequence of N pairs of a text and an aspect.
            y: (N,) labels.

        Returns:
            The estimator itself.

        Raises:
            TypeError: X is neither a DataFrame, a mapping nor a sequence; a cell or label is no text, number or
                boolean; an option is unknown or applies to files only; or `options` is no mapping.
            InputError: y is None or not as long as X, X has rows that are no pairs, a cell is empty, or the options or
                the data cannot be used.
        """
        if y is None:
            raise InputError("y: expected labels, got None. This estimator requires y to be passed.")
        if self.options is not None and not isinstance(self.options, Mapping):
            raise TypeError(f"options: expected a mapping or None, got {type(self.options).__name__}")
        texts, aspects = self._pairs(X)
        labels = np.asarray(y)
        if labels.shape != (len(texts),):
            raise InputError(f"y: expected {len(texts)} labels, one for each row of X, got the shape {labels.shape}.")
        check_empty({"y": texts_of("y", labels)}, range(len(labels)), _ADVICE)
        try:
            classes, places = np.unique(labels, return_inverse=True)
        except TypeError as error:
            raise TypeError(f"y: expected labels of one type, got several ({error}). Convert them to texts.") from None
        label_names = texts_of("classes_", classes)  # equal labels such as 1 and True have one name
        frame = {"text": texts, "aspect": aspects, "label": [label_names[place] for place in places]}
        options = {"seed": self.random_state, **(self.options or {})}
        say = print if self.verbose else _ignore  # `_ignore` also hides the progress bar
        self.sentiment_ = AspectSentiment.fit(frame, start=self.start, say=say, **options)
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predicts the label of each row.

        Args:
            X: a DataFrame or a mapping of columns with N rows, or a sequence of N pairs of a text and an aspect.

        Returns:
            (N,) labels, of the dtype of the labels in training.

        Raises:
            NotFittedError: `fit` has not been called.
            TypeError: X is neither a DataFrame, a mapping nor a sequence, or a cell is no text, number or boolean.
            InputError: X has rows that are no pairs, a cell is empty, or an aspect was not in the training rows.
        """
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predicts the probabilities of the labels for each row.

        Args:
            X: a DataFrame or a mapping of columns with N rows, or a sequence of N pairs of a text and an aspect.

        Returns:
            (N, classes) float64 probabilities, in the order of `classes_`.

        Raises:
            NotFittedError: `fit` has not been called.
            TypeError: X is neither a DataFrame, a mapping nor a sequence, or a cell is no text, number or boolean.
            InputError: X has rows that are no pairs, a cell is empty, or an aspect was not in the training rows.
        """
        check_is_fitted(self)
        texts, aspects = self._pairs(X)
        found = self.sentiment_.predictor.predict(pd.DataFrame({"text": texts, "aspect": aspects}))
        return found[[f"p({name})" for name in texts_of("classes_", self.classes_)]].to_numpy()

    def _pairs(self, X: Any) -> tuple[list[str], list[str]]:
        """Returns the texts and the aspects of X; raises TypeError or InputError for an unsupported form or cell."""
        if is_frame(X):
            found = {name: column(X, getattr(self, name), name) for name in ("text", "aspect")}
        else:
            rows = items("X", X, "a pandas DataFrame, a mapping, or a sequence of pairs of text and aspect")
            if any(not _is_pair(row) for row in rows):
                raise InputError(
                    "X: expected a DataFrame, a mapping, or a sequence of pairs of text and aspect, got another value"
                    f" of type {type(X).__name__}."
                )
            places = {"text": 0, "aspect": 1}
            found = {name: texts_of(f"X: {name}", [row[place] for row in rows]) for name, place in places.items()}
        check_empty(found, index_of(X, len(found["text"])), _ADVICE)
        return found["text"], found["aspect"]


def _is_pair(row: object) -> bool:
    return isinstance(row, Sequence | np.ndarray) and not isinstance(row, str | bytes) and len(row) == 2


def _ignore(line: str) -> None:
    """Drops a log line."""
