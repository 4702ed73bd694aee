"""Quasi-attention composed of library kernels and element-wise work: the best that PyTorch has ready.

The softmax map goes through `scaled_dot_product_attention`. On the CPU the sigmoid map is made by chunks; packed
sequences go one after another. On a GPU FlexAttention takes it: with the score log sigmoid(t) its softmax is
sigmoid(t) over a row's sum of sigmoids, which exp(logsumexp) puts back.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from benchmarks.cases.case import FORWARD, FULL, PACKED, PADDED, Case
from benchmarks.cases.inputs import draw, padding
from benchmarks.providers.chunked_sigmoid import sigmoid_attention

_SDPA = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
_TRIALS = 4


def reasons_against(case: Case) -> list[str]:
    """Why the composition does not take a case; empty if it does."""
    reasons = []
    if case.dropout:
        reasons.append("its two maps would drop cells apart, which is not dropout of their sum")
    if case.device == "cpu":
        return reasons
    if case.lengths != FULL:
        reasons.append("on a GPU it is written for sequences of one length")
    if case.shape.head_dim & (case.shape.head_dim - 1):
        reasons.append("FlexAttention's kernel takes head sizes that are powers of two")
    return reasons


def build(case: Case) -> Callable[..., Tensor]:
    """The call for a case. FlexAttention is compiled, as its documentation asks."""
    if case.device != "cpu":
        compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)
        return partial(through_flex, best_sdpa(case), compiled)
    if case.lengths == PACKED:
        return partial(_by_sequence, list(case.sequence_lengths))
    return partial(_by_chunks, padding(case) if case.lengths == PADDED else None)


def _by_chunks(hidden, query, key, value, context_query, context_key, gate_lambda) -> Tensor:
    mask = None if hidden is None else ~hidden[:, None, None, :]
    softmax = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    quasi = sigmoid_attention(context_query, context_key, value, hidden)
    return torch.addcmul(softmax, gate_lambda.unsqueeze(-1), quasi)


def _by_sequence(lengths: list[int], *operands: Tensor) -> Tensor:
    """Of packed operands (T, H, D) and (T, H), each sequence as a call of its own."""
    sequences = zip(*(t.transpose(0, 1).split(lengths, 1) for t in operands))
    outs = [_by_chunks(None, *(t.unsqueeze(0) for t in sequence)) for sequence in sequences]
    return torch.cat(outs, 2).squeeze(0).transpose(0, 1)


def through_flex(softmax, flex, query, key, value, context_query, context_key, gate_lambda) -> Tensor:
    """The composition with softmax attention through `softmax` and the sigmoid map through `flex`."""
    quasi, rows = flex(context_query, context_key, value, score_mod=_log_sigmoid, return_aux=AuxRequest(lse=True))
    total = torch.exp(rows.lse).unsqueeze(-1)
    return softmax(query, key, value) + (gate_lambda.unsqueeze(-1) * total * quasi).to(query.dtype)


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
