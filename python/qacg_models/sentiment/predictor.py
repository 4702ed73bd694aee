"""Aspect sentiment of the texts of a DataFrame, `Predictor.predict(frame) -> frame`, and the lines of its file.

The command `qacg predict` and `qacg_models.AspectSentiment` call it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from qacg_models.errors import InputError
from qacg_models.layers.context import fold_context, has_context_layers
from qacg_models.sentiment.columns import ON_EMPTY, items, texts_of
from qacg_models.sentiment.encoding import check_text
from qacg_models.sentiment.example import Example, Task, blocks
from qacg_models.sentiment.trained_model import TrainedModel
from qacg_models.utils.progress import hidden_bars
from qacg_models.utils.text import counted, split_sentences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Unit of a prediction: the whole text, truncated to the model's maximum length; each sentence; or both combined.
BY = ("text", "sentence", "document")
DIGITS = 6  # decimals of a probability in a file
CERTAIN, UNCERTAIN = "certain", "uncertain"
LISTED = 10  # maximum number of rows in an error message


def pieces(text: str, tokenizer: PreTrainedTokenizerFast, room: int) -> list[str]:
    """Returns the sentences of a text that is not blank; sentences of more than `room` tokens are divided.

    Such a sentence is divided between words. A word is divided only if it has more than `room` tokens. Special tokens
    and the context do not count.
    """
    found = []
    for sentence in split_sentences(text):
        encoded = tokenizer(sentence, add_special_tokens=False, truncation=False, return_offsets_mapping=True)
        places = encoded["offset_mapping"]
        # Tokens with the first character of a word; a character can consist of several tokens.
        begins = [number for number, (start, _) in enumerate(places) if not start or sentence[start - 1].isspace()]
        first = 0
        while len(places) - first > room:
            last = max((number for number in begins if first < number <= first + room), default=first + room)
            found.append(sentence[places[first][0] : places[last][0]].strip())
            first = last
        found.append(sentence[places[first][0] if first else 0 :].strip())
    return [piece for piece in found if piece]


def combine(probabilities: np.ndarray, has_absent: bool) -> np.ndarray:
    """Returns the (classes,) probabilities of a document, from the (S, classes) probabilities of its sentences.

    A document has an opinion if one of its sentences has an opinion: P(no opinion) is the minimum over the sentences.
    The other labels share the rest in proportion to the sum of their probabilities over the sentences. If these sums
    are all 0, the result is the first sentence's probabilities. If class 0 does not mean "no opinion" (`has_absent`),
    the result is the mean over the sentences.
    """
    if not has_absent:
        return probabilities.mean(axis=0)
    absent = probabilities[:, 0].min()
    opinions = probabilities[:, 1:].sum(axis=0)
    if not opinions.sum():
        return probabilities[0]
    return np.concatenate([[absent], (1 - absent) * opinions / opinions.sum()])


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

    `reasons` has the reason for each unusable row, by its position in the frame with the labels `index`.
    """

    def __init__(self, index: Sequence, reasons: Mapping[int, str]):
        self.index, self.reasons = index, dict(reasons)
        first, *others = sorted(reasons)
        place = "" if list(index) == [0] else f"frame: index {index[first]!r}: "  # the index of a single text
        also = ", ".join(repr(index[row]) for row in others[:LISTED])
        more = f" and {len(others) - LISTED:,} more" if len(others) > LISTED else ""
        super().__init__(f"{place}{reasons[first]}" + (f" (also unusable: index {also}{more})" if others else ""))

    def __reduce__(self) -> tuple:
        return type(self), (self.index, self.reasons)  # an engine pickles the errors of its workers


