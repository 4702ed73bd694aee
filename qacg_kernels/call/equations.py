"""The equations of MATH.md in plain PyTorch: the bias of context scores; maps, forward and backward of a dense call.

The last three materialise the L x S maps. The reference backend, the self-check and `attention_maps` use them.
"""

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from qacg_kernels.call import dropout
from qacg_kernels.call.problem import ForwardOutputs, Gradients, Problem, Saved, hides, row_dtype

# The argument that selects the bias -log n_i for query i, where n_i is the number of keys that query i sees.
MINUS_LOG_KEYS: Literal["-log(keys)"] = "-log(keys)"
QuasiBias = float | Tensor | Literal["-log(keys)"]


@dataclass
class Maps:
    """Intermediate results of a dense call; maps are (B, H, L, S)."""

    softmax: Tensor  # P
    quasi: Tensor  # G, quasi_scale included
    sigmoid: Tensor  # G / quasi_scale
    gate: Tensor  # lambda, (B, H, L, 1) or (B, H, L, S)
    keep: Tensor | None  # Z; None without dropout
    row_max: Tensor  # (B, H, L)
    row_sum: Tensor  # (B, H, L)
    query_gate: Tensor | None  # (B, H, L)
    key_gate: Tensor | None  # (B, H, L) for a row gate, (B, H, S) for a column gate

    def combined(self) -> Tensor:
        """A = Z o (P + lambda G), eq. 7."""
        attention = self.softmax + self.gate * self.quasi
        return attention if self.keep is None else self.keep * attention


@dataclass(frozen=True)
class Position:
    """The place of a dense problem in a larger call, on whose positions causality and dropout depend.

    Attributes:
        rows: int64 positions of the problem's queries (`Problem.at_rows`); None if it has all queries.
        places: int64 (batch, heads), b * H + h in the larger call (`dropout.places_of`); None for all heads of
            consecutive sequences.
        first_sequence: index of the first of them.
    """

    rows: Tensor | None = None
    places: Tensor | None = None
    first_sequence: int = 0


_WHOLE = Position()


def outside_autocast(function):
    """Decorates a function of a Problem to run without autocast, which would compute its products in 16 bits."""

    @functools.wraps(function)
    def run(problem: Problem, *others):
        if problem.query.is_meta:  # torch has no autocast for this device
            return function(problem, *others)
        with torch.autocast(problem.query.device.type, enabled=False):
            return function(problem, *others)

    return run


def visible(p: Problem, rows: Tensor | None = None) -> Tensor:
    """vis(i, j), eq. 1: True where query i sees key j; boolean, broadcastable to (B, H, L, S).

    `rows` are the positions i of the queries, 0 to L - 1 when None.
    """
    j = torch.arange(p.key.shape[2], device=p.query.device)
    i = torch.arange(p.query.shape[2], device=p.query.device) if rows is None else rows
    seen = torch.ones((1, 1, i.shape[0], j.shape[0]), dtype=torch.bool, device=p.query.device)
    if p.is_causal:
        seen = seen & (j <= i.unsqueeze(1))
    if p.key_lengths is not None:
        seen = seen & (j < p.key_lengths.view(-1, 1, 1, 1))
    if p.attn_mask is not None:
        seen = seen & (p.attn_mask if p.attn_mask.dtype == torch.bool else ~hides(p.attn_mask))
    return seen


def cleared(t: Tensor, key_lengths: Tensor | None) -> Tensor:
    """Returns keys or values (B, H, S, D) with 0 at and beyond the length; unchanged if key_lengths is None.

    Hidden keys have weight 0, but 0 times NaN is NaN.
    """
    if key_lengths is None:
        return t
    beyond = torch.arange(t.shape[2], device=t.device) >= key_lengths.unsqueeze(1)
    return t.masked_fill(beyond[:, None, :, None], 0.0)


def _per_head(vector: Tensor) -> Tensor:
    """A gate vector (D), (1, D) or (H, D) as a view of shape (1 or H, 1, D)."""
    return vector.view(-1, 1, vector.shape[-1])


def gate_values(
    x: Tensor, context: Tensor, vector: Tensor, context_vector: Tensor, bias: Tensor | None, context_bias: Tensor | None
) -> Tensor:
    """Returns the gate sigmoid(x . v + c . vc + b + bc), eq. 4, (B, H, rows), for x and context c (B, H, rows, D)."""
    logit = (x * _per_head(vector)).sum(-1) + (context * _per_head(context_vector)).sum(-1)
    for b in (bias, context_bias):
        logit = logit if b is None else logit + b.view(-1, 1)
    return torch.sigmoid(logit)


