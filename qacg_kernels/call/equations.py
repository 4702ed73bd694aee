"""The equations of MATH.md in plain PyTorch: maps, forward and hand-derived backward of a dense call.

They store the L x S maps. The reference backend, the self-check and `attention_maps` evaluate them.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from qacg_kernels.call import dropout
from qacg_kernels.call.masks import hides


@dataclass
class Maps:
    """What one dense call computes on its way to the output; maps are (B, H, L, S)."""

    softmax: Tensor  # P
    quasi: Tensor  # G, quasi_scale included
    sigmoid: Tensor  # G / quasi_scale
    gate: Tensor  # lambda, (B, H, L, 1) or (B, H, L, S)
    keep: Tensor | None  # Z
    row_max: Tensor  # (B, H, L)
    row_sum: Tensor  # (B, H, L)
    query_gate: Tensor | None  # (B, H, L)
    key_gate: Tensor | None  # (B, H, L) in row form, (B, H, S) in column form

    def combined(self) -> Tensor:
        """A = Z o (P + lambda G), eq. 7."""
        attention = self.softmax + self.gate * self.quasi
        return attention if self.keep is None else self.keep * attention


def outside_autocast(function):
    """Runs a function as if no autocast surrounded the call: its products would else be taken in 16 bits."""

    @functools.wraps(function)
    def run(*tensors, **options):
        device = next(t.device for t in tensors if t is not None)
        with torch.autocast(device.type, enabled=False):
            return function(*tensors, **options)

    return run


def visible(query: Tensor, key: Tensor, attn_mask, key_lengths, is_causal: bool, rows=None) -> Tensor:
    """vis(i, j), eq. 1: boolean, broadcastable to (B, H, L, S)."""
    j = torch.arange(key.shape[2], device=query.device)
    i = torch.arange(query.shape[2], device=query.device) if rows is None else rows
    seen = torch.ones((1, 1, i.shape[0], j.shape[0]), dtype=torch.bool, device=query.device)
    if is_causal:
        seen = seen & (j <= i.unsqueeze(1))
    if key_lengths is not None:
        seen = seen & (j < key_lengths.view(-1, 1, 1, 1))
    if attn_mask is not None:
        seen = seen & (attn_mask if attn_mask.dtype == torch.bool else ~hides(attn_mask))
    return seen


def cleared(t: Tensor, key_lengths: Tensor | None) -> Tensor:
    """Keys or values (B, H, S, D) with those beyond a length set to 0: a zero weight times NaN is NaN."""
    if key_lengths is None:
        return t
    beyond = torch.arange(t.shape[2], device=t.device) >= key_lengths.unsqueeze(1)
    return t.masked_fill(beyond[:, None, :, None], 0.0)


def _per_head(vector: Tensor) -> Tensor:
    """Gate vector (D) or (H, D) as (1 or H, 1, D)."""
    return vector.view(-1, 1, vector.shape[-1])


def _gate(x, context, vector, context_vector, bias) -> Tensor:
    """sigmoid(x.v + c.vc + b), eq. 4: (B, H, rows)."""
    logit = (x * _per_head(vector)).sum(-1) + (context * _per_head(context_vector)).sum(-1)
    return torch.sigmoid(logit if bias is None else logit + bias.view(-1, 1))


@outside_autocast
def maps(
    query,
    key,
    context_query,
    context_key,
    gate_lambda,
    gate_query,
    gate_context_query,
    gate_key,
    gate_context_key,
    gate_query_bias,
    gate_key_bias,
    attn_mask,
    key_lengths,
    dropout_seed,
    *,
    is_causal,
    dropout_p,
    scale,
    quasi_scale,
    beta,
    gamma,
    column_gate,
    first_sequence=0,
    rows=None,
    places=None,
) -> Maps:
    """All maps of a dense call, equations 1 to 7; differentiable by autograd.

    `rows` (int64, any order) keeps only those query positions: query, context_query and gate_lambda are then
    already indexed by it, and a row gate's key side is read at `rows`. `places` and `rows` are those of
    `dropout.keep_mask_at`.
    """
    seen = visible(query, key, attn_mask, key_lengths, is_causal, rows)
    seen_key, seen_context_key = cleared(key, key_lengths), cleared(context_key, key_lengths)
    scores = scale * query @ seen_key.transpose(-1, -2)
    context_scores = scale * context_query @ seen_context_key.transpose(-1, -2)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        bias = attn_mask.to(scores.dtype)
        scores, context_scores = scores + bias, context_scores + bias

    # A row without a visible key would be -inf - -inf; zero scores keep it finite and P is cleared after.
    empty = ~seen.any(-1, keepdim=True)
    scores = scores.masked_fill(~seen & ~empty, -torch.inf).masked_fill(empty, 0.0)
    softmax = torch.softmax(scores, -1).masked_fill(~seen, 0.0)
    row_max = scores.amax(-1) if key.shape[2] else scores.new_zeros(scores.shape[:-1])
    row_sum = torch.exp(scores - row_max.unsqueeze(-1)).sum(-1).masked_fill(empty[..., 0], 0.0)
    sigmoid = torch.sigmoid(context_scores.masked_fill(~seen, -torch.inf))

    query_gate = key_gate = None
    if gate_lambda is not None:
        gate = gate_lambda.unsqueeze(-1)
    else:
        # A row gate reads the key at the query's own position, be it beyond the length or not.
        key_side, context_key_side = (seen_key, seen_context_key) if column_gate else (key, context_key)
        if not column_gate and rows is not None:
            key_side, context_key_side = key[:, :, rows], context_key[:, :, rows]
        query_gate = _gate(query, context_query, gate_query, gate_context_query, gate_query_bias)
        key_gate = _gate(key_side, context_key_side, gate_key, gate_context_key, gate_key_bias)
        gate = 1 - (beta * query_gate.unsqueeze(-1) + gamma * key_gate.unsqueeze(-2 if column_gate else -1))

    keep = None
    if dropout_p > 0:
        if places is None:
            sizes = (*query.shape[:3], key.shape[2])
            survives = dropout.keep_mask(dropout_seed, dropout_p, *sizes, rows=rows, first_sequence=first_sequence)
        else:
            survives = dropout.keep_mask_at(dropout_seed, dropout_p, places, rows, key.shape[2])
        keep = survives * torch.tensor(dropout.keep_scale(dropout_p), dtype=scores.dtype, device=scores.device)
    return Maps(softmax, quasi_scale * sigmoid, sigmoid, gate, keep, row_max, row_sum, query_gate, key_gate)


def dense_forward(wide, lam, vectors, mask_inputs, options):
    """Equations 1 to 8: the output, its two branches, and the maps. The options are those of `maps`."""
    query, key, value, context_query, context_key = wide
    m = maps(query, key, context_query, context_key, lam, *vectors, *mask_inputs, **options)
    z = 1.0 if m.keep is None else m.keep
    value = cleared(value, mask_inputs[1])
    return m.combined() @ value, (z * m.softmax) @ value, (z * m.quasi) @ value, m


def dense_backward(grad_out, grad_query_gate, grad_key_gate, wide, lam, vectors, mask_inputs, options):
    """Equations 9 to 14. Returns the twelve gradients, None where there is no such input.

    With `rows` among the options those of key, value and the gate are the share of these query rows.
    """
    query, key, value, context_query, context_key = wide
    scale, beta, gamma = options["scale"], options["beta"], options["gamma"]
    m = maps(query, key, context_query, context_key, lam, *vectors, *mask_inputs, **options)
    z = 1.0 if m.keep is None else m.keep
    seen_key, seen_value, seen_context_key = (cleared(t, mask_inputs[1]) for t in (key, value, context_key))

    d_value = m.combined().transpose(-1, -2) @ grad_out
    d_attention = z * (grad_out @ seen_value.transpose(-1, -2))
    delta = (d_attention * m.softmax).sum(-1, keepdim=True)
    d_scores = m.softmax * (d_attention - delta)
    d_context_scores = m.gate * d_attention * m.quasi * (1 - m.sigmoid)
    d_query = scale * d_scores @ seen_key
    d_key = scale * d_scores.transpose(-1, -2) @ query
    d_context_query = scale * d_context_scores @ seen_context_key
    d_context_key = scale * d_context_scores.transpose(-1, -2) @ context_query
    d_gate = d_attention * m.quasi

    if lam is not None:
        return d_query, d_key, d_value, d_context_query, d_context_key, d_gate.sum(-1), *[None] * 6

    d_query_gate = -beta * d_gate.sum(-1)
    d_key_gate = -gamma * d_gate.sum(-2 if options["column_gate"] else -1)
    if grad_query_gate is not None:
        d_query_gate = d_query_gate + grad_query_gate
    if grad_key_gate is not None:
        d_key_gate = d_key_gate + grad_key_gate
    tq = (d_query_gate * m.query_gate * (1 - m.query_gate)).unsqueeze(-1)
    tk = (d_key_gate * m.key_gate * (1 - m.key_gate)).unsqueeze(-1)
    vq, vqc, vk, vkc, bq, bk = vectors
    gated = slice(None)  # keys whose gate counts here
    if options["column_gate"]:
        key, context_key = seen_key, seen_context_key
    elif options.get("rows") is not None:
        gated = options["rows"]
        key, context_key = key[:, :, gated], context_key[:, :, gated]
    d_key[:, :, gated] += tk * _per_head(vk)
    d_context_key[:, :, gated] += tk * _per_head(vkc)
    return (
        d_query + tq * _per_head(vq),
        d_key,
        d_value,
        d_context_query + tq * _per_head(vqc),
        d_context_key,
        None,
        *(_reduce(t * x, v) for t, x, v in ((tq, query, vq), (tq, context_query, vqc))),
        *(_reduce(t * x, v) for t, x, v in ((tk, key, vk), (tk, context_key, vkc))),
        *(None if b is None else _reduce(t, b.view(-1, 1)).view(b.shape) for t, b in ((tq, bq), (tk, bk))),
    )


def _reduce(per_row: Tensor, like: Tensor) -> Tensor:
    """Sums (B, H, rows, D) to the shape of a gate vector, (D) or (H, D)."""
    per_head = per_row.sum((0, 2))
    return per_head.sum(0).view(like.shape) if like.numel() == per_head.shape[-1] else per_head.view(like.shape)
