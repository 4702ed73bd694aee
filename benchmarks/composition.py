"""Quasi-attention composed of two library kernels and element-wise work: the best that PyTorch has ready.

The softmax map goes through `scaled_dot_product_attention`. FlexAttention takes the sigmoid map: with the score
log sigmoid(t) its softmax is sigmoid(t) over a row's sum of sigmoids, which exp(logsumexp) puts back.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from benchmarks.shapes import FORWARD, FULL, Case, draw

_SDPA = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
_TRIALS = 4


def reasons_against(case: Case) -> list[str]:
    """Why the composition does not take a case; empty if it does."""
    reasons = []
    if case.dropout:
        reasons.append("FlexAttention has no dropout")
    if case.lengths != FULL:
        reasons.append("it is written for sequences of one length")
    if case.device == "cpu" and case.mode != FORWARD:
        reasons.append("FlexAttention has no backward on the CPU")
    if case.device != "cpu" and case.shape.head_dim & (case.shape.head_dim - 1):
        reasons.append("FlexAttention's kernel takes head sizes that are powers of two")
    return reasons


def build(case: Case) -> Callable[..., Tensor]:
    """The call for a case. On a GPU FlexAttention is compiled, as its documentation asks; not on the CPU."""
    softmax = best_sdpa(case)
    flex = flex_attention
    if case.device != "cpu":
        flex = torch.compile(flex_attention, fullgraph=True, dynamic=False)

    def call(query, key, value, context_query, context_key, gate_lambda):
        options = dict(score_mod=_log_sigmoid, return_aux=AuxRequest(lse=True))
        quasi, rows = flex(context_query, context_key, value, **options)
        total = torch.exp(rows.lse).unsqueeze(-1)
        return softmax(query, key, value) + (gate_lambda.unsqueeze(-1) * total * quasi).to(query.dtype)

    return call


def _log_sigmoid(score, _batch, _head, _query, _key):
    return F.logsigmoid(score)


def best_sdpa(case: Case) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Softmax attention on one map through the backend that is fastest for the case, found by trying them."""

    def through(backend: SDPBackend | None):
        def call(query, key, value):
            if backend is None:
                return F.scaled_dot_product_attention(query, key, value, dropout_p=case.dropout)
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(query, key, value, dropout_p=case.dropout)

        return call

    if case.device == "cpu":
        return through(None)
    inputs = draw(case, torch.Generator(case.device).manual_seed(0))
    times = {}
    for backend in _SDPA:
        try:
            times[backend] = min(_seconds(through(backend), inputs, case) for _ in range(_TRIALS))
        except RuntimeError:  # this backend does not take the case
            continue
    return through(min(times, key=times.get) if times else None)


def _seconds(call, inputs, case: Case) -> float:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with torch.set_grad_enabled(case.mode != FORWARD):
        events[0].record()
        out = call(*inputs[:3])
        if case.mode != FORWARD:
            torch.autograd.grad(out, inputs[:3], inputs.grad_out)
        events[1].record()
        events[1].synchronize()
    return 1e-3 * events[0].elapsed_time(events[1])