def key_side(p: Problem, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """Key and context key at the positions where the gate reads them.

    For a row gate these are the query positions: `rows`, or all when None. For a column gate these are all keys.
    """
    if p.column_gate:
        return cleared(p.key, p.key_lengths), cleared(p.context_key, p.key_lengths)
    # A row gate reads the key at the query's position even if it is beyond the length.
    return (p.key, p.context_key) if rows is None else (p.key[:, :, rows], p.context_key[:, :, rows])


@outside_autocast
def maps(p: Problem, position: Position = _WHOLE) -> Maps:
    """All maps of a dense call, equations 1 to 7; differentiable by autograd."""
    rows = position.rows
    seen = visible(p, rows)
    scores = p.scale * p.query @ cleared(p.key, p.key_lengths).transpose(-1, -2)
    context_scores = p.scale * p.context_query @ cleared(p.context_key, p.key_lengths).transpose(-1, -2)
    if p.attn_mask is not None and p.attn_mask.dtype != torch.bool:
        bias = p.attn_mask.to(scores.dtype)
        scores, context_scores = scores + bias, context_scores + bias
    if p.quasi_bias is not None:
        context_scores = context_scores + p.quasi_bias.unsqueeze(-1).to(scores.dtype)

    # In a row without a visible key the softmax would compute -inf - -inf. Its scores are 0 instead, and P is cleared.
    empty = ~seen.any(-1, keepdim=True)
    scores = scores.masked_fill(~seen & ~empty, -torch.inf).masked_fill(empty, 0.0)
    softmax = torch.softmax(scores, -1).masked_fill(~seen, 0.0)
    row_max = scores.amax(-1) if p.key.shape[2] else scores.new_zeros(scores.shape[:-1])
    row_sum = torch.exp(scores - row_max.unsqueeze(-1)).sum(-1).masked_fill(empty[..., 0], 0.0)
    sigmoid = torch.sigmoid(context_scores.masked_fill(~seen, -torch.inf))

    query_gate = key_gate = None
    if p.gate_lambda is not None:
        gate = p.gate_lambda.unsqueeze(-1)
    else:
        vq, vqc, vk, vkc, *biases = p.gate_parameters
        query_gate = gate_values(p.query, p.context_query, vq, vqc, *biases[:2])
        key_gate = gate_values(*key_side(p, rows), vk, vkc, *biases[2:])
        gate = 1 - (p.beta * query_gate.unsqueeze(-1) + p.gamma * key_gate.unsqueeze(-2 if p.column_gate else -1))

    keep = None
    if p.dropout_p > 0:
        places = position.places
        if places is None:
            places = dropout.places_of(*p.query.shape[:2], position.first_sequence, p.query.device)
        rows = torch.arange(p.query.shape[2], device=p.query.device) if rows is None else rows
        survives = dropout.keep_mask_at(p.dropout_seed, p.dropout_p, places, rows, p.key.shape[2])
        keep = survives * torch.tensor(dropout.keep_scale(p.dropout_p), dtype=scores.dtype, device=scores.device)
    return Maps(softmax, p.quasi_scale * sigmoid, sigmoid, gate, keep, row_max, row_sum, query_gate, key_gate)


def dense_forward(p: Problem, position: Position = _WHOLE) -> tuple[ForwardOutputs, Maps]:
    """Evaluates equations 1 to 8; returns the results of the forward and the maps."""
    m = maps(p, position)
    z = 1.0 if m.keep is None else m.keep
    value = cleared(p.value, p.key_lengths)
    out, softmax_out, quasi_out = m.combined() @ value, (z * m.softmax) @ value, (z * m.quasi) @ value
    return ForwardOutputs(out, softmax_out, quasi_out, m.row_max, m.row_sum, m.query_gate, m.key_gate), m


def dense_backward(p: Problem, saved: Saved, position: Position = _WHOLE) -> tuple[Gradients, Maps]:
    """Evaluates equations 9 to 14; returns the gradients and the maps.

    The function reads only the upstream gradients of `saved` and recomputes the forward's results. With
    `position.rows`, the gradients of key, value, context key and gate parameters are sums over these query rows only.
    """
    m = maps(p, position)
    z = 1.0 if m.keep is None else m.keep
    seen_key, seen_value, seen_context_key = (cleared(t, p.key_lengths) for t in (p.key, p.value, p.context_key))

    d_value = m.combined().transpose(-1, -2) @ saved.grad_out
    d_attention = z * (saved.grad_out @ seen_value.transpose(-1, -2))
    delta = (d_attention * m.softmax).sum(-1, keepdim=True)
    d_scores = m.softmax * (d_attention - delta)
    d_context_scores = m.gate * d_attention * m.quasi * (1 - m.sigmoid)
    d_query = p.scale * d_scores @ seen_key
    d_key = p.scale * d_scores.transpose(-1, -2) @ p.query
    d_context_query = p.scale * d_context_scores @ seen_context_key
    d_context_key = p.scale * d_context_scores.transpose(-1, -2) @ p.context_query
    d_gate = d_attention * m.quasi
    if p.gate_lambda is not None:
        return Gradients(d_query, d_key, d_value, d_context_query, d_context_key, d_gate.sum(-1), *[None] * 8), m

    d_query_gate = -p.beta * d_gate.sum(-1)
    d_key_gate = -p.gamma * d_gate.sum(-2 if p.column_gate else -1)
    if saved.grad_query_gate is not None:
        d_query_gate = d_query_gate + saved.grad_query_gate
    if saved.grad_key_gate is not None:
        d_key_gate = d_key_gate + saved.grad_key_gate
    tq = (d_query_gate * m.query_gate * (1 - m.query_gate)).unsqueeze(-1)
    tk = (d_key_gate * m.key_gate * (1 - m.key_gate)).unsqueeze(-1)
    gated = slice(None) if p.column_gate or position.rows is None else position.rows  # keys that the gate reads
    d_key[:, :, gated] += tk * _per_head(p.gate_key)
    d_context_key[:, :, gated] += tk * _per_head(p.gate_context_key)
    key, context_key = key_side(p, position.rows)
    grads = Gradients(
        d_query + tq * _per_head(p.gate_query),
        d_key,
        d_value,
        d_context_query + tq * _per_head(p.gate_context_query),
        d_context_key,
        None,
        reduced(tq * p.query, p.gate_query),
        reduced(tq * p.context_query, p.gate_context_query),
        reduced(tk * key, p.gate_key),
        reduced(tk * context_key, p.gate_context_key),
        *(None if b is None else reduced(t, b) for t, b in zip((tq, tq, tk, tk), p.gate_parameters[4:])),
    )
    return grads, m


def reduced(per_row: Tensor, like: Tensor) -> Tensor:
    """Sums (B, H, rows, D) to the shape of the gate vector `like`, or (B, H, rows, 1) to that of the bias `like`."""
    per_head = per_row.sum((0, 2))
    return per_head.sum(0).view(like.shape) if like.numel() == per_head.shape[-1] else per_head.view(like.shape)


def bias_of_keys(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, key_lengths: Tensor | None, is_causal: bool
) -> Tensor:
    """The bias -log n_i of each query i of a dense call; 0 if the query sees no key.

    Without an additive mask, n_i is the number of keys that query i sees. With one, n_i is the sum of exp(m) over the
    mask's values m of these keys, so a key with m = -10000 practically does not count. The result has three dimensions
    that broadcast to (B, H, L), and the dtype `row_dtype(query)`.
    """
    queries, keys, dtype, device = query.shape[2], key.shape[2], row_dtype(query), query.device
    positions = torch.arange(queries, device=device)
    if attn_mask is None:
        seen = torch.full((1, 1, 1), keys, dtype=torch.int64, device=device)
        if key_lengths is not None:
            seen = torch.minimum(seen, key_lengths.view(-1, 1, 1))
        if is_causal:
            seen = torch.minimum(seen, positions + 1)
        return -seen.clamp(min=1).to(dtype).log()
    if keys == 0:
        return torch.zeros((1, 1, 1), dtype=dtype, device=device)
    mask, j = attn_mask.expand(-1, -1, -1, keys), torch.arange(keys, device=device)
    of_each_query = mask.shape[2] != 1
    hidden = ~mask if mask.dtype == torch.bool else hides(mask)
    if key_lengths is not None:
        hidden = hidden | (j >= key_lengths.view(-1, 1, 1, 1))
    if is_causal and of_each_query:
        hidden = hidden | (j > positions.unsqueeze(1))
    by_query = is_causal and not of_each_query
    at_query = lambda sums: sums[:, :, 0].index_select(-1, positions.clamp(max=keys - 1))  # noqa: E731
    if mask.dtype == torch.bool:  # counted, because some runtimes compute the ReduceLogSumExp of an ONNX file wrongly
        ones = (~hidden).to(dtype)
        return -(at_query(ones.cumsum(-1)) if by_query else ones.sum(-1)).clamp(min=1).log()
    logs = mask.to(dtype).masked_fill(hidden, -torch.inf)
    log_seen = at_query(logs.logcumsumexp(-1)) if by_query else logs.logsumexp(-1)
    return -log_seen.masked_fill(log_seen == -torch.inf, 0.0)


def bias_of_packed_keys(query: Tensor, cu_seqlens: Tensor, is_causal: bool) -> Tensor:
    """The bias -log n_i of each token i of a packed call, which sees n_i keys: (T, 1) in `row_dtype(query)`."""
    token = torch.arange(query.shape[0], device=query.device)
    offsets = cu_seqlens.long()
    after = torch.searchsorted(offsets, token, right=True).clamp(1, max(offsets.shape[0] - 1, 1))
    start, stop = offsets[after - 1], offsets[after]
    seen = (token + 1 if is_causal else stop) - start
    return -seen.clamp(min=1).to(row_dtype(query)).log().unsqueeze(1)
