"""The specification: every formula of MATH.md in plain PyTorch, forward and hand-derived backward.

Runs on any device in any float type; 16-bit inputs are computed in float32. It stores the L x S maps and
is meant to be read and to judge the other backends, not to be fast.
"""

import itertools

import torch
from torch import Tensor

from qacg_kernels.call import equations
from qacg_kernels.operators.schema import empty_dense_like, register_kernels, row_dtype

NAME = "reference"
NEEDS_SELF_CHECK = False
DEVICE = None


def missing() -> list[str]:
    """Why this backend is not on this machine: it always is."""
    return []


def not_for(device: torch.device) -> list[str]:
    """Why this backend takes no call on a device: every processor will do."""
    return []


def unsupported(problem) -> list[str]:
    """Reasons why this backend would not take the call: it takes every call."""
    return []


def residuals(problem) -> dict[str, bool]:
    """Which branch outputs the backward wants from the forward."""
    return {"save_softmax_out": False, "save_quasi_out": False}


def note(problem) -> str | None:
    """Nothing that a user would have to know."""
    return None


def _promoted(tensors, dtype):
    return [None if t is None else t.to(dtype) for t in tensors]


def _sequences(cu_seqlens):
    offsets = cu_seqlens.tolist()
    return enumerate(itertools.pairwise(offsets))


def _one_sequence(t, start, stop):
    """Rows of a packed (T, H, ...) tensor as a dense (1, H, L, ...) one."""
    return None if t is None else t[start:stop].transpose(0, 1).unsqueeze(0)


@equations.outside_autocast
def forward(*inputs, save_softmax_out=True, save_quasi_out=False, **options):
    """Kernel of qacg::reference_attention."""
    *tensors, attn_mask, key_lengths, cu_seqlens, seed = inputs
    query, column_gate = tensors[0], options["column_gate"]
    options.pop("max_seqlen")
    dtype = row_dtype(query)
    wide, lam, vectors = _promoted(tensors[:5], dtype), *_promoted(tensors[5:6], dtype), _promoted(tensors[6:], dtype)
    out = empty_dense_like(query)
    softmax_out, quasi_out = empty_dense_like(query), empty_dense_like(query)
    row_max, row_sum = (query.new_empty(query.shape[:-1], dtype=dtype) for _ in range(2))
    has_vectors = vectors[0] is not None
    query_gate = row_sum.new_empty(query.shape[:-1]) if has_vectors else None
    key_rows = tensors[1].shape[:-1] if column_gate else query.shape[:-1]
    key_gate = row_sum.new_empty(key_rows) if has_vectors else None

    if cu_seqlens is None:
        o, o1, o2, m = equations.dense_forward(wide, lam, vectors, (attn_mask, key_lengths, seed), options)
        pairs = [(out, o), (softmax_out, o1), (quasi_out, o2), (row_max, m.row_max), (row_sum, m.row_sum)]
        for target, source in pairs:
            target.copy_(source)
        if has_vectors:
            query_gate.copy_(m.query_gate)
            key_gate.copy_(m.key_gate)
    else:
        for index, (start, stop) in _sequences(cu_seqlens):
            sequence = [_one_sequence(t, start, stop) for t in wide]
            o, o1, o2, m = equations.dense_forward(
                sequence,
                _one_sequence(lam, start, stop),
                vectors,
                (None, None, seed),
                options | {"first_sequence": index},
            )
            pairs = [(out, o), (softmax_out, o1), (quasi_out, o2), (row_max, m.row_max), (row_sum, m.row_sum)]
            if has_vectors:
                pairs += [(query_gate, m.query_gate), (key_gate, m.key_gate)]
            for target, source in pairs:
                target[start:stop] = source[0].transpose(0, 1)
    return (
        out,
        softmax_out if save_softmax_out else None,
        quasi_out if save_quasi_out else None,
        row_max,
        row_sum,
        query_gate,
        key_gate,
    )


@equations.outside_autocast
def backward(grad_out, grad_query_gate, grad_key_gate, *inputs, **options):
    """Kernel of qacg::reference_attention_backward. Rebuilds everything from the inputs and the seed."""
    *tensors, attn_mask, key_lengths, cu_seqlens, seed = inputs[:16]
    options.pop("max_seqlen")
    dtype = row_dtype(tensors[0])
    wide, lam, vectors = _promoted(tensors[:5], dtype), *_promoted(tensors[5:6], dtype), _promoted(tensors[6:], dtype)
    # With lambda given there are no gates; a gradient of the empty tensors in their place has no rows to cut.
    of_gates = (None, None) if lam is not None else (grad_query_gate, grad_key_gate)
    row_grads = _promoted((grad_out, *of_gates), dtype)
    grads: list[Tensor | None]
    if cu_seqlens is None:
        grads = list(equations.dense_backward(*row_grads, wide, lam, vectors, (attn_mask, key_lengths, seed), options))
    else:
        grads = [None if t is None else torch.zeros_like(t) for t in (*wide, lam, *vectors)]
        for index, (start, stop) in _sequences(cu_seqlens):
            part = equations.dense_backward(
                *(_one_sequence(g, start, stop) for g in row_grads),
                [_one_sequence(t, start, stop) for t in wide],
                _one_sequence(lam, start, stop),
                vectors,
                (None, None, seed),
                options | {"first_sequence": index},
            )
            for slot, (total, g) in enumerate(zip(grads, part)):
                if total is None:
                    continue
                if slot < 6:
                    total[start:stop] = g[0].transpose(0, 1)
                else:
                    total += g
    results = []
    for slot, (t, g) in enumerate(zip(tensors, grads)):
        if t is None:
            results.append(None)
            continue
        result = empty_dense_like(t) if slot < 5 else t.new_empty(t.shape)
        results.append(result.copy_(g))
    return tuple(results)


register_kernels("reference", forward, backward)
