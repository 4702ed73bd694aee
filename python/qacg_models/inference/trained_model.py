"""A trained model folder: what lies in it, loading it, and its probabilities for rows.

`MODEL/` holds config.json (contexts and labels too), model.safetensors, tokenizer.json, run.yaml (the choices that
give it again), training.json (how it was trained, on what, and the metrics it reached), and calibration.json (the
temperatures of its probabilities), without which a temperature of 1 is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qacg_models.data import DataOptions, Example
from qacg_models.data.arrow_rows import blocks
from qacg_models.data.collators import batch_maker, by_length
from qacg_models.data.task import Task
from qacg_models.data.tokenization import encode_examples, load_tokenizer
from qacg_models.errors import CheckpointError, InputError, ModelFolderError
from qacg_models.metrics import Metrics, judge, judge_for, majority_probabilities
from qacg_models.models.auto import BACKBONES, load_class
from qacg_models.runs.calibration import CALIBRATION_NAME, UNCALIBRATED, Calibration, read_calibration
from qacg_models.runs.record import TrainingRecord, read_record
from qacg_models.utils.devices import cpu_threads, is_out_of_memory
from qacg_models.utils.progress import progress_bar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.models.pretrained import EncoderPreTrainedModel

logger = logging.getLogger(__name__)


# Rows that are encoded at a time, of which those of like length share batches.
SORTED_TOGETHER = 8192


@dataclass(frozen=True)
class TrainedModel:
    """A model with what is needed to feed it.

    Attributes:
        model: in evaluation mode.
        tokenizer: the one it was trained with.
        record: the content of training.json.
        calibration: that of calibration.json. Every probability of the model has its temperatures.
        int8: whether its encoder multiplies in int8 (`inference/int8.py`).
    """

    model: EncoderPreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    record: TrainingRecord
    calibration: Calibration = UNCALIBRATED
    int8: bool = False

    @property
    def title(self) -> str:
        """What tables call the model."""
        return BACKBONES[self.record.options.model].title or self.record.options.model

    @property
    def task(self) -> Task:
        """Labels and aspects the model was trained for."""
        return self.record.task

    @property
    def contexts(self) -> tuple[str, ...]:
        """Names of the contexts, which a BERT, too, was trained on; the index is the context id."""
        return self.record.contexts

    @property
    def data_options(self) -> DataOptions:
        """How the data of training was read."""
        return self.record.data_options

    def probabilities(self, rows: Sequence[Example], batch_size: int = 64) -> np.ndarray:
        """(N, classes) float64 probabilities, in the order of `rows`.

        Raises:
            InputError: a row's context is none of the model's.
        """
        return probabilities_of(self.logits(rows, batch_size), self.calibration.temperatures)

    def logits(self, rows: Sequence[Example], batch_size: int = 64) -> np.ndarray:
        """(N, classes) float64 logits, before any temperature; order and errors as for `probabilities`."""
        with cpu_threads(self.record.options.threads):
            return predict_logits(self.model, self.tokenizer, rows, self.record.max_length, batch_size)

    def evaluate(self, rows: Sequence[Example]) -> Metrics:
        """The task's metrics of the model on `rows`, in the same batches and threads every time."""
        return self.judge(rows, self.logits(rows))(None)

    def judge(self, rows: Sequence[Example], logits: np.ndarray) -> Callable[[np.ndarray | None], Metrics]:
        """The task's metrics for weights of `rows`, of which the model has given the logits."""
        return judge_for(self.task, rows, probabilities_of(logits, self.calibration.temperatures))

    def majority(self, rows: Sequence[Example]) -> Metrics:
        """The same metrics of the baseline that knows only the label shares of the training split."""
        return judge(self.task, rows, majority_probabilities(self.record.label_shares, len(rows)))


