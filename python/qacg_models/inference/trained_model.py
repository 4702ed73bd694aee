"""Loads a trained model from its folder, and computes its logits, probabilities and metrics for rows.

A row is a text with a context (an aspect, or a target and an aspect). `MODEL/` has config.json (with contexts and
labels), model.safetensors, tokenizer.json, run.yaml (options that reproduce the training), training.json (data, machine
and metrics of the training), and optionally calibration.json (temperatures).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qacg_models.data import DataOptions, Example
from qacg_models.data.collators import batch_maker, by_length
from qacg_models.data.example import blocks
from qacg_models.data.task import Task
from qacg_models.data.tokenization import encode_examples, load_tokenizer
from qacg_models.errors import CheckpointError, InputError, ModelFolderError
from qacg_models.metrics import Metrics, judge, judge_for, majority_probabilities
from qacg_models.metrics.metrics import confusion_matrix
from qacg_models.models.auto import BACKBONES, load_class
from qacg_models.runs.calibration import CALIBRATION_NAME, UNCALIBRATED, Calibration, read_calibration
from qacg_models.runs.record import TrainingRecord, read_record
from qacg_models.utils.devices import cpu_threads, is_out_of_memory
from qacg_models.utils.field_checks import check_count, check_integer
from qacg_models.utils.progress import hidden_bars, progress_bar
from qacg_models.utils.quiet import hidden_library_bars

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.models.base import EncoderPreTrainedModel

logger = logging.getLogger(__name__)


SORTED_TOGETHER = 8192  # number of rows that are encoded and sorted by length at a time


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with its tokenizer and records.

    Attributes:
        model: the model, in evaluation mode.
        tokenizer: the tokenizer used in training.
        record: content of training.json.
        calibration: content of calibration.json, whose temperatures scale all logits before softmax; without the
            file, UNCALIBRATED, which has the temperature 1.
        int8: whether the encoder uses int8 (`inference/int8.py`).
        given_threads: number of CPU threads of predictions; 0: torch's default, or the CPU quota if that is lower;
            None: as in training.
    """

    model: EncoderPreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    record: TrainingRecord
    calibration: Calibration = UNCALIBRATED
    int8: bool = False
    given_threads: int | None = None

    @property
    def threads(self) -> int | None:
        """Number of CPU threads, for `cpu_threads`; 0 or None: the default of that function.

        The number is `given_threads`, or the training option `threads` if `given_threads` is None.
        """
        return self.record.options.threads if self.given_threads is None else self.given_threads

    @property
    def thread_count(self) -> int:
        """The number of CPU threads that predictions use."""
        import torch

        with cpu_threads(self.threads):
            return torch.get_num_threads()

    @property
    def title(self) -> str:
        """Title of the model in tables."""
        return BACKBONES[self.record.options.model].title or self.record.options.model

    @property
    def task(self) -> Task:
        """The task (labels and aspects) for which the model was trained."""
        return self.record.task

    @property
    def contexts(self) -> tuple[str, ...]:
        """Names of the contexts, in the order of their ids; also for a BERT, whose configuration has no contexts."""
        return self.record.contexts

    @property
    def data_options(self) -> DataOptions:
        """The options with which the training data was read."""
        return self.record.data_options

    @cached_property
    def text_limits(self) -> dict[str, int]:
        """Maximum number of tokens of a text, by the name of its context; longer texts are truncated."""
        standalone = getattr(self.model.config, "context_standalone", False)
        room = self.record.max_length - self.tokenizer.num_special_tokens_to_add(pair=not standalone)
        if standalone:
            return dict.fromkeys(self.contexts, room)
        found = self.tokenizer(list(self.contexts), add_special_tokens=False, truncation=False)
        return {name: room - len(ids) for name, ids in zip(self.contexts, found["input_ids"])}

    def probabilities(self, rows: Sequence[Example], batch_size: int = 64) -> np.ndarray:
        """Returns `logits` as (N, classes) float64 probabilities, with temperature scaling."""
        return probabilities_of(self.logits(rows, batch_size), self.calibration.temperatures)

    def logits(self, rows: Sequence[Example], batch_size: int = 64) -> np.ndarray:
        """Returns (N, classes) float64 logits, without temperature scaling, as `predict_logits` does."""
        with cpu_threads(self.threads):
            return predict_logits(self.model, self.tokenizer, rows, self.record.max_length, batch_size)

    def features(self, rows: Sequence[Example]) -> list[dict]:
        """Returns the unpadded model inputs of each row (`encode_examples`)."""
        return _features(self.model, self.tokenizer, rows, self.record.max_length)

    def evaluate(self, rows: Sequence[Example]) -> Metrics:
        """Returns the task's metrics of the model on `rows`.

        The batch size is always 64 and the number of threads is always `thread_count`, so that repeated calls return
        equal values.

        Args:
            rows: labelled rows.

        Raises:
            InputError, ValueError: as `logits` and `judge`.
        """
        return self.judge(rows, self.logits(rows))(None)

    def judge(self, rows: Sequence[Example], logits: np.ndarray) -> Callable[[np.ndarray | None], Metrics]:
        """Returns a function that computes the task's metrics for given weights of the rows.

        Its argument is (N,) weights, equal for all rows of a sentence and target; None: each row counts once.

        Args:
            rows: labelled rows.
            logits: (N, classes) logits of the model, in the order of `rows`.

        Raises:
            ValueError: `logits` has another number of rows; there are no rows; or the metrics require each aspect once
                for every sentence and target, and an aspect is missing or repeated.
        """
        return judge_for(self.task, rows, probabilities_of(logits, self.calibration.temperatures))

    def confusion(self, rows: Sequence[Example], logits: np.ndarray) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Returns the confusion matrix of each aspect in `rows`, in the task's order.

        A confusion matrix has the number of rows by true label (first index) and predicted label (second index).

        Args:
            rows: labelled rows.
            logits: (N, classes) logits of the model, in the order of `rows`.
        """
        predicted = probabilities_of(logits, self.calibration.temperatures).argmax(axis=1)
        aspects = np.array([row.aspect for row in rows])
        gold = np.array([row.label for row in rows])
        found = {}
        for aspect in self.task.aspects:
            if (chosen := aspects == aspect).any():
                matrix = confusion_matrix(gold[chosen], predicted[chosen], len(self.task.labels))
                found[aspect] = tuple(tuple(counts) for counts in matrix.tolist())
        return found

    def majority(self, rows: Sequence[Example]) -> Metrics:
        """Returns the metrics of the majority baseline.

        For every row, the baseline predicts the label shares of the training split as probabilities.
        """
        return judge(self.task, rows, majority_probabilities(self.record.label_shares, len(rows)))


@hidden_library_bars()
def load_trained(
    folder: Path | str, attention: str | None = None, *, device: str = "cpu", threads: int | None = None
) -> TrainedModel:
    """Loads a trained model from the folder that `qacg train` wrote.

    Args:
        folder: the folder `MODEL/`.
        attention: attention implementation; None: the implementation used in training.
        device: device of the model, such as "cuda".
        threads: CPU threads of predictions; 0: torch's default, or the CPU quota if that is lower; None: as in
            training.

    Raises:
        TypeError: `folder` is no path, or `threads` is not an integer.
        ValueError: `threads` is negative.
        ModelFolderError: the folder does not exist, or a file is missing, unreadable or does not fit the other files.
        InputError: the tokenizer cannot be loaded, or the attention implementation or the device is not available.
    """
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"folder: expected a path, got {type(folder).__name__}")
    if threads is not None:
        check_integer("threads", threads, 0)
    folder = Path(folder)
    record, calibration = read_record(folder), read_calibration(folder)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ModelFolderError(f"{folder}: expected a complete model, got a folder without {name}")
    kind = load_class(BACKBONES[record.options.model])
    implementation = record.options.attention if attention is None else attention
    check_attention(kind, implementation)
    tokenizer = load_tokenizer(folder)
    try:
        model, loading = kind.from_pretrained(
            folder, attn_implementation=implementation, local_files_only=True, output_loading_info=True
        )
    except (OSError, CheckpointError) as error:
        raise ModelFolderError(f"{folder}: cannot be loaded ({error})") from None
    # A missing head would be initialised at random.
    if not loading["report"].clean:
        raise ModelFolderError(f"{folder}: expected the files that training wrote, got {loading['report']}")
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        raise InputError(f"device: expected an available device, got {device!r} ({error})") from None
    if (count := len(calibration.temperatures)) not in (1, len(record.task.labels)):
        expected = f"expected 1 temperature, or {len(record.task.labels)} (one for each label)"
        raise ModelFolderError(f"{folder / CALIBRATION_NAME}: {expected}, got {count}")
    return TrainedModel(model.eval(), tokenizer, record, calibration, given_threads=threads)


def check_attention(kind: type[EncoderPreTrainedModel], attention: str) -> None:
    """Raises InputError unless the model has this implementation of attention."""
    if attention not in kind.implementations:
        raise InputError(
            f"attention: expected one of {', '.join(kind.implementations)} for {kind.__name__}, got {attention!r}"
        )


def predict_logits(
    model: EncoderPreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    rows: Sequence[Example],
    max_length: int,
    batch_size: int = 64,
    make_batch: Callable[[Sequence[dict]], dict] | None = None,
    progress: Callable[[float], object] | None = None,
) -> np.ndarray:
    """Returns (N, classes) float64 logits, in the order of `rows`; batches consist of rows with similar lengths.

    If a batch does not fit into memory, a warning is logged and the size of this and all later batches is halved.

    Args:
        model, tokenizer: the model and its tokenizer.
        rows: the examples.
        max_length: maximum number of tokens in an input.
        batch_size: maximum number of rows in a batch; halved when memory runs out.
        make_batch: collates features into model inputs; None: as in training (`batch_maker`).
        progress: called after every batch with the share of rows that are done, in (0, 1]; None: a progress bar is
            shown for more than 8,192 rows (SORTED_TOGETHER).

    Raises:
        TypeError: `batch_size` is not an integer.
        InputError: `batch_size` is below 1, the context of a row is not a context of the model, or a single row does
            not fit into memory.
    """
    import torch

    check_count("batch_size", batch_size)
    make_batch = make_batch or batch_maker(model, tokenizer)
    logits = np.empty((len(rows), model.config.num_labels))
    shows_bar = progress is None and len(rows) > SORTED_TOGETHER
    with (
        nullcontext() if shows_bar else hidden_bars(),
        closing(progress_bar(len(rows), "evaluating", "row")) as bar,
        torch.inference_mode(),
        _evaluating(model),
    ):
        for first, block in zip(range(0, len(rows), SORTED_TOGETHER), blocks(rows, SORTED_TOGETHER)):
            features = _features(model, tokenizer, block, max_length)
            order = by_length([len(feature["input_ids"]) for feature in features])
            start = 0
            while start < len(order):
                chosen = order[start : start + batch_size]
                found = _logits_if_they_fit(model, make_batch([features[index] for index in chosen]))
                if found is not None:
                    logits[first + np.array(chosen)] = found
                    start += len(chosen)
                    bar.update(len(chosen))
                    if progress is not None:
                        progress((first + start) / len(rows))
                elif len(chosen) > 1:
                    batch_size = len(chosen) // 2
                    logger.warning(
                        "a batch of %d rows does not fit into memory; reducing the batch size to %d",
                        *(len(chosen), batch_size),
                    )
                else:
                    raise InputError(
                        f"text: expected a text that fits into memory, got {len(features[chosen[0]]['input_ids'])} "
                        "tokens. Use another device, or a model with a smaller maximum length."
                    )
    return logits


@contextmanager
def _evaluating(model: EncoderPreTrainedModel) -> Iterator[None]:
    """Puts a model into evaluation mode, and back into its earlier mode at the end."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)