class Predictor:
    """Aspect sentiment of texts by a trained model, from a DataFrame to a DataFrame.

    Args:
        trained: the model. If it has context layers and is in float32, it is changed in place: it is set to evaluation
            mode, and `fold_context` folds its context layers into the projections of attention.
    """

    def __init__(self, trained: TrainedModel):
        if not isinstance(trained, TrainedModel):
            raise TypeError(f"trained: expected a TrainedModel, got {type(trained).__name__}")
        self.trained = trained
        if has_context_layers(trained.model) and trained.precision == "float32":
            fold_context(trained.model.eval())

    def predict(
        self,
        frame: pd.DataFrame,
        *,
        aspects: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        by: str = "text",
        batch_size: int = 512,
        min_confidence: float | None = None,
        on_empty: str = "raise",
        keep: Sequence[str] = (),
        progress: bool = False,
    ) -> pd.DataFrame:
        """Predicts aspects of texts as `AspectSentiment.predict`, which describes the arguments, with two differences.

        `frame` has the texts in the column `text`, and the only target and aspect of a row in the optional columns
        `target` and `aspect`. With `min_confidence`, predictions with a lower probability are marked "uncertain" in the
        column `certainty` after the label, the others "certain".
        """
        if by not in BY:
            raise InputError(f"by: expected one of {', '.join(BY)}, got {by!r}")
        if min_confidence is not None and not 0 < min_confidence <= 1:
            raise InputError(f"min_confidence: expected a number above 0 and at most 1, got {min_confidence}")
        trained, task = self.trained, self.trained.task
        cells, asked = contexts_of(trained, frame, aspects, targets, on_empty)
        rows: list[tuple] = []  # the place in `frame`, the number of the sentence, target, text and aspect
        for place, (text, pairs) in enumerate(zip(cells["text"], asked)):
            parts = [text]
            if by != "text" and pairs:
                parts = pieces(text, trained.tokenizer, max(1, min(trained.text_limits.values())))
            rows += [(place, number, *pair, part) for number, part in enumerate(parts, 1) for pair in pairs]
        examples = [_example(trained, text, target, aspect) for _, _, target, aspect, text in rows]
        with nullcontext() if progress else hidden_bars():
            probabilities = trained.probabilities(examples, batch_size)
        if by == "document":
            sentences: dict[tuple, list[int]] = {}
            for row, (place, _, *pair, _) in enumerate(rows):
                sentences.setdefault((place, *pair), []).append(row)
            rows = [(place, 1, *pair, cells["text"][place]) for place, *pair in sentences]
            found = [combine(probabilities[numbers], task.has_absent) for numbers in sentences.values()]
            probabilities = np.reshape(found, (-1, len(task.labels)))
        skipped = [place for place, pairs in enumerate(asked) if not pairs]
        names = ("target", "aspect", "text")
        rows += [(place, None, *(cells[name][place] or None for name in names)) for place in skipped]
        probabilities = np.concatenate([probabilities, np.full((len(skipped), len(task.labels)), np.nan)])
        order = np.argsort([row[0] for row in rows], kind="stable")
        found = self._table(frame, [rows[row] for row in order], probabilities[order], by, min_confidence)
        places = [rows[row][0] for row in order]
        for name in reversed(keep):
            found.insert(int(by == "sentence"), name, frame[name].take(places).array)
        return found

    def _table(
        self, frame: pd.DataFrame, rows: list[tuple], probabilities: np.ndarray, by: str, min_confidence: float | None
    ) -> pd.DataFrame:
        """Returns the result of `predict`; its rows have a place, a sentence (None: skipped), target, aspect, text."""
        task = self.trained.task
        places, sentences, targets, aspects, texts = ([row[column] for row in rows] for column in range(5))
        best = probabilities.argmax(axis=1).tolist()
        labels = [None if number is None else task.labels[index] for number, index in zip(sentences, best)]
        columns: dict[str, Any] = {"sentence": pd.array(sentences, dtype="Int64")} if by == "sentence" else {}
        if task.has_targets:
            columns["target"] = targets
        columns |= {"text": texts, "aspect": aspects, "label": labels}
        if min_confidence is not None:
            marks = np.where(probabilities.max(axis=1) >= min_confidence, CERTAIN, UNCERTAIN)
            columns["certainty"] = [None if label is None else mark for label, mark in zip(labels, marks.tolist())]
        if not rows:  # pandas makes float64 columns of empty lists, for which its string methods raise AttributeError
            columns = {name: pd.Series([], dtype="Int64" if name == "sentence" else "str") for name in columns}
        columns |= {f"p({name})": probabilities[:, number] for number, name in enumerate(task.labels)}
        return pd.DataFrame(columns).set_axis(frame.index.take(places))


def check_kept(keep: Any, task: Task) -> None:
    """Raises TypeError or InputError unless `keep` has distinct names that no column of a prediction has."""
    if isinstance(keep, str) or not isinstance(keep, Sequence):
        raise TypeError(f"keep: expected a sequence of names, got {keep!r}")
    own = {"sentence", "target", "text", "aspect", "label", "certainty", *(f"p({label})" for label in task.labels)}
    if own.intersection(keep) or len(set(keep)) < len(keep):
        raise InputError(
            f"keep: expected distinct names that no column of the predictions has, got {', '.join(map(repr, keep))}."
            " Rename these columns of the frame."
        )


