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
# Number of row indices that are converted to Python integers at a time; the integers take five times a tensor's memory.
_CHUNK = 1 << 16


class EpochSampler(Sampler):
    """Yields the row indices of an epoch; with a balance above 0, rows of rare classes are drawn more often.

    With a balance above 0, rows are drawn with replacement, with probabilities proportional to the weights
    count(class) ** -balance. With a balance of 0, every row is drawn once.

    The order of an epoch does not depend on earlier epochs. So a resumed run draws the same rows, and so does each of
    several processes.

    Args:
        labels: (N) class of each row.
        balance: number in [0, 1]; 1 gives all classes the same total weight.
        seed: seed of the order.
        join: replaces some of the drawn rows by pairs of indices (`JoinedTexts.pairs`); None: no pairs.
        texts: (N) index of the text of each row. Texts are then drawn with all of their rows, so that a batch computes
            the layers before `context_from_layer` once per text. The weight of a text is the mean weight of its rows.
            The last text that is drawn may lack rows, because an epoch has N rows. None: single rows are drawn.

    Attributes:
        epoch: epoch of the next iteration; the caller sets it.
    """

    def __init__(
        self,
        labels: Sequence[int] | np.ndarray,
        balance: float,
        seed: int,
        join: JoinedTexts | None = None,
        texts: Sequence[int] | np.ndarray | None = None,
    ):
        classes = torch.as_tensor(labels).long()
        counts = torch.bincount(classes).double().clamp(min=1)
        self.weights = counts.pow(-balance)[classes] if balance else None
        self.size, self.seed, self.join, self.epoch = len(classes), seed, join, 0
        self.texts = None if texts is None else _RowsOfTexts(torch.as_tensor(texts).long())

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[RowKey]:
        generator = torch.Generator().manual_seed(self.seed * _EPOCHS_PER_SEED + self.epoch)
        if self.texts is not None:
            drawn = self.texts.draw(self.weights, generator)
        elif self.weights is None:
            drawn = torch.randperm(self.size, generator=generator)
        else:
            drawn = torch.multinomial(self.weights, self.size, replacement=True, generator=generator)
        for chunk in drawn.split(_CHUNK):
            yield from chunk.tolist() if self.join is None else self.join.pairs(chunk, generator)


class _RowsOfTexts:
    """Draws texts with all of their rows.

    Args:
        texts: (N) index of the text of each row, from 0.
    """

    def __init__(self, texts: torch.Tensor):
        self.texts = texts
        self.rows = torch.argsort(texts, stable=True)
        self.counts = torch.bincount(texts)
        self.starts = self.counts.cumsum(0) - self.counts

    def draw(self, weights: torch.Tensor | None, generator: torch.Generator) -> torch.Tensor:
        """Returns (N) row indices, text by text.

        Args:
            weights: (N) weights of the rows; texts are drawn with replacement, by the mean weight of their rows. None:
                every text is drawn once.
            generator: source of the random numbers.
        """
        if weights is None:
            order = torch.randperm(len(self.counts), generator=generator)
        else:
            means = torch.zeros(len(self.counts), dtype=torch.float64).index_add(0, self.texts, weights) / self.counts
            # Enough texts are drawn for at least N rows, of which the first N are used.
            order = torch.multinomial(means, len(self.texts), replacement=True, generator=generator)
        counts = self.counts[order]
        ends = counts.cumsum(0)
        places = torch.arange(int(ends[-1])) - (ends - counts).repeat_interleave(counts)
        return self.rows[(self.starts[order].repeat_interleave(counts) + places)[: len(self.texts)]]
