"""Training and prediction for DataFrames (`AspectSentiment`) and scikit-learn (`AspectSentimentClassifier`)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from typing_extensions import Self

from qacg_models.errors import InputError
from qacg_models.sentiment.columns import check_empty, column, index_of, is_frame, items, raw_column, texts_of
from qacg_models.sentiment.dataset import describe, load_frame, load_frames
from qacg_models.sentiment.metrics import Metrics
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from qacg_models.sentiment.predictor import AspectPrediction, Predictor, as_predictions, check_kept
from qacg_models.sentiment.record import RUN_NAME
from qacg_models.sentiment.trained_model import TrainedModel, load_trained, save_trained
from qacg_models.utils.progress import hidden_bars

# Options that apply to files only.
_OF_FILES = ("format", "delimiter", "quoting", "encoding", "skip_empty")
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
# The files of a model folder that are downloaded from the hub.
_DOWNLOADED = ("*.json", "*.safetensors", "README.md", RUN_NAME)


class AspectSentiment:
    """Aspect sentiment of texts: trains on a DataFrame, predicts, evaluates, saves and uploads.

    `ask(texts, aspects=...)` returns `AspectPrediction`s; `ask.predict(frame)` returns a DataFrame.

    Args:
        trained: the model. If it has context layers and is in float32, it is changed in place: it is set to evaluation
            mode, and `fold_context` folds its context layers into the projections of attention.

    Raises:
        TypeError: `trained` is not a TrainedModel; or a context layer, or an attention projection of its encoder layer,
            has a hook or a wrapper, such as an adapter.

    Example:
        >>> reviews = {
        ...     "text": [f"the {noun} was {word} on day {day}" for day in range(8) for noun, word in
        ...              (("soup", "fine"), ("bill", "high"))],
        ...     "aspect": ["food", "price"] * 8,
        ...     "label": ["good", "bad"] * 8,
        ... }
        >>> ask = AspectSentiment.fit(reviews, start="scratch", max_steps=2, say=lambda line: None)
        >>> ask.labels, [(one.aspect, one.text) for one in ask("the soup was fine", aspects=["food"])]
        (('bad', 'good'), [('food', 'the soup was fine')])
    """

    def __init__(self, trained: TrainedModel):
        self.predictor, self.trained = Predictor(trained), trained

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels, in the order of the classes."""
        return self.trained.task.labels

    @property
    def aspects(self) -> tuple[str, ...]:
        """Names of the aspects."""
        return self.trained.task.aspects

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets; an empty tuple for a model without targets."""
        return self.trained.record.targets if self.trained.task.has_targets else ()

    @classmethod
    def fit(
        cls,
        frame: Any,
        *,
        text: str = "text",
        aspect: str = "aspect",
        label: str = "label",
        start: str | Path | None = None,
        dev: Any = None,
        output: str | Path | None = None,
        on_empty: str = "raise",
        say: Callable[[str], None] = print,
        **options: Any,
    ) -> Self:
        """Trains a model as `qacg train` does.

        Args:
            frame: a pandas DataFrame, or a mapping of column names to sequences, with a row for each text and aspect.
                A wide frame (`wide=True` or `aspect_columns`) instead has a row for each text, and a column of labels
                for each aspect. A column `split` marks rows as train, dev or test.
            text: name of the column of texts.
            aspect: name of the column of aspects.
            label: name of the column of labels.
            start: "minilm", "scratch" (random weights) or the path of a checkpoint; None: MiniLM if its package is
                installed, the texts are English and no option excludes it, otherwise random weights. A model size,
                `tokenizer`, `max_length` above 512 and `protocol="released"` exclude it.
            dev: a frame with the rows of dev; None: the rows that the column `split` marks as dev. Without such rows,
                the share `dev_fraction` (0.1 by default) of the sentences becomes dev.
            output: folder to create for the model; None: keep the model in memory only.
            on_empty: for rows with an empty cell (NaN, None or blank text): "raise" InputError, or "skip" the rows. In
                a wide frame, an empty label skips only its aspect, not the row.
            say: called with each log line. The progress bar on stderr is shown only if `say` is `print`.
            **options: other options of `qacg train` by name, such as `epochs=4`, `aspect_columns=["food", "price"]`,
                `id_column` or `absent_label`.

        Returns:
            The trained model, ready to predict.

        Raises:
            TypeError: a frame is neither a DataFrame nor a mapping, a cell is no text, number or boolean, or an option
                is unknown or applies to files only.
            InputError: a column is missing, a cell is empty and `on_empty` is "raise", `output` exists, or the options
                or the data cannot be used.
        """
        from qacg_models.sentiment.training import train

        training, reading = _divided(options)
        names = {"text_column": text, "aspect_column": aspect, "label_column": label}
        chosen = TrainingOptions(from_checkpoint=None if start is None else str(start), **training)
        frames = {"train": frame} if dev is None else {"train": frame, "dev": dev}
        with nullcontext() if say is print else hidden_bars(), TemporaryDirectory() as folder:
            dataset = load_frames(frames, DataOptions(**names | reading), on_empty, say)
            say("\n".join(describe(dataset)))
            return cls(train(dataset, Path(folder) / "model" if output is None else output, chosen, say=say))

    @classmethod
    def from_pretrained(
        cls,
        folder: Path | str,
        *,
        attention: str | None = None,
        device: str = "cpu",
        precision: str = "float32",
        threads: int | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
    ) -> Self:
        """Loads a folder that `qacg train` or `save_pretrained` wrote, or a model of the Hugging Face hub.

        Args:
            folder: the folder, or the name of a repository of the hub, such as "me/hotel-reviews", if there is no such
                folder.
            attention: attention implementation; None: the implementation used in training.
            device: device of the model, such as "cuda".
            precision: of the encoder: "float32"; "bfloat16"; "int8", on the CPU, with torchao; or "auto", which is
                bfloat16 if the CPU has its instructions and at the end of training at least 99.9 % of the labels on dev
                were equal in both precisions. Only a model in float32 can be saved.
            threads: CPU threads; 0: torch's default, or the CPU quota if that is lower; None: as in training.
            revision: branch, tag or commit of the hub's repository; None: its main branch.
            token: access token of the hub; True or None: the stored token; False: no token.

        Returns:
            The model, ready to predict.

        Raises:
            TypeError: `folder` or `threads` has the wrong type.
            ValueError: `threads` is negative, or `precision` is unknown.
            ModelFolderError: the folder does not exist, or its files are missing, unreadable or do not fit together.
            InputError: the tokenizer cannot be loaded; attention, device or precision is not available; or the
                download failed.
        """
        if not isinstance(folder, str | os.PathLike):
            raise TypeError(f"folder: expected a path or the name of a repository, got {type(folder).__name__}")
        if not Path(folder).exists() and _HUB_NAME.fullmatch(str(folder)):
            from huggingface_hub import snapshot_download

            try:
                folder = snapshot_download(str(folder), revision=revision, token=token, allow_patterns=[*_DOWNLOADED])
            except (OSError, ValueError) as error:
                reason = str(error).strip().partition("\n")[0]
                raise InputError(f"{folder}: no such folder, and the download from the hub failed: {reason}") from None
        return cls(load_trained(folder, attention, device=device, precision=precision, threads=threads))

    def __call__(
        self,
        texts: str | Sequence[str],
        aspects: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        batch_size: int = 512,
        by: str = "text",
    ) -> list[AspectPrediction] | list[list[AspectPrediction]]:
        """Predicts a text, or each of several texts; the arguments and errors are those of `predict`.

        Returns:
            For one text, a list with a prediction for each pair of target and aspect. With by="sentence", the list has
            all predictions for the first sentence, then all for the next sentence, and so on. For a sequence of texts,
            a list with one such list for each text.
        """
        return self.predict(texts, aspects, targets, batch_size=batch_size, by=by)

    def predict(
        self,
        texts: Any,
        aspects: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        *,
        text: str | None = None,
        aspect: str | None = None,
        target: str | None = None,
        by: str = "text",
        batch_size: int = 512,
        on_empty: str = "raise",
        keep: Sequence[str] = (),
        progress: bool = False,
    ) -> Any:
        """Predicts labels and probabilities of the aspects of texts.

        Args:
            texts: a DataFrame or a mapping of columns, a Series, a sequence or array of texts, or one text.
            aspects: names, as a sequence or an array; None: all aspects of the model.
            targets: names, for a model with targets; None: the targets that occur in the text.
            text: name of the text column of a frame; None: the name in the training data.
            aspect: name of the column with one aspect for each row of a frame; None: `aspects` for every row.
            target: name of the column with one target for each row of a frame; None: `targets` for every row.
            by: unit of a prediction. "text": the whole text, truncated to the model's maximum length; "sentence": each
                sentence of the text; "document": the whole text, from the predictions of all its sentences.
            batch_size: maximum number of rows in one batch, whose number of tokens is limited too. A row is a text, or
                a sentence of it, with one aspect (and one target).
            on_empty: for an empty text, aspect or target: "raise" InputError, or "skip" the row, which then has no
                prediction. If `texts` is a str, an empty text always raises InputError.
            keep: names of other columns of the frame, such as an id, that are copied to the result.
            progress: whether to show a progress bar on stderr, if there are more than 8,192 predictions.

        Returns:
            For a frame (a DataFrame or a mapping of columns) or a Series: a DataFrame with a row for every prediction.
            Each row has the index label of its text. The columns are sentence (if `by` is "sentence"), those of `keep`
            with their dtypes, target (if the model has targets), text, aspect, label, and p(LABEL) for every label. A
            skipped text has one row with the label None and probabilities NaN.
            For other inputs: the same lists as from `ask(texts)`, and an empty list for a skipped text.

        Raises:
            TypeError: an argument has the wrong type, or a cell is no text, number or boolean.
            InputError: a text, a column or another argument cannot be used, and the message names it.
        """
        for argument, name, given in (("aspect", aspect, aspects), ("target", target, targets)):
            if name is not None and given is not None:
                raise InputError(f"{argument}, {argument}s: expected one of them, got both. Omit {argument}s.")
        if target is not None and not self.targets:
            raise InputError(f"target: expected none, because this model has no targets, got {target}. Omit it.")
        if is_frame(texts):
            text = self.trained.record.data_options.text_column if text is None else text
            names = {"text": text, "aspect": aspect, "target": target}
            columns = {argument: column(texts, name, argument) for argument, name in names.items() if name is not None}
            frame = pd.DataFrame(columns, index=getattr(texts, "index", None), dtype=object)
            check_kept(keep, self.trained.task)
            for name in keep:
                frame[name] = raw_column(texts, name, "keep")
        else:
            expected = "a pandas DataFrame or Series, a sequence of texts or a text"
            cells = [texts] if isinstance(texts, str) else items("texts", texts, expected)
            if keep or any(name is not None for name in (text, aspect, target)):
                raise InputError(
                    "text, aspect, target, keep: expected no column names for texts without columns. Omit them."
                )
            index = texts.index if isinstance(texts, pd.Series) else pd.RangeIndex(len(cells))
            frame = pd.DataFrame({"text": texts_of("texts", cells, index.tolist())}, index=index, dtype=object)
        on_empty = "raise" if isinstance(texts, str) else on_empty
        found = self.predictor.predict(
            frame,
            aspects=aspects,
            targets=targets,
            by=by,
            batch_size=batch_size,
            on_empty=on_empty,
            keep=keep,
            progress=progress,
        )
        if is_frame(texts) or isinstance(texts, pd.Series):
            return found
        answers: list[list[AspectPrediction]] = [[] for _ in range(len(frame))]
        for place, answer in zip(found.index[found["label"].notna()], as_predictions(found)):
            answers[place].append(answer)
        return answers[0] if isinstance(texts, str) else answers

    def evaluate(
        self,
        frame: Any,
        *,
        text: str | None = None,
        aspect: str | None = None,
        label: str | None = None,
        on_empty: str = "raise",
    ) -> Metrics:
        """Returns the metrics of the model on labelled rows, equal to those of `qacg evaluate`.

        Args:
            frame: a pandas DataFrame, or a mapping of column names to sequences, with a row for each text and aspect.
                For a model trained on a wide frame: a row for each text, and a column of labels for each aspect.
            text: name of the column of texts; None: the name in the training data.
            aspect: name of the column of aspects; None: the name in the training data. Not for a wide frame.
            label: name of the column of labels; None: the name in the training data. Not for a wide frame.
            on_empty: for rows with NaN, None or an empty text in one of these columns: "raise" InputError, or "skip"
                the rows. In a wide frame, an empty label skips only its aspect, not the row.

        Raises:
            TypeError: `frame` is neither a DataFrame nor a mapping, or a cell is no text, number or boolean.
            InputError: a column is missing, a cell is empty and `on_empty` is "raise", or the model does not have a
                label or an aspect of the rows.
            ValueError: the metrics require each aspect once for every text, and a text lacks or repeats one.
        """
        given = {"text_column": text, "aspect_column": aspect, "label_column": label}
        given = {name: value for name, value in given.items() if value is not None}
        trained, options = self.trained, self.trained.record.data_options.overridden(given)
        return trained.evaluate(load_frame(frame, trained.task, options, on_empty, contexts=trained.contexts))

    def save_pretrained(self, folder: Path | str) -> None:
        """Writes a model folder, which `from_pretrained` and the commands read; an existing model folder is replaced.

        Raises:
            InputError: the model is not in float32, `folder` has other files, or a file cannot be written.
        """
        save_trained(self.trained, folder)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        commit_message: str = "Upload AspectSentiment",
    ) -> str:
        """Uploads the model to the Hugging Face hub, with a model card.

        `from_pretrained(repo_id)` loads the model. The card names neither the source of the data nor a licence; add
        both.

        Args:
            repo_id: name of the repository, which is created if it does not exist.
            private: whether a new repository is private; None: the default of the hub.
            token: access token of the hub; True or None: the stored token; False: no token.
            commit_message: message of the commit.

        Returns:
            The URL of the commit.

        Raises:
            InputError: the model is not in float32, or a temporary file cannot be written.
            Exception: the error of huggingface_hub, unchanged.
        """
        from huggingface_hub import HfApi

        with TemporaryDirectory() as folder:
            self.save_pretrained(f"{folder}/model")
            hub = HfApi(token=token)
            name = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
            return str(hub.upload_folder(repo_id=name, folder_path=f"{folder}/model", commit_message=commit_message))


def _divided(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of training and those of reading a frame, by name; raises TypeError for any other option."""
    own = {"from_checkpoint": "start", "text_column": "text", "aspect_column": "aspect", "label_column": "label"}
    training = {field.name for field in fields(TrainingOptions)} - own.keys()
    reading = {field.name for field in fields(DataOptions)} - own.keys() - {*_OF_FILES}
    for name in options:
        if name not in training | reading:
            instead = f"the argument {own[name]}" if name in own else "an option of qacg train for frames"
            known = ", ".join(sorted(training | reading))
            raise TypeError(f"{name}: expected {instead}, got the option {name}. Available: {known}.")
    of_training = {name: value for name, value in options.items() if name in training}
    return of_training, {name: value for name, value in options.items() if name in reading}


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
        say = print if self.verbose else lambda line: None  # only `print` shows the progress bar
        self.sentiment_ = AspectSentiment.fit(frame, start=self.start, say=say, **options)
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Returns (N,) labels of N rows X, of the dtype of the labels in training; errors as in `predict_proba`."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns (N, classes) float64 probabilities of N rows X, in the order of `classes_`.

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
            if not all(_is_pair(row) for row in rows):
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
