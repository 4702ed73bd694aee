"""The loss of extractive question answering."""

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100


def span_loss(start_logits: Tensor, end_logits: Tensor, start_positions: Tensor, end_positions: Tensor) -> Tensor:
    """Mean of the cross-entropies of the first and of the last token of an answer.

    A position outside the sequence, below 0 or from L on, is left out: a long document is read in windows, and
    the answer may lie in another one.

    Args:
        start_logits, end_logits: (B, L).
        start_positions, end_positions: (B) or (B, 1) integers. They are not changed.

    Returns:
        (): 0 if every position is outside.

    Raises:
        TypeError, ValueError: positions of another type or shape.
    """
    losses = []
    for name, logits, positions in (
        ("start_positions", start_logits, start_positions),
        ("end_positions", end_logits, end_positions),
    ):
        if not isinstance(positions, Tensor) or positions.dtype not in (torch.int64, torch.int32):
            got = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
            raise TypeError(f"{name}: got {got}, wanted an integer torch.Tensor")
        batch, length = logits.shape
        if tuple(positions.shape) not in ((batch,), (batch, 1)):
            raise ValueError(f"{name}: got shape {tuple(positions.shape)}, wanted ({batch},)")
        positions = positions.long().reshape(-1)
        outside = (positions < 0) | (positions >= length)
        losses.append(mean_cross_entropy(logits, positions.masked_fill(outside, IGNORED)))
    return (losses[0] + losses[1]) / 2


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the rows whose label is not -100; 0, not NaN, if there is none. (B, C), (B) to ()."""
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp_min(1)
