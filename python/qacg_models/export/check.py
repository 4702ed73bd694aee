"""Comparison of an exported file with the model: labels and probabilities of examples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qacg_models.data import Example
from qacg_models.data.collators import PaddingCollator
from qacg_models.inference.trained_model import TrainedModel, probabilities_of
from qacg_models.utils.cells import counted

Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]

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


def compare(trained: TrainedModel, rows: Sequence[Example], run: Run, runtime: str, limits: Limits = EXACT) -> Check:
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
