"""The baselines: eager PyTorch, torch.compile, a composition of library kernels, and softmax attention alone.

The composition, on a GPU, computes the softmax map with `scaled_dot_product_attention` and the sigmoid map with
FlexAttention, with the scores log sigmoid(t). Their softmax is sigmoid(t) divided by the sum of sigmoids, and this sum
is exp(logsumexp).
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from benchmarks.cases import DTYPES, FORWARD, FULL, PADDED, Case, draw, padding

_SDPA = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
_TRIALS = 4
Call = Callable[..., Tensor]


def lambda_of(
    query: Tensor, key: Tensor, context_query: Tensor, context_key: Tensor, gate: tuple[Tensor, ...]
) -> Tensor:
    """Lambda (B, H, L), or (T, H) if packed: as given, or from the four gate vectors (MATH.md, eq. 4 and 5)."""
    if len(gate) == 1:
        return gate[0]
    of_query, of_context_query, of_key, of_context_key = gate
    query_gate = torch.sigmoid(query @ of_query + context_query @ of_context_query)
    return 1 - (query_gate + torch.sigmoid(key @ of_key + context_key @ of_context_key))


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_query: Tensor,
    context_key: Tensor,
    *gate: Tensor,
    dropout_p: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Quasi-attention as models usually compute it: both maps are in memory, and a mask is added to both scores.

    `bias` is -10000 at hidden keys and 0 at other keys, broadcastable to (B, H, L, S); None: no mask.
    """
    scale = query.shape[-1] ** -0.5
    scores = query @ key.transpose(-1, -2) * scale
    context_scores = context_query @ context_key.transpose(-1, -2) * scale
    if bias is not None:
        scores, context_scores = scores + bias, context_scores + bias
    softmax, sigmoid = torch.softmax(scores, -1), torch.sigmoid(context_scores)
    attention = softmax + lambda_of(query, key, context_query, context_key, gate).unsqueeze(-1) * sigmoid
    return F.dropout(attention, dropout_p) @ value


def _eager_options(case: Case) -> dict[str, object]:
    bias = None
    if case.lengths == PADDED:
        bias = (padding(case)[:, None, None] * -10000.0).to(DTYPES[case.dtype])
    return dict(dropout_p=case.dropout, bias=bias)


def build_eager(case: Case) -> Call:
    return partial(eager_attention, **_eager_options(case))


def build_compiled(case: Case) -> Call:
    torch._dynamo.reset()  # else compilations of earlier cases would count towards the recompilation limit
    return partial(torch.compile(eager_attention, fullgraph=True, dynamic=False), **_eager_options(case))


# The composition of library kernels.


def unsupported_by_composition(case: Case) -> list[str]:
    reasons = []
    if case.dropout:
        reasons.append("dropout of two separate maps differs from dropout of their sum")
    if case.device == "cpu":
        reasons.append("FlexAttention is compiled for a GPU")
    if case.lengths != FULL:
        reasons.append("it supports sequences of equal length only")
    if case.shape.head_dim & (case.shape.head_dim - 1):
        reasons.append("FlexAttention supports head sizes that are powers of two")
    return reasons


def build_composition(case: Case) -> Call:
    flex = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    return partial(flex_composition, best_sdpa(case), flex)


def flex_composition(softmax, flex, query, key, value, context_query, context_key, *gate) -> Tensor:
    """The composition of functions for softmax attention and for FlexAttention."""
    quasi, aux = flex(context_query, context_key, value, score_mod=_log_sigmoid, return_aux=AuxRequest(lse=True))
    gate_lambda = lambda_of(query, key, context_query, context_key, gate)
    total = torch.exp(aux.lse).unsqueeze(-1)
    return softmax(query, key, value) + (gate_lambda.unsqueeze(-1) * total * quasi).to(query.dtype)


def _log_sigmoid(score, _batch, _head, _query, _key):
    return F.logsigmoid(score)


# Softmax attention alone.


def build_one_map(case: Case) -> Call:
    softmax = best_sdpa(case)
    return lambda query, key, value, *_: softmax(query, key, value)


def build_sdpa(case: Case) -> Call:
    """Softmax attention as users call it, for host overhead: naming a backend would add to it."""
    return lambda query, key, value, *_: F.scaled_dot_product_attention(query, key, value, dropout_p=case.dropout)


def _sdpa(backend: SDPBackend | None, case: Case) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def call(query, key, value):
        if backend is None:
            return F.scaled_dot_product_attention(query, key, value, dropout_p=case.dropout)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value, dropout_p=case.dropout)

    return call


def best_sdpa(case: Case) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Returns softmax attention: on a GPU with the SDPA backend that is the fastest in a short trial of the case.

    On the CPU, or if no backend supports the case, torch selects the backend.
    """
    if case.device == "cpu":
        return _sdpa(None, case)
    inputs = draw(case, torch.Generator(case.device).manual_seed(0))
    times = {}
    for backend in _SDPA:
        try:
            times[backend] = min(_seconds(_sdpa(backend, case), inputs, case) for _ in range(_TRIALS))
        except RuntimeError:  # the backend does not support the case
            continue
    return _sdpa(min(times, key=times.get) if times else None, case)


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
