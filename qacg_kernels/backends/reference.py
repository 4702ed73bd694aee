"""The PyTorch reference: evaluates the equations of MATH.md on any device, for inputs of 16, 32 or 64 bits.

For 16-bit inputs it computes in float32. It materialises the L x S maps. The self-check compares other backends with
the same equations (`call/equations.py`) in float64.
"""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from qacg_kernels.call import equations
from qacg_kernels.call.equations import Position
from qacg_kernels.call.problem import ForwardOutputs, Gradients, Problem, Residuals, Saved, row_dtype
from qacg_kernels.operators.autograd import define_operators
from qacg_kernels.operators.schema import empty_dense_like

NAME = "reference"
DEVICE = None
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_DIM, HEAD_DIM_STEP = None, 1


def missing() -> list[str]:
    return []


def not_for(device: torch.device) -> list[str]:
    return []


def residuals(problem: Problem) -> Residuals:
    return Residuals(save_softmax_out=False, save_quasi_out=False)


def note(problem: Problem) -> str | None:
    return None


def sequences(p: Problem) -> Iterator[tuple[slice, Problem, Position]]:
    """Yields each packed sequence: its range of tokens, its dense call, and the sequence's index as a Position."""
    per_token = ("query", "key", "value", "context_query", "context_key", "gate_lambda")
    for index, (start, stop) in enumerate(itertools.pairwise(p.cu_seqlens.tolist())):
        tokens = slice(start, stop)
        dense = {name: dense_rows(getattr(p, name), tokens) for name in per_token}
        bias = p.quasi_bias
        if bias is not None:
            dense["quasi_bias"] = dense_rows(bias, tokens if bias.shape[0] > 1 else slice(None))
        yield tokens, p.replaced(**dense, cu_seqlens=None), Position(first_sequence=index)


def dense_rows(t: Tensor | None, tokens: slice) -> Tensor | None:
    """A range of L tokens of a packed tensor (T, H, ...) as a dense one (1, H, L, ...); None stays None."""
    return None if t is None else t[tokens].transpose(0, 1).unsqueeze(0)


@equations.outside_autocast
def forward(problem: Problem, residuals: Residuals) -> ForwardOutputs:
    """The implementation of the operator qacg::reference_attention."""
    query, dtype = problem.query, row_dtype(problem.query)
    p = problem.to(dtype)
    has_vectors = p.gate_lambda is None
    key_rows = (p.key if p.column_gate else p.query).shape[:-1]
    results = ForwardOutputs(
        *(empty_dense_like(query) for _ in range(3)),
        *(query.new_empty(query.shape[:-1], dtype=dtype) for _ in range(2)),
        query.new_empty(query.shape[:-1], dtype=dtype) if has_vectors else None,
        query.new_empty(key_rows, dtype=dtype) if has_vectors else None,
    )
    if not p.packed:
        for result, computed in zip(results, equations.dense_forward(p)[0]):
            if result is not None:
                result.copy_(computed)
    else:
        for tokens, sequence, position in sequences(p):
            for result, computed in zip(results, equations.dense_forward(sequence, position)[0]):
                if result is not None:
                    result[tokens] = computed[0].transpose(0, 1)
    return results._replace(
        softmax_out=results.softmax_out if residuals.save_softmax_out else None,
        quasi_out=results.quasi_out if residuals.save_quasi_out else None,
    )


@equations.outside_autocast
def backward(problem: Problem, saved: Saved) -> Gradients:
    """The implementation of qacg::reference_attention_backward; recomputes the forward from the inputs and the seed."""
    dtype = row_dtype(problem.query)
    p = problem.to(dtype)
    # If lambda is given, the gates are empty tensors, and so are their gradients.
    names = ("grad_out", "grad_query_gate", "grad_key_gate") if p.gate_lambda is None else ("grad_out",)
    upstream = {name: None if (t := getattr(saved, name)) is None else t.to(dtype) for name in names}
    saved = saved._replace(grad_query_gate=None, grad_key_gate=None)._replace(**upstream)
    if not p.packed:
        grads, _ = equations.dense_backward(p, saved)
    else:
        inputs = (getattr(p, name) for name in Gradients._fields)
        grads = Gradients(*(None if t is None else torch.zeros_like(t) for t in inputs))
        for tokens, sequence, position in sequences(p):
            cut = saved._replace(**{name: dense_rows(t, tokens) for name, t in upstream.items()})
            share, _ = equations.dense_backward(sequence, cut, position)
            for name, total, g in zip(grads._fields, grads, share):
                if total is None:
                    continue
                if name.startswith("gate_") and name != "gate_lambda":
                    total += g
                else:
                    total[tokens] = g[0].transpose(0, 1)
    return Gradients(*(_as_input(g, getattr(problem, name)) for name, g in zip(grads._fields, grads)))


def _as_input(gradient: Tensor | None, t: Tensor | None) -> Tensor | None:
    """A copy of a gradient in the dtype and memory order of its input `t`; None if either is absent."""
    if t is None or gradient is None:
        return None
    return empty_dense_like(t).copy_(gradient)


define_operators(NAME, forward, backward)
