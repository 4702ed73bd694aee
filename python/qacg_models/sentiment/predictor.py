"""Aspect sentiment of the texts of a DataFrame: `Predictor.predict(frame) -> frame`.

The command `qacg predict`, `qacg_models.AspectSentiment` and engines for many machines all call it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from typing_extensions import Self

from qacg_kernels.call.validation import check_flag
from qacg_models.errors import InputError
from qacg_models.layers.context import fold_context, has_context_layers
from qacg_models.sentiment.columns import ON_EMPTY, items, texts_of
from qacg_models.sentiment.encoding import PackingCollator, check_text
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.trained_model import (
    TrainedModel,
    in_int8,
    load_trained,
    predict_logits,
    probabilities_of,
)
from qacg_models.utils.machine import cpu_threads
from qacg_models.utils.text import split_sentences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Unit of a prediction: the whole text, truncated to the model's maximum length; each sentence; or all sentences
# combined.
BY = ("text", "sentence", "document")


def pieces(text: str, tokenizer: PreTrainedTokenizerFast, room: int) -> list[str]:
    """Returns the sentences of a text; sentences of more than `room` tokens are divided.

    Such a sentence is divided between words. A word is divided only if it has more than `room` tokens.

    Args:
        text: the text; it must have a character other than white space.
        tokenizer: the tokenizer of the model.
        room: maximum number of tokens in a piece; special tokens and the context do not count.
    """
    return [piece for sentence in split_sentences(text) for piece in _windows(sentence, tokenizer, room)]


def _windows(sentence: str, tokenizer: PreTrainedTokenizerFast, room: int) -> list[str]:
    encoded = tokenizer(sentence, add_special_tokens=False, truncation=False, return_offsets_mapping=True)
    places = encoded["offset_mapping"]
    # Tokens with the first character of a word; a character can consist of several tokens.
    begins = [number for number, (start, _) in enumerate(places) if not start or sentence[start - 1].isspace()]
    found, first = [], 0
    while len(places) - first > room:
        last = max((number for number in begins if first < number <= first + room), default=first + room)
        found.append(sentence[places[first][0] : places[last][0]].strip())
        first = last
    rest = sentence[places[first][0] if first else 0 :].strip()
    return [piece for piece in [*found, rest] if piece]


def combine(probabilities: np.ndarray, has_absent: bool) -> np.ndarray:
    """Returns the probabilities of a document, computed from the probabilities of its sentences.

    A document has an opinion if one of its sentences has an opinion: P(no opinion) is the minimum over the sentences.
    The other labels share the rest in proportion to the sum of their probabilities over the sentences. If these sums
    are all 0, the result is the first sentence's probabilities. Without a label for "no opinion", the result is the
    mean over the sentences.

    Args:
        probabilities: (S, classes) probabilities of S sentences, at least one.
        has_absent: whether class 0 means "no opinion".

    Returns:
        (classes,) probabilities.
    """
    if not has_absent:
        return probabilities.mean(axis=0)
    absent = probabilities[:, 0].min()
    opinions = probabilities[:, 1:].sum(axis=0)
    if not opinions.sum():
        return probabilities[0]
    return np.concatenate([[absent], (1 - absent) * opinions / opinions.sum()])


CERTAIN, UNCERTAIN = "certain", "uncertain"
LISTED = 10  # maximum number of rows in an error message


@dataclass(frozen=True)
class AspectPrediction:
    """The prediction for one aspect of a text.

    Attributes:
        text: the input text; with by="sentence", a sentence of the text, or a part of a sentence that is too long for
            the model.
        target: name of the target; empty for a model without targets.
        aspect: name of the aspect.
        label: the most probable label.
        probabilities: probability of each label, in the order of the model's classes; they sum to 1.

    Example:
        >>> answer = AspectPrediction("a fine soup", "", "food", "good", {"none": 0.1, "good": 0.9})
        >>> answer.to_json()["label"]
        'good'
    """

    text: str
    target: str
    aspect: str
    label: str
    probabilities: dict[str, float]

    def to_json(self) -> dict:
        """Returns the prediction as JSON types."""
        return asdict(self)


class UnusableRows(InputError):
    """Rows of a frame that cannot be predicted; the message has the index label and the reason of the first one.

    Attributes:
        index: the index labels of the frame.
        reasons: the reason for each unusable row, by its position in the frame.
    """

    def __init__(self, index: Sequence, reasons: Mapping[int, str]):
        self.index, self.reasons = index, dict(reasons)
        first, *others = sorted(reasons)
        place = "" if len(index) == 1 else f"frame: index {index[first]!r}: "
        also = ", ".join(repr(index[row]) for row in others[:LISTED])
        more = f" and {len(others) - LISTED:,} more" if len(others) > LISTED else ""
        super().__init__(f"{place}{reasons[first]}" + (f" (also unusable: index {also}{more})" if others else ""))

    def __reduce__(self) -> tuple:
        return type(self), (self.index, self.reasons)  # an engine pickles the errors of its workers


class Predictor:
    """Aspect sentiment of texts by a trained model, from a DataFrame to a DataFrame.

    A predictor opens no file, joins no process group, and can be pickled. So every engine that passes DataFrames can
    call it: with Ray Data `dataset.map_batches(predictor.predict, batch_format="pandas")`, with Spark
    `table.mapInPandas(lambda frames: map(predictor.predict, frames), schema)`.

    Args:
        trained: the model. If it has context layers and is not int8, it is changed in place: it is set to evaluation
            mode, and `fold_context` folds its context layers into the projections of attention.

    Raises:
        TypeError: `trained` is not a TrainedModel; or a context layer, or an attention projection of its encoder layer,
            has a hook or a wrapper, such as an adapter.

    Example:
        >>> from qacg_models import AspectSentiment
        >>> texts = [f"the {noun} was fine on day {day}" for day in range(8) for noun in ("soup", "bill")]
        >>> reviews = {"text": texts, "aspect": ["food", "price"] * 8, "label": ["good", "bad"] * 8}
        >>> ask = AspectSentiment.fit(reviews, start="scratch", max_steps=2, say=lambda line: None)
        >>> predictor = Predictor(ask.trained)
        >>> new = pd.DataFrame({"text": ["a fine soup", "a high bill", "fine"]}, index=["a", "b", "c"])
        >>> chunks = [new[:2], new[2:]]  # as an engine divides a table
        >>> found = pd.concat(map(predictor.predict, chunks))
        >>> found.columns.tolist(), found.index.tolist()
        (['text', 'aspect', 'label', 'p(bad)', 'p(good)'], ['a', 'a', 'b', 'b', 'c', 'c'])
    """

    def __init__(self, trained: TrainedModel):
        if not isinstance(trained, TrainedModel):
            raise TypeError(f"trained: expected a TrainedModel, got {type(trained).__name__}")
        self.trained = trained
        if has_context_layers(trained.model) and not trained.int8:
            fold_context(trained.model.eval())

    @classmethod
    def from_pretrained(
        cls,
        folder: Path | str,
        *,
        attention: str | None = None,
        device: str = "cpu",
        int8: bool = False,
        threads: int | None = None,
    ) -> Self:
        """Loads a model folder that `qacg train` wrote, and returns a predictor.

        Args:
            folder: the folder.
            attention: attention implementation; None: the implementation used in training.
            device: device of the model, such as "cuda".
            int8: use int8 matrix products on the CPU, with torchao (`sentiment/trained_model.py`).
            threads: CPU threads; 0: torch's default, or the CPU quota if that is lower; None: as in training.

        Raises:
            TypeError, ValueError: an argument has the wrong type, or `threads` is negative.
            ModelFolderError: the folder does not exist, or its files are missing, unreadable or do not fit together.
            InputError: the tokenizer cannot be loaded, or attention, device or int8 is not available.
        """
        check_flag("int8", int8)
        trained = load_trained(folder, attention, device=device, threads=threads)
        return cls(in_int8(trained) if int8 else trained)

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

    def predict(
        self,
        frame: pd.DataFrame,
        *,
        aspects: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        by: str = "text",
        batch_size: int = 64,
        min_confidence: float | None = None,
        on_empty: str = "raise",
        progress: Callable[[float], object] | None = None,
    ) -> pd.DataFrame:
        """Predicts labels and probabilities of the aspects of texts.

        Args:
            frame: the texts, in the column `text`. Optional columns: `target` and `aspect` with the only target and
                the only aspect of each row, and `id`, which is copied to the result.
            aspects: names, for rows without their own aspect; None: all aspects of the model.
            targets: names, for a model with targets and rows without their own target; None: the targets that occur in
                the text.
            by: unit of a prediction. "text": the whole text, truncated to the model's maximum length; "sentence": each
                sentence of the text; "document": the whole text, from the predictions of all its sentences
                (`pieces.combine`).
            batch_size: maximum number of pairs of a text (or sentence) and a context in one packed batch; halved when
                memory runs out.
            min_confidence: predictions with a lower probability are marked "uncertain" in the column `certainty`, the
                others "certain"; None: no such column.
            on_empty: for rows with an empty text, target or aspect: "raise" UnusableRows, or "skip" the prediction.
            progress: called after every batch with the share of the work that is done, in (0, 1]; None: a progress bar
                is shown for more than 8,192 pairs.

        Returns:
            A frame with a row for each text and context, in the order of `frame` (aspects vary fastest), and with its
            index labels. The columns are sentence (if `by` is "sentence": its number from 1), id (if `frame` has it),
            target (if the model has targets), text (or the sentence), aspect, label, certainty, and p(LABEL) for every
            label. A skipped text has one row with missing label and probabilities.

        Raises:
            TypeError: an argument or a cell has the wrong type.
            UnusableRows: a text, target or aspect cannot be used.
            InputError: another argument cannot be used, or a single row does not fit into memory.
        """
        if by not in BY:
            raise InputError(f"by: expected one of {', '.join(BY)}, got {by!r}")
        if min_confidence is not None and not 0 < min_confidence <= 1:
            raise InputError(f"min-confidence: expected a number above 0 and at most 1, got {min_confidence}")
        asked = contexts_of(self.trained, frame, aspects, targets, on_empty)
        cells = _cells(frame)
        whole = by == "text"
        parts = [[text] if whole or not pairs else self._pieces(text) for text, pairs in zip(cells["text"], asked)]
        shares = self._shares(parts, asked, batch_size, progress)
        rows: list[tuple] = []
        blocks, end = [np.empty((0, len(self.labels)))], 0
        for place, (of_text, pairs) in enumerate(zip(parts, asked)):
            start, end = end, end + len(of_text) * len(pairs)
            block = shares[start:end]
            if not pairs:
                rows.append((place, None, *(cells[name][place] or None for name in ("target", "text", "aspect"))))
                block = np.full((1, len(self.labels)), np.nan)
            elif by == "document":
                by_pair = block.reshape(len(of_text), len(pairs), -1).swapaxes(0, 1)
                block = np.array([combine(one, self.trained.task.has_absent) for one in by_pair])
                of_text = [cells["text"][place]]
            for number, part in enumerate(of_text, 1):
                rows += [(place, number, target, part, aspect) for target, aspect in pairs]
            blocks.append(block)
        probabilities = np.concatenate(blocks)
        places, sentences, about, texts, named = ([row[column] for row in rows] for column in range(5))
        best = probabilities.argmax(axis=1)
        labels = [None if number is None else self.labels[index] for number, index in zip(sentences, best)]
        columns: dict[str, Any] = {"sentence": pd.array(sentences, dtype="Int64")} if by == "sentence" else {}
        if "id" in frame:
            columns["id"] = frame["id"].take(places).tolist()
        if self.targets:
            columns["target"] = about
        columns |= {"text": texts, "aspect": named, "label": labels}
        if min_confidence is not None:
            marks = np.where(probabilities.max(axis=1) >= min_confidence, CERTAIN, UNCERTAIN)
            columns["certainty"] = [None if label is None else mark for label, mark in zip(labels, marks.tolist())]
        if not rows:  # pandas makes float64 columns of empty lists, for which its string methods raise AttributeError
            columns = {name: pd.Series([], dtype="Int64" if name == "sentence" else "str") for name in columns}
        columns |= {f"p({name})": probabilities[:, number] for number, name in enumerate(self.labels)}
        return pd.DataFrame(columns).set_axis(frame.index.take(places))

    def _pieces(self, text: str) -> list[str]:
        return pieces(text, self.trained.tokenizer, max(1, min(self.trained.text_limits.values())))

    def _shares(
        self,
        parts: list[list[str]],
        asked: list[list[tuple[str, str]]],
        batch_size: int,
        progress: Callable[[float], object] | None,
    ) -> np.ndarray:
        """Returns the probabilities of each part of a text with each of its contexts, which vary fastest."""
        trained = self.trained
        rows = [
            Example("", part, trained.task.context(target, aspect), target, aspect, None, 0)
            for of_text, pairs in zip(parts, asked)
            for part in of_text
            for target, aspect in pairs
        ]
        pack = PackingCollator(getattr(trained.model.config, "shares_texts", False))
        with cpu_threads(trained.threads):
            logits = predict_logits(
                trained.model, trained.tokenizer, rows, trained.record.max_length, batch_size, pack, progress
            )
        return probabilities_of(logits, trained.calibration.temperatures)


def contexts_of(
    trained: TrainedModel,
    frame: pd.DataFrame,
    aspects: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    on_empty: str = "raise",
) -> list[list[tuple[str, str]]]:
    """Returns the pairs of target and aspect for which each text of a frame is predicted; aspects vary fastest.

    The arguments are those of `Predictor.predict`, as are the errors.

    Returns:
        For each row of `frame` a list of pairs, which is empty for a skipped row. Without targets, the target is "".
    """
    if on_empty not in ON_EMPTY:
        raise InputError(f"on_empty: expected one of {', '.join(ON_EMPTY)}, got {on_empty!r}.")
    task, known = trained.task, tuple(trained.record.targets)
    if targets is not None and not task.has_targets:
        given = targets if isinstance(targets, str) else ", ".join(map(str, targets))
        raise InputError(
            f"targets: expected None, since the model has no targets, got {given or repr(targets)}. Omit targets."
        )
    chosen = task.aspects if aspects is None else _names("aspects", aspects, task.aspects)
    if not task.has_targets:
        targets = known
    named = None if targets is None else _names("targets", targets, known)
    words = {target: re.compile(rf"(?<!\w){re.escape(target)}(?!\w)", re.IGNORECASE) for target in known}

    def pairs_of(text: str, target: str | None, aspect: str | None) -> list[tuple[str, str]]:
        if not text.strip():
            raise InputError("text: expected a sentence, got an empty text")
        check_text("text", text)
        asked = chosen if aspect is None else _names("aspect", [aspect], task.aspects)
        if target is not None:
            about = _names("target", [target], known)
        elif named is not None:
            about = named
        else:
            about = tuple(one for one, word in words.items() if word.search(text))
            if not about:
                raise InputError(
                    f"text: expected one of the targets {', '.join(known)} in the text, got {text!r}; add a target to"
                    " the text, or pass targets"
                )
        return [(target, aspect) for target in about for aspect in asked]

    found: list[list[tuple[str, str]]] = []
    reasons: dict[int, str] = {}
    columns = _cells(frame)
    for row, cells in enumerate(zip(columns["text"], columns["target"], columns["aspect"])):
        found.append([])
        if on_empty == "skip" and "" in cells:
            continue
        try:
            found[-1] = pairs_of(*cells)
        except InputError as error:
            reasons[row] = str(error)
    if reasons:
        raise UnusableRows(frame.index.tolist(), reasons)
    return found


def examples_of(
    trained: TrainedModel,
    texts: Sequence[str],
    aspects: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
) -> list[Example]:
    """Returns an unlabelled example for each text and each of its contexts; arguments and errors of `contexts_of`."""
    asked = contexts_of(trained, pd.DataFrame({"text": list(texts)}, dtype=object), aspects, targets)
    return [
        Example("", text, trained.task.context(target, aspect), target, aspect, None, 0)
        for text, pairs in zip(texts, asked)
        for target, aspect in pairs
    ]


def as_predictions(found: pd.DataFrame, labels: Sequence[str]) -> list[AspectPrediction]:
    """Returns the rows of `Predictor.predict`, without skipped texts, as predictions of a model with these labels."""
    found = found[found["label"].notna()]
    targets = found["target"] if "target" in found else [""] * len(found)
    shares = found[[f"p({label})" for label in labels]].to_numpy().tolist()
    return [
        AspectPrediction(text, target, aspect, label, dict(zip(labels, values)))
        for text, target, aspect, label, values in zip(found["text"], targets, found["aspect"], found["label"], shares)
    ]


def _cells(frame: pd.DataFrame) -> dict[str, Sequence[Any]]:
    """Returns the texts of the columns `text`, `target` and `aspect`, empty for missing values.

    The column `target` or `aspect` is a sequence of None if the frame does not have it.

    Raises:
        TypeError: `frame` is no DataFrame, or a cell is no text, number or boolean.
        InputError: the frame has no column `text`.
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"frame: expected a pandas DataFrame, got {type(frame).__name__}")
    if "text" not in frame:
        raise InputError(f"frame: expected the column 'text', got {', '.join(map(repr, frame)) or 'no columns'}")
    index = frame.index.tolist()
    return {
        name: texts_of(f"frame: column {name!r}", frame[name], index) if name in frame else [None] * len(frame)
        for name in ("text", "target", "aspect")
    }


def _names(argument: str, names: Any, known: Sequence[str]) -> tuple[str, ...]:
    """Returns names of aspects or targets as a tuple; raises TypeError or InputError unless all are known."""
    if hasattr(names, "__array__"):  # a Series, or the array of Series.unique
        names = texts_of(argument, items(argument, names))
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument}: expected a sequence of names, got {names!r}")
    if not names or len(set(names)) < len(names):
        raise InputError(f"{argument}: expected one or more distinct names, got {list(names)}")
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        kind = f"{argument.removesuffix('s')}s"
        raise InputError(f"{argument}: expected one of the model's {kind} ({', '.join(known)}), got {unknown!r}")
    return tuple(names)
