"""Export of a model: writes a temporary ONNX file, runs it, compares it with the model, then renames the file."""

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from qacg_models.errors import InputError
from qacg_models.layers.context import fold_context, has_context_layers
from qacg_models.sentiment.dataset import (
    file_digest,
    load_data,
    load_file,
    sample_directory,
)
from qacg_models.sentiment.encoding import PaddingCollator
from qacg_models.sentiment.example import SENTIHOOD, Example
from qacg_models.sentiment.predictor import examples_of
from qacg_models.sentiment.record import RUN_NAME, read_run_file
from qacg_models.sentiment.trained_model import TrainedModel, probabilities_of
from qacg_models.utils.files import check_writable, explain_write_errors, staged_file
from qacg_models.utils.machine import cpu_threads
from qacg_models.utils.text import counted

SUFFIX = ".onnx"
PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # required in addition to torch
LARGEST_BATCH = 32  # maximum number of examples in a batch


@dataclass(frozen=True)
class Limits:
    """The allowed differences between a file and its model.

    Attributes:
        probability: maximum allowed difference of a probability.
        labels: minimum share of examples for which file and model predict the same label, from 0 to 1.
    """

    probability: float
    labels: float


EXACT = Limits(probability=1e-5, labels=1.0)
# Int8 changes labels with almost equal probabilities. For MiniLM on SentiHood, 1 % of the labels changed; probabilities
# differed by 0.006 on average and by at most 0.41, in 400 examples.
INT8 = Limits(probability=0.5, labels=0.97)


@dataclass(frozen=True)
class Check:
    """The comparison of a file with its model.

    Attributes:
        runtime: name and version of the program that ran the file.
        rows: number of examples.
        lengths: the smallest and the largest number of tokens of an example.
        largest: the largest difference of a probability.
        equal: number of examples for which file and model predict the same label.
        limits: the allowed differences.
    """

    runtime: str
    rows: int
    lengths: tuple[int, int]
    largest: float
    equal: int
    limits: Limits = EXACT

    @property
    def passed(self) -> bool:
        """Whether labels and probabilities are within the limits; False if a probability is NaN."""
        return self.equal >= self.limits.labels * self.rows and self.largest <= self.limits.probability

    def __str__(self) -> str:
        required = f"{self.limits.labels:.0%}" if self.limits.labels < 1 else "all"
        return (
            f"run by {self.runtime}: {counted(self.rows, 'example')} of {self.lengths[0]} to {self.lengths[1]} tokens, "
            f"in batches of at most {LARGEST_BATCH}\n"
            f"largest difference of a probability: {self.largest:.2g}, allowed {self.limits.probability:g}\n"
            f"equal labels: {self.equal:,} of {self.rows:,}, required {required}"
        )


def compare(
    trained: TrainedModel,
    rows: Sequence[Example],
    run: Callable[[Mapping[str, np.ndarray]], np.ndarray],
    runtime: str,
    limits: Limits = EXACT,
) -> Check:
    """Compares the predictions of a file with those of its model; the labels of the examples are ignored.

    Args:
        trained: the model.
        rows: the examples, at least one.
        run: function that runs the file; it takes input arrays by name, and returns logits (B, classes).
        runtime: name and version of the program that runs the file.
        limits: the allowed differences.

    Raises:
        InputError: the model does not have the context of an example, or an example does not fit into memory.
    """
    rows = [replace(row, label=None) for row in rows]  # a batch has labels for all examples or for none
    features = trained.features(rows)
    pad = PaddingCollator(trained.tokenizer.pad_token_id)
    logits = []
    for start, end in _batches(len(features)):
        batch = pad(features[start:end])
        logits.append(run({name: values.numpy() for name, values in batch.items()}))
    expected = trained.probabilities(rows)
    found = probabilities_of(np.concatenate(logits), trained.calibration.temperatures)
    lengths = [len(feature["input_ids"]) for feature in features]
    return Check(
        runtime,
        len(rows),
        (min(lengths), max(lengths)),
        float(np.abs(found - expected).max()),
        int((found.argmax(-1) == expected.argmax(-1)).sum()),
        limits,
    )


def _batches(count: int) -> list[tuple[int, int]]:
    """Returns start and end of consecutive batches of 1, 2, 4, ... and at most LARGEST_BATCH examples.

    The examples are not sorted by length, so that the check includes batches with padding.
    """
    found, start, size = [], 0, 1
    while start < count:
        found.append((start, min(start + size, count)))
        start, size = start + size, min(2 * size, LARGEST_BATCH)
    return found


def check_output(output: Path, suffix: str, overwrite: bool) -> None:
    """Checks that an exported file may be written.

    Args:
        output: path of the file.
        suffix: required suffix, with the dot.
        overwrite: whether an existing file may be replaced.

    Raises:
        InputError: `output` has another suffix, is a folder, exists and may not be replaced, or cannot be written.
    """
    if output.suffix != suffix:
        raise InputError(f"output: expected a name that ends in {suffix}, got {output}")
    if output.is_dir():
        raise InputError(f"output: expected a file, got the folder {output}")
    if output.exists() and not overwrite:
        raise InputError(f"output: expected a new file, got {output}, which exists. Set --overwrite to replace it.")
    check_writable("output", output)


