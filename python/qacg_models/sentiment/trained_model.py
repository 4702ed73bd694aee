"""A trained model and its folder: loading, logits, precisions, saving, and the model card.

A row is a text with a context (an aspect, or a target and an aspect). `MODEL/` has config.json (with contexts and
labels), model.safetensors, tokenizer.json, run.yaml (options that reproduce the training), training.json (data, machine
and metrics of the training), and optionally calibration.json (temperatures).

bfloat16: All layers of the encoder, and the hidden states between them, are in bfloat16; sums of products, LayerNorm
and softmax use float32. Token embeddings (whose sum, in bfloat16, tripled the largest error), pooler and classifier
stay in float32.

int8: Weights of linear layers are quantized once, with a scale per output channel. Activations are quantized at every
call, with a scale per token, so that a prediction does not depend on the rest of the batch. Embeddings, pooler,
classifier and gates stay in float.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from qacg_kernels.call.validation import check_choice
from qacg_models.errors import CheckpointError, InputError, ModelFolderError
from qacg_models.layers.context import fold_context, has_context_layers
from qacg_models.models.auto import load_class
from qacg_models.models.base import ASPECT_SENTIMENT, CARD_NAME, EncoderPreTrainedModel
from qacg_models.sentiment.calibration import (
    CALIBRATION_NAME,
    UNCALIBRATED,
    VALIDITY,
    Calibration,
    probabilities_of,
    read_calibration,
    write_calibration,
)
from qacg_models.sentiment.encoding import (
    PackingCollator,
    PaddingCollator,
    encode_examples,
    has_token_types,
    load_tokenizer,
)
from qacg_models.sentiment.example import Example, Task
from qacg_models.sentiment.metrics import (
    Metrics,
    class_scores,
    confusion_matrix,
    judge,
    judge_for,
    majority_probabilities,
)
from qacg_models.sentiment.record import (
    RECORD_NAME,
    RUN_NAME,
    TrainingRecord,
    read_record,
    write_record,
    write_run_file,
)
from qacg_models.sentiment.report.tables import metric_cells, selection_note, stored_results
from qacg_models.utils.fields import check_count, check_integer
from qacg_models.utils.files import atomic_folder, atomic_write, explain_write_errors
from qacg_models.utils.machine import cpu_threads, hidden_library_bars, is_out_of_memory, quiet
from qacg_models.utils.progress import hidden_bars, progress_bar
from qacg_models.utils.text import counted, markdown_table, percent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PRECISIONS = ("auto", "float32", "bfloat16", "int8")
# The least share of dev rows with equal labels for "auto" to choose bfloat16. Of fewer than 1,000 rows it is all.
MIN_AGREEMENT = 0.999
SORTED_TOGETHER = 8192  # number of rows that are encoded and sorted by length at a time
# Maximum number of tokens in a batch of several rows, with padding. Larger batches are not faster on a CPU, where the
# hidden states of more tokens do not fit into the caches. On a GPU they save launches.
CPU_TOKENS, GPU_TOKENS = 4096, 32768


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with its tokenizer and records.

    Attributes:
        model: the model, in evaluation mode.
        tokenizer: the tokenizer used in training.
        record: content of training.json.
        calibration: content of calibration.json, whose temperatures scale all logits before softmax; without the
            file, UNCALIBRATED, which has the temperature 1.
        precision: of the encoder: "float32", "bfloat16" or "int8".
        threads: number of CPU threads of predictions, for `cpu_threads`.
    """

    model: EncoderPreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    record: TrainingRecord
    calibration: Calibration = UNCALIBRATED
    precision: str = "float32"
    threads: int | None = None

    @property
    def thread_count(self) -> int:
        """The number of CPU threads that predictions use."""
        with cpu_threads(self.threads):
            return torch.get_num_threads()

    @property
    def title(self) -> str:
        """Title of the model in tables."""
        return str(self.record.options.entry.title)  # every trained model has one

    @property
    def task(self) -> Task:
        """The task (labels and aspects) for which the model was trained."""
        return self.record.task

    @property
    def contexts(self) -> tuple[str, ...]:
        """Names of the contexts, in the order of their ids; also for a BERT, whose configuration has no contexts."""
        return self.record.contexts

    @cached_property
    def text_limits(self) -> dict[str, int]:
        """Maximum number of tokens of a text, by the name of its context; longer texts are truncated."""
        standalone = getattr(self.model.config, "context_standalone", False)
        room = self.record.max_length - self.tokenizer.num_special_tokens_to_add(pair=not standalone)
        if standalone:
            return dict.fromkeys(self.contexts, room)
        found = self.tokenizer(list(self.contexts), add_special_tokens=False, truncation=False)
        return {name: room - len(ids) for name, ids in zip(self.contexts, found["input_ids"])}

    def input_facts(self) -> dict:
        """Returns what a program that runs the exported model has to know (`export.metadata_of`), in JSON types."""
        return {
            "labels": self.task.labels,
            "contexts": self.contexts,
            "context_standalone": getattr(self.model.config, "context_standalone", False),
            "max_length": self.record.max_length,
            "pad_token_id": self.tokenizer.pad_token_id,
            "temperatures": self.calibration.temperatures,
        }

    def features(self, rows: Sequence[Example]) -> list[dict]:
        """Returns the unpadded model inputs of each row (`encode_examples`)."""
        return _features(self.model, self.tokenizer, rows, self.record.max_length)

    def logits(self, rows: Sequence[Example], batch_size: int = 512) -> np.ndarray:
        """Returns (N, classes) float64 logits, without temperature scaling, as `predict_logits` does."""
        with cpu_threads(self.threads):
            return predict_logits(self.model, self.tokenizer, rows, self.record.max_length, batch_size)

    def probabilities(self, rows: Sequence[Example], batch_size: int = 512) -> np.ndarray:
        """Returns `logits` as (N, classes) float64 probabilities, with temperature scaling."""
        return probabilities_of(self.logits(rows, batch_size), self.calibration.temperatures)

    def evaluate(self, rows: Sequence[Example]) -> Metrics:
        """Returns the task's metrics of the model on labelled rows."""
        return self.judge(rows, self.logits(rows))(None)

    def judge(self, rows: Sequence[Example], logits: np.ndarray) -> Callable[[np.ndarray | None], Metrics]:
        """Returns a function that computes metrics of (N, classes) logits for given weights of rows (`judge_for`)."""
        return judge_for(self.task, rows, probabilities_of(logits, self.calibration.temperatures))

    def confusion(self, rows: Sequence[Example], logits: np.ndarray) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Returns the confusion matrix of each aspect in labelled rows: counts by true label, then predicted label."""
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
        """Returns the metrics of the majority baseline: the label shares of the training split for every row."""
        return judge(self.task, rows, majority_probabilities(self.record.label_shares, len(rows)))


@hidden_library_bars()
def load_trained(
    folder: Path | str,
    attention: str | None = None,
    *,
    device: str = "cpu",
    precision: str = "float32",
    threads: int | None = None,
) -> TrainedModel:
    """Loads a trained model from the folder that `qacg train` wrote, in a precision of PRECISIONS.

    `attention` and `threads` are those of training unless they are given; 0 threads: the default of `cpu_threads`. The
    precision "auto" is resolved by `automatic_precision`.
    """
    check_choice("precision", precision, PRECISIONS)
    if threads is not None:
        check_integer("threads", threads, 0)
    folder = Path(folder)
    record, calibration = read_record(folder), read_calibration(folder)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ModelFolderError(f"{folder}: expected a complete model, got a folder without {name}")
    kind = load_class(record.options.entry)
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
    threads = record.options.threads if threads is None else threads
    trained = TrainedModel(model.eval(), tokenizer, record, calibration, threads=threads)
    if precision == "auto":
        precision = automatic_precision(trained)
    return trained if precision == "float32" else {"bfloat16": in_bfloat16, "int8": in_int8}[precision](trained)


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
    batch_size: int = 512,
) -> np.ndarray:
    """Returns (N, classes) float64 logits, in the order of `rows`, whose labels are ignored.

    Batches consist of at most `batch_size` rows with similar lengths, and of at most CPU_TOKENS or GPU_TOKENS tokens,
    except a batch of one row. InputError: a batch does not fit into memory. A progress bar is shown for more than
    SORTED_TOGETHER rows.
    """
    check_count("batch_size", batch_size)
    collate: PackingCollator | PaddingCollator = PaddingCollator(tokenizer.pad_token_id)
    if isinstance(model, EncoderPreTrainedModel):  # a class of transformers reads no packed batch
        collate = PackingCollator(getattr(model.config, "shares_texts", False))
    most = CPU_TOKENS if model.device.type == "cpu" else GPU_TOKENS
    logits = np.empty((len(rows), model.config.num_labels))
    with (
        nullcontext() if len(rows) > SORTED_TOGETHER else hidden_bars(),
        closing(progress_bar(len(rows), "evaluating", "row")) as bar,
        torch.inference_mode(),
        ExitStack() as after,
    ):
        after.callback(model.train, model.training)
        model.eval()
        for first in range(0, len(rows), SORTED_TOGETHER):
            features = _features(model, tokenizer, rows[first : first + SORTED_TOGETHER], max_length)
            lengths = np.array([len(feature["input_ids"]) for feature in features])
            order = lengths.argsort(kind="stable")  # batches have little padding, and the rows of a text stay together
            start, found = 0, []
            while start < len(order):
                chosen = order[start : start + batch_size]
                sizes = lengths[chosen] * np.arange(1, len(chosen) + 1)  # tokens of the first 1, 2, ... rows, padded
                chosen = chosen[: max(1, sizes.searchsorted(most, "right"))]
                batch = collate([features[index] for index in chosen])
                batch.pop("labels", None)
                try:
                    inputs = {
                        name: value.to(model.device) if isinstance(value, torch.Tensor) else value
                        for name, value in batch.items()
                    }
                    found.append(model(**inputs).logits)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    size = f"{counted(len(chosen), 'row')} of at most {lengths[chosen].max()} tokens"
                    raise InputError(
                        f"batch_size: {size} do not fit into memory. Use a smaller batch size, or another device."
                    ) from None
                start += len(chosen)
                bar.update(len(chosen))
            logits[first + order] = torch.cat(found).double().cpu().numpy()  # waits for a GPU once
    return logits


def _features(
    model: EncoderPreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Sequence[Example], max_length: int
) -> list[dict]:
    contexts = getattr(model.config, "contexts", None)
    standalone = getattr(model.config, "context_standalone", False)
    return encode_examples(rows, tokenizer, contexts, max_length, standalone, has_token_types(model.config))[0]


def has_fast_bfloat16() -> bool:
    """Returns whether the CPU has instructions for products of bfloat16: AVX512_BF16 or AMX."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in checks)


