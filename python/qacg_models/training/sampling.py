"""The order of the training rows, which depends on the seed and the epoch only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Sampler

if TYPE_CHECKING:
    from qacg_models.training.augmentation import JoinedTexts, RowKey

# The generator's seed is seed * _EPOCHS_PER_SEED + epoch, unique for epochs below this number.
_EPOCHS_PER_SEED = 100_003
_CHUNK = 1 << 16  # row numbers that are Python integers at a time, which take five times the memory of a tensor


class EpochSampler(Sampler):
    """Draws the rows of an epoch, rare classes more often.

    Rows are drawn with replacement and weight count(class) ** -balance; a balance of 0 gives every row once.

    The order of an epoch does not depend on earlier epochs. So a resumed run, and each of several processes, draws the
    same rows.

    Args:
        labels: (N) class of each row.
        balance: 0 gives each row once per epoch; 1 draws classes equally often.
        seed: of the order.
        join: replaces some of the drawn rows by pairs; None does not.

    Attributes:
        epoch: epoch of the next iteration; the caller sets it.
    """

    def __init__(self, labels: Sequence[int] | np.ndarray, balance: float, seed: int, join: JoinedTexts | None = None):
        classes = torch.as_tensor(labels).long()
        counts = torch.bincount(classes).double().clamp(min=1)
        self.weights = counts.pow(-balance)[classes] if balance else None
        self.size, self.seed, self.join, self.epoch = len(classes), seed, join, 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[RowKey]:
        generator = torch.Generator().manual_seed(self.seed * _EPOCHS_PER_SEED + self.epoch)
        if self.weights is None:
            drawn = torch.randperm(self.size, generator=generator)
        else:
            drawn = torch.multinomial(self.weights, self.size, replacement=True, generator=generator)
        for chunk in drawn.split(_CHUNK):
            yield from chunk.tolist() if self.join is None else self.join.pairs(chunk, generator)