def contexts_of(
    trained: TrainedModel,
    frame: pd.DataFrame,
    aspects: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    on_empty: str = "raise",
) -> tuple[dict[str, Sequence[Any]], list[list[tuple[str, str]]]]:
    """Returns the texts of a frame by column, and for each row its pairs of target and aspect; aspects vary fastest.

    The arguments are those of `Predictor.predict`. Without a column, its cells are None; a missing value is "". A
    skipped row has no pairs. Without targets, the target is "".
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"frame: expected a pandas DataFrame, got {type(frame).__name__}")
    if "text" not in frame:
        raise InputError(f"frame: expected the column 'text', got {', '.join(map(repr, frame)) or 'no columns'}")
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
    index = frame.index.tolist()
    columns: dict[str, Sequence[Any]] = {
        name: texts_of(f"frame: column {name!r}", frame[name], index) if name in frame else [None] * len(frame)
        for name in ("text", "target", "aspect")
    }
    for row, cells in enumerate(zip(columns["text"], columns["target"], columns["aspect"])):
        found.append([])
        if on_empty == "skip" and "" in cells:
            continue
        try:
            found[-1] = pairs_of(*cells)
        except InputError as error:
            reasons[row] = str(error)
    if reasons:
        raise UnusableRows(index, reasons)
    return columns, found


def examples_of(
    trained: TrainedModel,
    texts: Sequence[str],
    aspects: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
) -> list[Example]:
    """Returns an unlabelled example for each text and each of its contexts; arguments and errors of `contexts_of`."""
    _, asked = contexts_of(trained, pd.DataFrame({"text": list(texts)}, dtype=object), aspects, targets)
    return [_example(trained, text, *pair) for text, pairs in zip(texts, asked) for pair in pairs]


def _example(trained: TrainedModel, text: str, target: str, aspect: str) -> Example:
    return Example("", text, trained.task.context(target, aspect), target, aspect, None, 0)


def as_predictions(found: pd.DataFrame) -> list[AspectPrediction]:
    """Returns the rows of `Predictor.predict`, without skipped texts, as predictions."""
    found = found[found["label"].notna()]
    labels = [name[2:-1] for name in found if name.startswith("p(")]
    targets = found["target"] if "target" in found else [""] * len(found)
    shares = found[[f"p({label})" for label in labels]].to_numpy().tolist()
    return [
        AspectPrediction(text, target, aspect, label, dict(zip(labels, values)))
        for text, target, aspect, label, values in zip(found["text"], targets, found["aspect"], found["label"], shares)
    ]


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


@dataclass(frozen=True)
class PredictionFormat:
    """The format of a file of predictions, "csv" or "jsonl".

    A line has the input line, the columns of `Predictor.predict`, and `others`, the other columns of the input (in
    JSONL the objects `probabilities` and `columns`). In a CSV, a column with the name of an output field becomes
    `NAME (input)`.
    """

    data_format: str
    task: Task
    others: tuple[str, ...] = ()

    def lines(self, found: pd.DataFrame, table: pd.DataFrame, header: bool = True) -> str:
        """Returns predictions, whose index has positions in the input `table`, as lines; `header` is that of a CSV."""
        shares = found[[f"p({label})" for label in self.task.labels]]
        fields = found.drop(columns=shares.columns)
        fields.insert(0, "line", table.index[found.index])
        others = table[[*self.others]].iloc[found.index]
        if self.data_format == "csv":
            cells = pd.concat([fields, shares], axis=1)
            for name in self.others:
                own = name
                while own in cells:
                    own = f"{own} (input)"
                cells[own] = others[name].to_numpy()
            return cells.to_csv(index=False, header=header, lineterminator="\n", float_format=f"%.{DIGITS}f")
        records = fields.astype(object).where(fields.notna(), None).to_dict("records")
        rounded = shares.round(DIGITS).set_axis(self.task.labels, axis=1).to_dict("records")
        for record, probabilities, copies in zip(records, rounded, others.to_dict("records")):
            record["probabilities"] = None if record["label"] is None else probabilities
            record |= {"columns": copies} if self.others else {}
        return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)


def describe_truncation(
    trained: TrainedModel, texts: Iterable[tuple[str, Sequence[str]]], advice: str
) -> tuple[int, str | None]:
    """Counts the texts, each with the names of its contexts, that are truncated in at least one of their contexts.

    Returns the number of truncated texts, and a line with it that ends with `advice`; None if no text is truncated.
    """
    limits, total, cut = trained.text_limits, 0, 0
    for block in blocks((text, min(limits[name] for name in names)) for text, names in texts if names):
        found = trained.tokenizer(
            [text for text, _ in block], add_special_tokens=False, truncation=False, verbose=False
        )
        total += len(block)
        cut += sum(len(ids) > limit for ids, (_, limit) in zip(found["input_ids"], block))
    of_texts = counted(total, "text")
    return cut, f"truncated to {trained.record.max_length} tokens: {cut:,} of {of_texts}; {advice}" if cut else None
