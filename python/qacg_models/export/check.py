"""Whether an exported file answers as the model does, as `qacg predict` runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qacg_models.data import Example
from qacg_models.data.collators import PaddingCollator
from qacg_models.data.tokenization import encode_examples
from qacg_models.inference.trained_model import TrainedModel, probabilities_of

Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]

LARGEST_BATCH = 32


@dataclass(frozen=True)
class Limits:
    """How far a file may be from its model.

    Attributes:
        probability: most that a probability may differ by.
        labels: least share of rows with the same label.
    """

    probability: float
    labels: float


EXACT = Limits(probability=1e-5, labels=1.0)
# One scale of 8 bits for all that a layer is given turns labels over that were a coin's throw: of MiniLM on SentiHood
# 1 % of them, with a mean difference of 0.006 and one row of 400 that is off by 0.41.
INT8 = Limits(probability=0.5, labels=0.97)


@dataclass(frozen=True)
class Check:
    """The comparison of a file with its model.

    Attributes:
        runtime: what ran the file, with its version.
        rows: how many.
        lengths: the least and the largest number of tokens of a row.
        largest: the largest difference of a probability.
        equal: the number of rows with the same label.
        limits: what is allowed.
    """

    runtime: str
    rows: int
    lengths: tuple[int, int]
    largest: float
    equal: int
    limits: Limits = EXACT

    @property
    def passed(self) -> bool:
        """Whether labels and probabilities are within the limits; NaN is not."""
        return self.equal >= self.limits.labels * self.rows and self.largest <= self.limits.probability

    def __str__(self) -> str:
        wanted = f"{self.limits.labels:.0%}" if self.limits.labels < 1 else "all"
        return (
            f"run by {self.runtime}: {self.rows:,} rows of {self.lengths[0]} to {self.lengths[1]} tokens, "
            f"in batches of 1 to {LARGEST_BATCH}\n"
            f"largest difference of a probability: {self.largest:.2g}, allowed {self.limits.probability:g}\n"
            f"equal labels: {self.equal:,} of {self.rows:,}, wanted {wanted}"
        )


def compare(trained: TrainedModel, rows: Sequence[Example], run: Run, runtime: str, limits: Limits = EXACT) -> Check:
    """Compares a file with its model on rows, whose labels are not looked at.

    Args:
        run: the file, a function of inputs by name to logits (B, classes).
        runtime: what runs it.
        limits: what is allowed.

    Raises:
        InputError: a row's context is none of the model's.
    """
    config = trained.model.config
    rows = [replace(row, label=None) for row in rows]  # some may have one and others not
    features, _ = encode_examples(
        rows,
        trained.tokenizer,
        getattr(config, "contexts", None),
        trained.record.max_length,
        getattr(config, "context_standalone", False),
    )
    pad = PaddingCollator(trained.tokenizer.pad_token_id)
    logits = []
    for start, end in _batches(len(features)):
        batch = pad(features[start:end])
        logits.append(run({name: values.numpy() for name, values in batch.items()}))
    wanted = trained.probabilities(rows)
    found = probabilities_of(np.concatenate(logits), trained.calibration.temperatures)
    lengths = [len(feature["input_ids"]) for feature in features]
    return Check(
        runtime,
        len(rows),
        (min(lengths), max(lengths)),
        float(np.abs(found - wanted).max()),
        int((found.argmax(-1) == wanted.argmax(-1)).sum()),
        limits,
    )


def _batches(count: int) -> list[tuple[int, int]]:
    """Batches of 1, 2, 4, ... rows, as they come: rows of unlike lengths, so that there is padding too."""
    found, start, size = [], 0, 1
    while start < count:
        found.append((start, min(start + size, count)))
        start, size = start + size, min(2 * size, LARGEST_BATCH)
    return found