def automatic_precision(trained: TrainedModel) -> str:
    """Returns "bfloat16" on a CPU with its instructions, if the model's record has enough equal labels, or "float32".

    A record without the field, of an older model or of a training on another CPU, means "float32".
    """
    on_cpu = trained.model.device.type == "cpu"
    equal = (trained.record.bfloat16_agreement or 0.0) >= MIN_AGREEMENT
    return "bfloat16" if on_cpu and equal and has_fast_bfloat16() else "float32"


def bfloat16_note(record: TrainingRecord) -> str | None:
    """Returns one line with the labels on dev that are equal in bfloat16, and what "auto" chooses; None if unknown."""
    if record.bfloat16_agreement is None:
        return None
    rows = record.data["dev"].rows
    equal = record.bfloat16_agreement >= MIN_AGREEMENT
    chosen = "bfloat16 on CPUs with its instructions" if equal else "float32"
    count = f"{round(record.bfloat16_agreement * rows):,} of {counted(rows, 'row')}"
    return f"bfloat16: same labels as float32 for {count} of dev, so --precision auto is {chosen}"


def in_bfloat16(trained: TrainedModel) -> TrainedModel:
    """Rounds the encoder of a model to bfloat16, in place, after `fold_context`; returns it with its precision set."""
    model = trained.model.eval()
    if has_context_layers(model):
        fold_context(model)  # computes with the weights before they are rounded
    bert = model.base_model
    for name, part in bert.named_children():
        if name not in ("embeddings", "pooler"):
            # Not prepacked by torch's private operators of oneDNN, which on Zen 4 saves 7 to 8 % of the time of batches
            # of 100 to 400 tokens, 1 to 5 % with thousands, and a fifth for one short text.
            part.to(torch.bfloat16)
    bert.embeddings.register_forward_hook(_round)
    bert.pooler.register_forward_pre_hook(_widen)
    return replace(trained, precision="bfloat16")


