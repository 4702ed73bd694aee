"""Quasi-attention as a model is usually written, with both maps in memory."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases.case import DTYPES, PADDED, Case
from benchmarks.cases.inputs import padding


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_query: Tensor,
    context_key: Tensor,
    gate_lambda: Tensor,
    *,
    dropout_p: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Quasi-attention as a model is usually written: both maps in memory, padding hidden by -10000."""
    scale = query.shape[-1] ** -0.5
    scores = query @ key.transpose(-1, -2) * scale
    context_scores = context_query @ context_key.transpose(-1, -2) * scale
    if bias is not None:
        scores, context_scores = scores + bias, context_scores + bias
    softmax, sigmoid = torch.softmax(scores, -1), torch.sigmoid(context_scores)
    attention = softmax + gate_lambda.unsqueeze(-1) * sigmoid
    return F.dropout(attention, dropout_p) @ value


def options(case: Case) -> dict[str, object]:
    bias = None
    if case.lengths == PADDED:
        bias = (padding(case)[:, None, None] * -10000.0).to(DTYPES[case.dtype])
    return dict(dropout_p=case.dropout, bias=bias)


def build(case: Case) -> Callable[..., Tensor]:
    return partial(eager_attention, **options(case))
