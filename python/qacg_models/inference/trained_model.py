"""A trained model folder: what lies in it, loading it, and its probabilities for rows.

`MODEL/` holds config.json (contexts and labels too), model.safetensors, tokenizer.json, run.yaml (the choices that
give it again), and training.json (how it was trained, on what, and the metrics it reached).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from qacg_models.runs.record import TrainingRecord, read_record
from qacg_models.utils.progress import bar_of_many
from qacg_models.utils.threads import cpu_threads

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.models.pretrained import EncoderPreTrainedModel


# Rows that are encoded at a time, of which those of like length share batches.
SORTED_TOGETHER = 8192


@dataclass(frozen=True)
class TrainedModel:
    """A model with what is needed to feed it.

    Attributes:
        model: in evaluation mode.
        tokenizer: the one it was trained with.
        record: the content of training.json.
    """

    model: EncoderPreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    record: TrainingRecord

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
        with cpu_threads(self.record.options.threads):
            return predict(self.model, self.tokenizer, rows, self.record.max_length, batch_size)

    def evaluate(self, rows: Sequence[Example]) -> Metrics:
        """The task's metrics of the model on `rows`, in the same batches and threads every time."""
        return judge(self.task, rows, self.probabilities(rows))

    def judge(self, rows: Sequence[Example]) -> Callable[[np.ndarray | None], Metrics]:
        """The task's metrics of the model for weights of `rows`; the model runs once."""
        return judge_for(self.task, rows, self.probabilities(rows))

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
    record = read_record(folder)
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
    return TrainedModel(model.eval(), tokenizer, record)


def check_attention(kind: type[EncoderPreTrainedModel], attention: str) -> None:
    """Raises InputError unless the model has this implementation of attention."""
    if attention not in kind.implementations:
        raise InputError(
            f"attention: got {attention!r}, wanted one of {', '.join(kind.implementations)} for {kind.__name__}"
        )


def predict(
    model: EncoderPreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    rows: Sequence[Example],
    max_length: int,
    batch_size: int = 64,
    make_batch: Callable[[Sequence[dict]], dict] | None = None,
) -> np.ndarray:
    """(N, classes) float64 probabilities; batches are made of rows of like length to save padding.

    Args:
        make_batch: what turns features into inputs of the model; None: what training takes.

    Raises:
        InputError: a row's context is none of the model's.
    """
    import torch

    config, make_batch = model.config, make_batch or batch_maker(model, tokenizer)
    contexts, standalone = getattr(config, "contexts", None), getattr(config, "context_standalone", False)

    def of_batch(features: Sequence[dict]) -> np.ndarray:
        batch = make_batch(features)
        batch.pop("labels", None)
        inputs = {
            name: value.to(model.device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()
        }
        return model(**inputs).logits.double().softmax(-1).cpu().numpy()

    probabilities = np.empty((len(rows), config.num_labels))
    was_training = model.training
    model.eval()
    with torch.inference_mode(), bar_of_many(len(rows), SORTED_TOGETHER) as bar:
        for start, block in zip(range(0, len(rows), SORTED_TOGETHER), blocks(rows, SORTED_TOGETHER)):
            features, _ = encode_examples(block, tokenizer, contexts, max_length, standalone)
            order = by_length([len(feature["input_ids"]) for feature in features])
            for first in range(0, len(order), batch_size):
                chosen = order[first : first + batch_size]
                found = of_batch([features[index] for index in chosen])
                probabilities[start + np.array(chosen)] = found
                bar.update(len(chosen))
    model.train(was_training)
    return probabilities
