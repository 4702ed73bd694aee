"""Losses of the heads, with labels checked: the problem types of transformers, and answer spans."""

import torch
from torch import Tensor
from torch.nn import functional as F

from qacg_kernels.utils.torch_internals import values_readable

IGNORED = -100


def classification_loss(logits: Tensor, labels: Tensor, problem_type: str | None) -> Tensor:
    """The mean loss of a sequence classifier.

    Args:
        logits: (B, C).
        labels: for "single_label_classification" (B) integers below C, or -100 for rows that are left out; for
            "regression" (B) if C is 1, else (B, C); for "multi_label_classification" (B, C) of 0 to 1.
        problem_type: None decides as transformers does: regression if C is 1, else one label if `labels` are
            integers, else many.

    Returns:
        (): mean cross-entropy (0 if every row is left out), squared error, or binary cross-entropy.

    Raises:
        TypeError, ValueError: labels of another type, shape or range.
    """
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels: got {type(labels).__name__}, wanted a torch.Tensor or None")
    batch, classes = logits.shape
    if problem_type is None:
        whole = not labels.is_floating_point()
        several = "single_label_classification" if whole else "multi_label_classification"
        problem_type = "regression" if classes == 1 else several
    if problem_type == "single_label_classification":
        _check_classes(labels, batch, classes)
        return mean_cross_entropy(logits, labels.long())
    shape = (batch,) if problem_type == "regression" and classes == 1 and labels.dim() == 1 else (batch, classes)
    if tuple(labels.shape) != shape:
        raise ValueError(f"labels: got shape {tuple(labels.shape)}, wanted {shape} for {problem_type}")
    labels = labels.to(logits.dtype).view_as(logits)
    if problem_type == "regression":
        return F.mse_loss(logits, labels)
    return F.binary_cross_entropy_with_logits(logits, labels)


def has_answers(start_positions: object, end_positions: object) -> bool:
    """Whether the positions of answers were given; ValueError for those of one end alone."""
    if (start_positions is None) != (end_positions is None):
        given, missing = ("start", "end") if end_positions is None else ("end", "start")
        raise ValueError(f"{missing}_positions: got None beside {given}_positions, wanted both or neither")
    return start_positions is not None


def span_loss(
    start_logits: Tensor,
    end_logits: Tensor,
    start_positions: Tensor,
    end_positions: Tensor,
    outside: str = "ignore",
) -> Tensor:
    """Mean of the cross-entropies of the first and of the last token of an answer.

    Long documents are read in windows, and an answer may lie in another one: a position from L on is left out.

    Args:
        start_logits, end_logits: (B, L).
        start_positions, end_positions: (B) or (B, 1) integers. They are not changed.
        outside: with "ignore" a position below 0 is left out too, and without any position inside a term of the
            mean is 0; with "clamp", which is published, one below 0 counts as the first token, and such a term is NaN.

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
        if outside == "clamp":
            losses.append(F.cross_entropy(logits, positions.clamp(0, length), ignore_index=length))
        else:
            missing = (positions < 0) | (positions >= length)
            losses.append(mean_cross_entropy(logits, positions.masked_fill(missing, IGNORED)))
    return (losses[0] + losses[1]) / 2


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the rows that count; 0 and not NaN if none does."""
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp_min(1)


def _check_classes(labels: Tensor, batch: int, classes: int) -> None:
    if labels.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"labels: got dtype {labels.dtype}, wanted integers for single_label_classification")
    if tuple(labels.shape) != (batch,):
        raise ValueError(f"labels: got shape {tuple(labels.shape)}, wanted ({batch},)")
    if values_readable(labels) and bool(((labels != IGNORED) & ((labels < 0) | (labels >= classes))).any()):
        low, high = (int(x) for x in labels.aminmax())
        raise ValueError(
            f"labels: got values from {low} to {high}, wanted 0 to {classes - 1} (num_labels is {classes}), "
            f"or {IGNORED} for rows to leave out"
        )