def check_packages() -> None:
    """Raises InputError, with the command that installs them, if a package of PACKAGES is not installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"to: expected the packages {', '.join(missing)}, which are not installed. Run pip install"
            f" {' '.join(missing)}."
        )


def export(
    trained: TrainedModel,
    output: Path,
    rows: Sequence[Example],
    *,
    overwrite: bool = False,
    int8: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Check:
    """Exports a model to one ONNX file, which appears as `output` only if the check passes.

    Args:
        trained: the model, in float32.
        output: path of the file; its folder is created.
        rows: examples on which the file is checked, at least one; an example of the model's maximum length is added.
        overwrite: replace an existing file.
        int8: use int8 linear layers, and check with the wider limits INT8. The context path of `trained` is then
            folded in place (`fold_context`).
        say: called with a line before each step.

    Returns:
        The comparison of the file with the model. If `passed` is False, no file is written.

    Raises:
        InputError: `output` or `rows` is invalid, the model is not in float32 or too large, a package is missing, or
            the file or its folder cannot be written.
    """
    if trained.model.dtype != torch.float32:
        raise InputError(f"trained: expected a model in float32, got {trained.model.dtype}. Call trained.model.float()")
    check_output(output, SUFFIX, overwrite)
    if not rows:
        raise InputError("rows: expected at least one example to check the exported file on, got none")
    check_packages()
    from qacg_models.sentiment import onnx_file

    output.parent.mkdir(parents=True, exist_ok=True)
    with cpu_threads(trained.record.options.threads), staged_file(output) as made:
        if int8 and has_context_layers(trained.model):
            fold_context(trained.model)  # as `qacg predict --int8` does
        say("tracing the model")
        traced = onnx_file.trace(trained)
        say(f"writing onnx{' in int8' if int8 else ''}")
        with explain_write_errors(output.absolute().parent):
            (onnx_file.write_int8 if int8 else onnx_file.write)(traced, made)
        checked = with_longest(rows, trained.record.max_length)
        say(f"comparing the file with the model on {counted(len(checked), 'example')}")
        run = onnx_file.load(made)
        found = compare(trained, checked, run, onnx_file.RUNTIME, INT8 if int8 else EXACT)
        if not found.passed:
            made.unlink()
    return found


def rows_at_hand(trained: TrainedModel, folder: Path) -> tuple[list[Example], str]:
    """Returns examples to check a file on, and a description of their source.

    The examples are the dev and test rows of the training data, if their files are unchanged since training. If there
    are no such rows, the examples are the sentences of the bundled sample with each context of the model.

    Args:
        trained: the model.
        folder: folder of the model, whose run.yaml has the paths of the training data.
    """
    found = _rows_of_training(trained, folder)
    if found is not None:
        return found
    sentences = [row.sentence for row in load_file(sample_directory() / "test.tsv", SENTIHOOD)]
    return _examples(trained, dict.fromkeys(sentences)), "sentences of the bundled sample"


def spread(rows: Sequence[Example], most: int) -> list[Example]:
    """Returns all examples, or `most` evenly spaced ones if there are more."""
    if len(rows) <= most:
        return list(rows)
    return [rows[index * len(rows) // most] for index in range(most)]


def with_longest(rows: Sequence[Example], max_length: int) -> list[Example]:
    """Returns `rows`, which must not be empty, and one more example, whose text has at least `max_length` tokens."""
    text = " ".join(row.sentence for row in rows[:max_length])
    words = text.split()
    return [*rows, replace(rows[0], sentence=" ".join(words * (max_length // len(words) + 1)), label=None)]


def _rows_of_training(trained: TrainedModel, folder: Path) -> tuple[list[Example], str] | None:
    """Returns rows of dev and test from unchanged files, and a description; None if there are no such rows."""
    record = trained.record
    try:
        paths = read_run_file(folder / RUN_NAME)["data"]
        data = load_data(paths, ("dev", "test"), record.data_options, optional=("dev", "test"), task=record.task)
    except (InputError, KeyError, OSError):
        return None  # the files were moved or changed; `rows_at_hand` uses the sample
    same = [
        split
        for split, files in data.files.items()
        if split in record.data and file_digest(*files) == record.data[split].sha256
    ]
    rows = [row for split in same for row in data.splits[split] if row.context in trained.contexts]
    return (rows, f"{' and '.join(same)} of {', '.join(paths)}") if rows else None


def _examples(trained: TrainedModel, texts: Iterable[str]) -> list[Example]:
    return examples_of(trained, [*texts], targets=trained.record.targets if trained.task.has_targets else None)