def load_trained(folder: Path | str, attention: str | None = None, *, device: str = "cpu") -> TrainedModel:
    """Load a folder that training wrote.

    Args:
        folder: the folder.
        attention: an implementation of the model; None takes the one it was trained with.
        device: where the model runs, such as "cuda".

    Raises:
        ModelFolderError: something is missing or unreadable, with its name.
        InputError: an attention that the model does not have, or a device that is not there.
    """
    folder = Path(folder)
    record, calibration = read_record(folder), read_calibration(folder)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ModelFolderError(f"{folder}: has no {name}, so this is not a complete model")
    kind = load_class(BACKBONES[record.options.model])
    implementation = attention or record.options.attention
    check_attention(kind, implementation)
    tokenizer = load_tokenizer(folder)
    try:
        model, loading = kind.from_pretrained(
            folder, attn_implementation=implementation, local_files_only=True, output_loading_info=True
        )
    except (OSError, CheckpointError) as error:
        raise ModelFolderError(f"{folder}: cannot be loaded ({error})") from None
    # A head that is not there would start at random, and metrics on record would be those of another model.
    if not loading["report"].clean:
        raise ModelFolderError(f"{folder}: is not what training wrote: {loading['report']}")
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        raise InputError(f"device: got {device!r}, which cannot be used ({error})") from None
    if (count := len(calibration.temperatures)) not in (1, len(record.task.labels)):
        wanted = f"{len(record.task.labels)}, one for each label, or a single one"
        raise ModelFolderError(f"{folder / CALIBRATION_NAME}: expected {wanted}, got {count} temperatures")
    return TrainedModel(model.eval(), tokenizer, record, calibration)


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
    seen: Callable[[int], None] | None = None,
) -> np.ndarray:
    """(N, classes) float64 logits; batches are made of rows of like length to save padding.

    Where a batch does not fit into memory it is halved, and so are those after it.

    Args:
        batch_size: most rows of a batch.
        make_batch: what turns features into inputs of the model; None: what training takes.
        seen: called with the number of rows of every batch that is done; None shows a progress bar for many rows.

    Raises:
        InputError: a row's context is none of the model's, or a single row does not fit into memory.
    """
    import torch

    config, make_batch = model.config, make_batch or batch_maker(model, tokenizer)
    contexts, standalone = getattr(config, "contexts", None), getattr(config, "context_standalone", False)
    logits = np.empty((len(rows), config.num_labels))
    was_training = model.training
    model.eval()
    bar = progress_bar(len(rows), "evaluating", "row") if seen is None and len(rows) > SORTED_TOGETHER else None
    done: Callable[[int], object] = seen or (bar.update if bar else lambda count: None)
    with torch.inference_mode(), closing(bar) if bar else nullcontext():
        for first, block in zip(range(0, len(rows), SORTED_TOGETHER), blocks(rows, SORTED_TOGETHER)):
            features, _ = encode_examples(block, tokenizer, contexts, max_length, standalone)
            order = by_length([len(feature["input_ids"]) for feature in features])
            start = 0
            while start < len(order):
                chosen = order[start : start + batch_size]
                found = _logits_if_they_fit(model, make_batch([features[index] for index in chosen]))
                if found is not None:
                    logits[first + np.array(chosen)] = found
                    start += len(chosen)
                    done(len(chosen))
                elif len(chosen) > 1:
                    batch_size = len(chosen) // 2
                    logger.warning("%d rows do not fit into memory at once; going on with %d", len(chosen), batch_size)
                else:
                    raise InputError(
                        f"text: one of {len(features[chosen[0]]['input_ids'])} tokens does not fit into memory"
                    )
    model.train(was_training)
    return logits


def _logits_if_they_fit(model: EncoderPreTrainedModel, batch: dict) -> np.ndarray | None:
    """Float64 logits of a batch, whatever its labels; None where the device has no memory for it."""
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
    """softmax(logits / temperature) in float64.

    Args:
        logits: (N, classes).
        temperatures: one for all rows; or one for each class, for the rows with its logit the highest.
    """
    import torch

    scores = torch.from_numpy(logits).double()
    by_label = torch.tensor(temperatures, dtype=torch.float64).expand(scores.shape[-1])
    return (scores / by_label[scores.argmax(-1, keepdim=True)]).softmax(-1).numpy()
