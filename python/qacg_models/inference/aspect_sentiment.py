"""Aspect sentiment of texts in one line: a trained model that is asked about aspects by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from qacg_models.data import Example
from qacg_models.data.collators import PackingCollator
from qacg_models.errors import InputError
from qacg_models.inference.aspect_queries import Questions
from qacg_models.inference.int8 import in_int8
from qacg_models.inference.pieces import BY, combine, pieces
from qacg_models.inference.trained_model import TrainedModel, load_trained, predict_logits, probabilities_of
from qacg_models.modules.context_fold import fold_context, has_context_layers
from qacg_models.utils.devices import cpu_threads


@dataclass(frozen=True)
class AspectPrediction:
    """What the model says of one aspect of a text.

    Attributes:
        text: as it was given.
        target: whose aspect it is; empty for a model without targets.
        label: the most probable one.
        probabilities: of every label, by name, in the order of the model's classes; they sum to 1.
    """

    text: str
    target: str
    aspect: str
    label: str
    probabilities: dict[str, float]

    def to_json(self) -> dict:
        """As plain types for a JSON file."""
        return asdict(self)


class AspectSentiment:
    """A trained model, ready to be asked.

    Args:
        trained: the model. It stays in evaluation mode, and its context path is folded (`fold_context`), as that of
            one in int8 is already.

    Example:
        >>> ask = AspectSentiment.from_pretrained("runs/mine")  # doctest: +SKIP
        >>> ask("the food was great but the bill was not", aspects=["food", "price"])  # doctest: +SKIP
    """

    def __init__(self, trained: TrainedModel):
        if not isinstance(trained, TrainedModel):
            raise TypeError(f"trained: expected a TrainedModel, got {type(trained).__name__}")
        self.trained = trained
        if has_context_layers(trained.model) and not trained.int8:
            fold_context(trained.model.eval())

    @classmethod
    def from_pretrained(
        cls, folder: Path | str, *, attention: str | None = None, device: str = "cpu", int8: bool = False
    ) -> AspectSentiment:
        """Load a folder that `qacg train` wrote.

        Args:
            attention: an implementation of the model; None takes the one it was trained with.
            device: where the model runs, such as "cuda".
            int8: multiply in 8 bits, on the CPU, with torchao (`inference/int8.py`).

        Raises:
            ModelFolderError: something is missing or unreadable, with its name.
            InputError: an attention that the model does not have, a device that is not there, or int8 where it cannot
                be had.
        """
        trained = load_trained(folder, attention, device=device)
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
        """Names of the targets; none for a model without targets."""
        return self.questions().known_targets if self.trained.task.has_targets else ()

    def questions(self, aspects: Sequence[str] | None = None, targets: Sequence[str] | None = None) -> Questions:
        """What is asked about every text; arguments and errors as for a call."""
        return Questions.of(self.trained.task, self.trained.contexts, aspects, targets)

    def __call__(
        self,
        texts: str | Sequence[str],
        aspects: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        batch_size: int = 64,
        by: str = "text",
    ) -> list[AspectPrediction] | list[list[AspectPrediction]]:
        """What the model says of a text, or of each of several.

        Args:
            texts: one text, or a sequence of them.
            aspects: names; None: all of the model's.
            targets: names, for a model with targets; None: those that a text names.
            batch_size: most pairs of text and context in one packed batch.
            by: "text": texts as they are, cut to the model's length; "sentence": each sentence by itself, all its
                aspects, then the next; "document": one answer from all sentences (`pieces.combine`).

        Returns:
            A list with one prediction for each target and aspect, in the order in which they were given, and by
            sentence as many for each; for a sequence of texts a list of such lists.

        Raises:
            TypeError: an argument of another type.
            InputError: an empty text, an unknown aspect or target, a text that names no target, or an unknown `by`.
        """
        questions = self.questions(aspects, targets)
        if isinstance(texts, str):
            return self.predict_texts([questions.rows(texts)], batch_size, by)[0]
        if not isinstance(texts, Sequence):
            raise TypeError(f"texts: expected str or a sequence of str, got {type(texts).__name__}")
        return self.predict_texts([questions.rows(text) for text in texts], batch_size, by)

    def predict_texts(
        self,
        asked: Sequence[Sequence[Example]],
        batch_size: int = 64,
        by: str = "text",
        seen: Callable[[float], None] | None = None,
    ) -> list[list[AspectPrediction]]:
        """What the model says of texts, each given as its rows, one for each target and aspect.

        Args:
            seen: called after every batch with its share of all rows; the shares add up to 1.

        Raises:
            TypeError, InputError: as for `predict`, or `by` is none of `pieces.BY`.
        """
        if by not in BY:
            raise InputError(f"by: expected one of {', '.join(BY)}, got {by!r}")
        if by == "text":
            parts = [[rows] for rows in asked]
        else:
            parts = [
                [[replace(row, sentence=piece) for row in rows] for piece in self._pieces(rows[0].sentence)]
                for rows in asked
            ]
        every = [row for part in parts for rows in part for row in rows]
        found = iter(self.predict(every, batch_size, seen and (lambda count: seen(count / len(every)))))
        answers = [[[next(found) for _ in rows] for rows in part] for part in parts]
        if by == "document":
            return [
                [self._together(row.sentence, group) for row, group in zip(rows, zip(*part))]
                for rows, part in zip(asked, answers)
            ]
        return [[one for group in part for one in group] for part in answers]

    def _pieces(self, text: str) -> list[str]:
        tokenizer, trained = self.trained.tokenizer, self.trained
        standalone = getattr(trained.model.config, "context_standalone", False)
        room = trained.record.max_length - tokenizer.num_special_tokens_to_add(pair=not standalone)
        if not standalone:
            room -= max(len(tokenizer(context, add_special_tokens=False)["input_ids"]) for context in trained.contexts)
        return pieces(text, tokenizer, max(room, 1))

    def _together(self, text: str, group: Sequence[AspectPrediction]) -> AspectPrediction:
        """The answer of a document, from those of its sentences about the same context."""
        probabilities = np.array([list(one.probabilities.values()) for one in group])
        by_label = dict(zip(self.labels, combine(probabilities, self.trained.task.has_absent).tolist()))
        label = max(by_label, key=by_label.__getitem__)
        return AspectPrediction(text, group[0].target, group[0].aspect, label, by_label)

    def predict(
        self, rows: Sequence[Example], batch_size: int = 64, seen: Callable[[int], None] | None = None
    ) -> list[AspectPrediction]:
        """What the model says of rows, in their order; their labels, if any, are not looked at.

        Args:
            seen: called with the number of rows of every batch that is done.

        Raises:
            TypeError, InputError: `batch_size` is not a positive int, or a row's context is none of the model's.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int):
            raise TypeError(f"batch_size: expected int, got {type(batch_size).__name__}")
        if batch_size < 1:
            raise InputError(f"batch_size: expected at least 1, got {batch_size}")
        if not rows:
            return []
        model, record = self.trained.model, self.trained.record
        with cpu_threads(record.options.threads):
            logits = predict_logits(
                model, self.trained.tokenizer, rows, record.max_length, batch_size, PackingCollator(), seen
            )
        found = probabilities_of(logits, self.trained.calibration.temperatures)
        return [self._prediction(row, probabilities) for row, probabilities in zip(rows, found)]

    def _prediction(self, row: Example, probabilities: np.ndarray) -> AspectPrediction:
        by_label = dict(zip(self.labels, probabilities.tolist()))
        return AspectPrediction(row.sentence, row.target, row.aspect, max(by_label, key=by_label.__getitem__), by_label)