# Functions of the module, so that a model can be pickled.
def _round(module: nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor:
    return output.to(torch.bfloat16)


def _widen(module: nn.Module, inputs: tuple) -> tuple:
    return inputs[0].float(), *inputs[1:]


# The oldest tested release. On the CPU, some older releases compute int8 products as int32 products, which is slow.
LEAST_TORCHAO = (0, 18)


def in_int8(trained: TrainedModel) -> TrainedModel:
    """Quantizes the encoder of a model to int8, in place, after `fold_context`; returns it with its precision set."""
    device = trained.model.device.type
    if device != "cpu":
        raise InputError(f"int8: expected a model on the device cpu, got one on {device}")
    quantize = load_quantizer()
    _check_products(quantize)
    model = trained.model.eval()
    if has_context_layers(model):
        fold_context(model)
    for layer in model.base_model.encoder.layer:
        fold = getattr(layer, "fold", None)
        for name, linear in layer.named_modules():
            # A fold replaces the linear layers of attention.self, which are no longer called.
            if type(linear) is nn.Linear and not (fold is not None and name.startswith("attention.self.")):
                quantize(linear)
        if fold is not None:
            linear = nn.Linear(fold.weight.shape[1], fold.weight.shape[0], bias=False, dtype=fold.weight.dtype)
            linear.weight = nn.Parameter(fold.weight, requires_grad=False)
            quantize(linear)
            fold.weight = linear.weight.detach()
    return replace(trained, precision="int8")


def load_quantizer() -> Callable[[nn.Module], None]:
    """Returns a function that quantizes a linear layer to int8, in place; raises InputError without a fit torchao."""
    least = ".".join(map(str, LEAST_TORCHAO))
    install = f"run pip install 'torchao>={least}' (the extra `int8`), or use another precision"
    try:
        version = importlib.metadata.version("torchao")
    except importlib.metadata.PackageNotFoundError:
        raise InputError(f"int8: expected the package torchao, got none; {install}") from None
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_TORCHAO:
        raise InputError(f"int8: expected torchao {least} or newer, got {version}; {install}")
    try:
        with quiet("torchao", "torch.utils._pytree"):
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    except ImportError as error:
        raise InputError(
            f"int8: torchao {version} is incompatible with torch {torch.__version__} ({error}); install a newer torch,"
            " such as 2.13, or use another precision"
        ) from None
    config = Int8DynamicActivationInt8WeightConfig()

    def quantize(layer: nn.Module) -> None:
        with quiet():
            quantize_(layer, config)
        # For print(layer), torchao stores a method in the layer that pickle rejects.
        vars(layer).pop("extra_repr", None)

    return quantize


def _check_products(quantize: Callable[[nn.Module], None]) -> None:
    """Raises InputError if int8 products saturate on this CPU.

    Without VNNI instructions, torch adds pairs of products in 16 bits, and clips overflows silently.
    """
    width = 64
    layer = nn.Linear(width, width, bias=False)
    nn.init.ones_(layer.weight)
    quantize(layer)
    with torch.inference_mode():
        found = layer(torch.ones(width, width))
    if not torch.allclose(found, torch.full_like(found, width), rtol=0.01):
        raise InputError(
            "int8: expected a CPU with instructions for exact sums of 8-bit products (VNNI, in x86 since 2019), got one"
            f" that computes {found.mean().item():.1f} instead of {width}; use another precision"
        )


@hidden_library_bars()
def save_trained(trained: TrainedModel, folder: Path | str) -> None:
    """Writes a model folder atomically; an existing model folder is replaced. run.yaml has no paths of data."""
    folder = Path(folder)
    if trained.precision != "float32":
        raise InputError(
            f"precision: expected a model in float32 to save, got one in {trained.precision}. Load it in float32."
        )
    check_output(folder, overwrite=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder.parent}: cannot be created ({error.strerror}). Choose another folder.") from None
    with explain_write_errors(folder.resolve().parent), atomic_folder(folder) as new:
        write_weights(trained.model, trained.tokenizer, new)
        write_descriptions(trained, new, [])


def check_output(output: Path | str, overwrite: bool) -> None:
    """Raises InputError if `output` is a file, a folder of other files, or a model that may not be overwritten."""
    output = Path(output)
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / RECORD_NAME).is_file():
        raise InputError(
            f"output: expected a new or empty folder, or a model folder to replace, got {output}, which is none of"
            " these. Choose another folder."
        )
    if not overwrite:
        raise InputError(
            f"output: expected a new folder, got {output}, which exists. Set another --output, or use --overwrite."
        )