def _features(
    model: EncoderPreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Sequence[Example], max_length: int
) -> list[dict]:
    contexts = getattr(model.config, "contexts", None)
    standalone = getattr(model.config, "context_standalone", False)
    return encode_examples(rows, tokenizer, contexts, max_length, standalone)[0]


def _logits_if_they_fit(model: EncoderPreTrainedModel, batch: dict) -> np.ndarray | None:
    """Returns float64 logits of a batch; None if the device runs out of memory."""
    import torch

    try:
        inputs = {
            name: value.to(model.device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
            if name != "labels"
        }
        return model(**inputs).logits.double().cpu().numpy()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    return None


def probabilities_of(logits: np.ndarray, temperatures: Sequence[float] = (1.0,)) -> np.ndarray:
    """Returns softmax(logits / temperature), (N, classes) float64.

    Args:
        logits: (N, classes).
        temperatures: one value for all rows; or one value per class, used for the rows with that predicted class.
    """
    import torch

    with cpu_threads(1):  # with more threads, torch can deadlock in a process whose parent used threads before the fork
        scores = torch.from_numpy(logits).double()
        by_label = torch.tensor(temperatures, dtype=torch.float64).expand(scores.shape[-1])
        return (scores / by_label[scores.argmax(-1, keepdim=True)]).softmax(-1).numpy()
