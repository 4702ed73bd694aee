"""Losses of sequence classifiers and of answer spans, with checked labels."""

import torch
from torch import Tensor
from torch.nn import functional as F

from qacg_kernels.utils.torch_internals import values_readable

IGNORED = -100  # label of a row that a loss leaves out


def classification_loss(logits: Tensor, labels: Tensor, problem_type: str | None) -> Tensor:
    """Returns the mean loss of a sequence classifier.

    Args:
        logits: (B, C).
        labels: for "single_label_classification" (B) int64 or int32 from 0 to C - 1, or -100 for rows that the loss
            leaves out; for "regression" (B, C), or (B) if C is 1; for "multi_label_classification" (B, C), numbers from
            0 to 1.
        problem_type: one of the three names above. None is resolved as in transformers: "regression" if C is 1,
            otherwise "single_label_classification" for integer labels and "multi_label_classification" for
            floating-point labels.

    Returns:
        (): mean cross-entropy (0 if every row is left out), mean squared error, or mean binary cross-entropy, for the
            three problem types in this order.

    Raises:
        TypeError: the labels are not a tensor, or not int64 or int32 for "single_label_classification".
        ValueError: the labels have another shape, or a class or multi-label value is out of range. Ranges are
            checked on the CPU and outside torch.compile only.
    """
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels: expected a torch.Tensor or None, got {type(labels).__name__}")
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
        raise ValueError(f"labels: expected shape {shape} for {problem_type}, got shape {tuple(labels.shape)}")
    labels = labels.to(logits.dtype).view_as(logits)
    if problem_type == "regression":
        return F.mse_loss(logits, labels)
    if values_readable(labels) and labels.numel() and not bool(((labels >= 0) & (labels <= 1)).all()):
        raise ValueError(
            f"labels: expected 0 to 1 for {problem_type}, got {float(labels.min()):g} to {float(labels.max()):g}"
        )
    return F.binary_cross_entropy_with_logits(logits, labels)


def has_answers(start_positions: object, end_positions: object) -> bool:
    """Returns whether both answer positions are given; raises ValueError if only one is."""
    if (start_positions is None) != (end_positions is None):
        given, missing = ("start", "end") if end_positions is None else ("end", "start")
        raise ValueError(f"{missing}_positions: expected a tensor if {given}_positions is given, got None. Pass both.")
    return start_positions is not None


def span_loss(
    start_logits: Tensor,
    end_logits: Tensor,
    start_positions: Tensor,
    end_positions: Tensor,
    outside: str = "ignore",
) -> Tensor:
    """Returns the mean of the cross-entropies of the first and the last token of an answer.

    Each cross-entropy is averaged over the batch. The average leaves out positions of L or more. Such a position means
    that the answer is not in this sequence, but in another window of a long document.

    Args:
        start_logits: (B, L), logit of each token as the first of the answer.
        end_logits: (B, L), logit of each token as the last of the answer.
        start_positions: (B) or (B, 1) int64 or int32, index of the first token of each answer.
        end_positions: (B) or (B, 1) int64 or int32, index of the last token of each answer.
        outside: "ignore" also leaves out positions below 0; the average of no positions is 0. "clamp", as published,
            moves positions below 0 to the first token; the average of no positions is NaN.

    Raises:
        TypeError: the positions are not tensors of dtype int64 or int32.
        ValueError: the positions have another shape.
    """
    losses = []
    for name, logits, positions in (
        ("start_positions", start_logits, start_positions),
        ("end_positions", end_logits, end_positions),
    ):
        if not isinstance(positions, Tensor) or positions.dtype not in (torch.int64, torch.int32):
            got = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
            raise TypeError(f"{name}: expected a torch.Tensor of dtype torch.int64 or torch.int32, got {got}")
        batch, length = logits.shape
        if tuple(positions.shape) not in ((batch,), (batch, 1)):
            raise ValueError(f"{name}: expected shape ({batch},) or ({batch}, 1), got shape {tuple(positions.shape)}")
        positions = positions.long().reshape(-1)
        if outside == "clamp":
            losses.append(F.cross_entropy(logits, positions.clamp(0, length), ignore_index=length))
        else:
            missing = (positions < 0) | (positions >= length)
            losses.append(mean_cross_entropy(logits, positions.masked_fill(missing, IGNORED)))
    return (losses[0] + losses[1]) / 2


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean cross-entropy of the rows with a label other than -100; 0 without any.

    Args:
        logits: (B, C).
        labels: (B) int64.
    """
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp_min(1)


def _check_classes(labels: Tensor, batch: int, classes: int) -> None:
    if labels.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            "labels: expected dtype torch.int64 or torch.int32 for single_label_classification, "
            f"got dtype {labels.dtype}"
        )
    if tuple(labels.shape) != (batch,):
        raise ValueError(f"labels: expected shape ({batch},), got shape {tuple(labels.shape)}")
    if values_readable(labels) and bool(((labels != IGNORED) & ((labels < 0) | (labels >= classes))).any()):
        low, high = (int(x) for x in labels.aminmax())
        raise ValueError(
            f"labels: expected 0 to {classes - 1} (num_labels is {classes}), or {IGNORED} for rows to leave out, "
            f"got values from {low} to {high}"
        )