def write_weights(model: EncoderPreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes the files of a model and its tokenizer; the tokenizer in memory loses its truncation and padding."""
    model.save_pretrained(folder)
    # `encode_examples` sets truncation and padding, which the saved tokenizer should not have.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)


def write_descriptions(trained: TrainedModel, folder: Path, sources: Sequence[Path]) -> None:
    """Writes the files of a model folder other than those of `write_weights`; `sources` are the data in run.yaml.

    Side effect: contexts, maximum length and temperatures are stored in the model's configuration, where the pipeline
    reads them.
    """
    record, config = trained.record, trained.model.config
    config.task_specific_params = {
        ASPECT_SENTIMENT: {
            "contexts": list(trained.contexts),
            "max_length": record.max_length,
            "temperatures": list(trained.calibration.temperatures),
        }
    }
    config.save_pretrained(folder)
    if trained.calibration != UNCALIBRATED:
        write_calibration(folder, trained.calibration)
    write_run_file(folder / RUN_NAME, sources, record.data_options, record.options, [record.options.seed])
    write_record(folder / RECORD_NAME, record)
    with atomic_write(folder / CARD_NAME) as handle:  # replaces the card that the model's `save_pretrained` wrote
        handle.write(trained.model.model_card(_usage(trained), _facts(trained), ASPECT_SENTIMENT))


def _usage(trained: TrainedModel) -> str:
    target, aspect = trained.record.targets[0], trained.task.aspects[0]
    asked = f"aspects=[{aspect!r}]" + (f", targets=[{target!r}]" if trained.task.has_targets else "")
    return (
        "from qacg_models import AspectSentiment\n\n"
        "ask = AspectSentiment.from_pretrained(FOLDER)\n"
        f'for answer in ask("the bill was a shock", {asked}):\n'
        "    print(answer.aspect, answer.label, answer.probabilities)\n\n"
        "from transformers import pipeline  # finds the task after the import from qacg_models\n\n"
        f'pipe = pipeline("{ASPECT_SENTIMENT}", model=FOLDER)\n'
        f'print(pipe("the bill was a shock", aspects=[{trained.contexts[0]!r}]))\n'
    )


def _facts(trained: TrainedModel) -> str:
    record, task = trained.record, trained.task
    rows = ", ".join(f"{counted(part.rows, 'row')} of {split}" for split, part in record.data.items())
    parts = [
        f"Labels: {', '.join(task.labels)}. Aspects: {', '.join(task.aspects)}. The model supports no other labels or"
        " aspects.",
        f"Data: {rows}. {_sentence(selection_note(record))}",
    ]
    for split in record.metrics:
        header, lines = metric_cells(stored_results(record, split))
        parts.append(markdown_table([f"{split}, {header[0]}", *header[1:]], lines, texts=1))
        lines = [
            [
                *(name.replace("|", "\\|") for name in (aspect, label)),
                *(percent(score) for score in (one.precision, one.recall, one.f1)),
                f"{one.support:,}",
            ]
            for aspect, matrix in record.confusion.get(split, {}).items()
            for label, one in zip(task.labels, class_scores(np.array(matrix)))
            if one.support
        ]
        if lines:
            header = [f"{split}: aspect", "label", "precision in %", "recall in %", "F1 in %", "rows"]
            parts.append(markdown_table(header, lines, texts=2))
    if note := bfloat16_note(record):
        parts.append(_sentence(note))
    parts.append(f"{_sentence(trained.calibration.describe())} {VALIDITY}")
    if record.warnings:
        warnings = "\n".join(f"- {one.describe().removeprefix('warning: ')}" for one in record.warnings)
        parts.append(f"Warnings about the data:\n\n{warnings}")
    parts.append("Before you publish the model, add the source of the data and the licence.")
    return "\n\n".join(parts)


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."
