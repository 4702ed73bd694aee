"""The order in which rows are drawn, which depends on the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Sampler

if TYPE_CHECKING:
    from qacg_models.training.joined_texts import JoinedTexts, Key

# No two pairs of a seed and an epoch below this share a generator's seed. Another number would draw other rows.
_EPOCHS_PER_SEED = 100_003
_LISTED = 1 << 16  # numbers as Python's at a time, which take five times a tensor's memory


class EpochSampler(Sampler):
    """Draws a row of class c with a weight of count(c) ** -balance, with replacement; or every row once.

    An epoch's order does not depend on the epochs before it, so that a run that goes on in its midst, and every
    process of several, draws the same rows.

    Args:
        labels: (N) class of each row.
        balance: 0 gives each row once per epoch; 1 draws classes equally often.
        join: makes pairs of some of the rows that are drawn.

    Attributes:
        epoch: the one that the next iteration draws; whoever trains has to set it.
    """

    def __init__(self, labels: Sequence[int] | np.ndarray, balance: float, seed: int, join: JoinedTexts | None = None):
        classes = torch.as_tensor(labels).long()
        counts = torch.bincount(classes).double().clamp(min=1)
        self.weights = counts.pow(-balance)[classes] if balance else None
        self.size, self.seed, self.join, self.epoch = len(classes), seed, join, 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Key]:
        generator = torch.Generator().manual_seed(self.seed * _EPOCHS_PER_SEED + self.epoch)
        if self.weights is None:
            drawn = torch.randperm(self.size, generator=generator)
        else:
            drawn = torch.multinomial(self.weights, self.size, replacement=True, generator=generator)
        for part in drawn.split(_LISTED):
            yield from part.tolist() if self.join is None else self.join.pairs(part, generator)
