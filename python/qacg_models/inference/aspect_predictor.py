"""Aspect sentiment of texts by a trained model.

`qacg_models.AspectSentiment` (`estimators/aspect_sentiment.py`) adds training, DataFrames and saving.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from typing_extensions import Self

from qacg_kernels.call.validation import check_flag
from qacg_models.data import Example
from qacg_models.data.collators import PackingCollator
from qacg_models.errors import InputError
from qacg_models.inference.aspect_queries import Questions
from qacg_models.inference.int8 import in_int8
from qacg_models.inference.pieces import BY, combine, pieces
from qacg_models.inference.trained_model import TrainedModel, load_trained, predict_logits, probabilities_of
from qacg_models.modules.context import fold_context, has_context_layers
from qacg_models.utils.devices import cpu_threads
from qacg_models.utils.field_checks import check_count


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


class AspectPredictor:
    """Aspect sentiment of texts by a trained model.

    Args:
        trained: the model. If it has context layers and is not int8, it is changed in place: it is set to evaluation
            mode, and `fold_context` folds its context layers into the projections of attention.

    Raises:
        TypeError: `trained` is not a TrainedModel; or a context layer, or an attention projection of its encoder layer,
            has a hook or a wrapper, such as an adapter.

    Example:
        >>> ask = AspectPredictor.from_pretrained("runs/mine")  # doctest: +SKIP
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
            int8: use int8 matrix products on the CPU, with torchao (`inference/int8.py`).
            threads: CPU threads; 0: torch's default, or the CPU quota if that is lower; None: as in training.

        Raises:
            TypeError: `folder`, `int8` or `threads` has the wrong type.
            ValueError: `threads` is negative.
            ModelFolderError: the folder does not exist, or a file in the folder is missing, unreadable or does not fit
                the other files.
            InputError: the tokenizer cannot be loaded; the attention implementation, the device or int8 is not
                available; or int8 is requested on a device other than the CPU.
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

    def questions(self, aspects: Sequence[str] | None = None, targets: Sequence[str] | None = None) -> Questions:
        """Checks the names of aspects and targets, and returns them as `Questions`.

        `Questions.rows` then returns the rows of a text: the text with each pair of target and aspect.

        Args:
            aspects: names; None: all aspects of the model.
            targets: names, for a model with targets; None: the targets that occur in each text.

        Raises:
            TypeError, InputError: an argument is invalid; the message names it.
        """
        return Questions.of(self.trained.task, self.trained.record.targets, aspects, targets)

    def __call__(
        self,
        texts: str | Sequence[str],
        aspects: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        batch_size: int = 64,
        by: str = "text",
    ) -> list[AspectPrediction] | list[list[AspectPrediction]]:
        """Predicts a text, or each of several texts.

        Args:
            texts: one text, or a sequence of texts.
            aspects: names; None: all aspects of the model.
            targets: names, for a model with targets; None: the targets that occur in the text.
            batch_size: maximum number of rows in one packed batch; halved when memory runs out. A row is a text, or a
                sentence of it, with one aspect (and one target).
            by: "text": whole texts, truncated to the model's maximum length; "sentence": each sentence separately;
                "document": each sentence separately, then combined into one prediction per text and context
                (`pieces.combine`).

        Returns:
            For one text, a list with a prediction for each pair of target and aspect. With by="sentence", the list has
            all predictions for the first sentence, then all for the next sentence, and so on. For a sequence of texts,
            a list with one such list for each text.

        Raises:
            TypeError: an argument has the wrong type.
            InputError: an argument or a text cannot be used, and the message names it; or a single row does not fit
                into memory.
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
        """Predicts texts that are given as rows, one row for each target and aspect.

        Args:
            asked: the rows of each text; a text has at least one row, and all its rows have the same `sentence`.
            batch_size: maximum number of rows in a batch; halved when memory runs out.
            by: "text": whole texts, truncated to the model's maximum length; "sentence": each sentence separately;
                "document": each sentence separately, then combined into one prediction per text and context
                (`pieces.combine`).
            seen: called after every batch with its share of all rows, in (0, 1]; None: a progress bar is shown for
                more than 8,192 rows (SORTED_TOGETHER).

        Returns:
            For each text, a prediction for each of its rows, in the order of the rows. With by="sentence", each text
            has all predictions for its first sentence, then all for the next sentence, and so on.

        Raises:
            TypeError: `batch_size` is not an integer.
            InputError: `batch_size` is below 1, `by` is unknown, the context of a row is unknown, or a single row does
                not fit into memory.
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
        found = iter(self.predict_rows(every, batch_size, seen and (lambda count: seen(count / len(every)))))
        answers = [[[next(found) for _ in rows] for rows in part] for part in parts]
        if by == "document":
            return [
                [self._together(row.sentence, group) for row, group in zip(rows, zip(*part))]
                for rows, part in zip(asked, answers)
            ]
        return [[one for group in part for one in group] for part in answers]

    def _pieces(self, text: str) -> list[str]:
        return pieces(text, self.trained.tokenizer, max(1, min(self.trained.text_limits.values())))

    def _together(self, text: str, group: Sequence[AspectPrediction]) -> AspectPrediction:
        """Returns the prediction of a document from the predictions of its sentences for the same context."""
        probabilities = np.array([list(one.probabilities.values()) for one in group])
        by_label = dict(zip(self.labels, combine(probabilities, self.trained.task.has_absent).tolist()))
        label = max(by_label, key=by_label.__getitem__)
        return AspectPrediction(text, group[0].target, group[0].aspect, label, by_label)

    def predict_rows(
        self, rows: Sequence[Example], batch_size: int = 64, seen: Callable[[int], None] | None = None
    ) -> list[AspectPrediction]:
        """Returns a prediction for each row, in the order of `rows`; labels of the rows are ignored.

        Args:
            rows: the rows, each a text with one context; may be empty.
            batch_size: maximum number of rows in a batch; halved when memory runs out.
            seen: called after every batch with the number of rows in it; None: a progress bar is shown for more than
                8,192 rows (SORTED_TOGETHER).

        Raises:
            TypeError: `batch_size` is not an integer.
            InputError: `batch_size` is below 1, the context of a row is unknown, or a single row does not fit into
                memory.
        """
        check_count("batch_size", batch_size)
        if not rows:
            return []
        model, record = self.trained.model, self.trained.record
        with cpu_threads(self.trained.threads):
            make_batch = PackingCollator(getattr(model.config, "shares_texts", False))
            logits = predict_logits(
                model, self.trained.tokenizer, rows, record.max_length, batch_size, make_batch, seen
            )
        found = probabilities_of(logits, self.trained.calibration.temperatures)
        return [self._prediction(row, probabilities) for row, probabilities in zip(rows, found)]

    def _prediction(self, row: Example, probabilities: np.ndarray) -> AspectPrediction:
        by_label = dict(zip(self.labels, probabilities.tolist()))
        return AspectPrediction(row.sentence, row.target, row.aspect, max(by_label, key=by_label.__getitem__), by_label)
