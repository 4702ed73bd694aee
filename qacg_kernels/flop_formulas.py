"""Registers FLOP formulas of the operators; import this module before you use torch's FlopCounterMode.

The package does not import this module, because torch.utils.flop_counter loads Triton.

Example:
    >>> import torch
    >>> import qacg_kernels.flop_formulas
    >>> from torch.utils.flop_counter import FlopCounterMode
    >>> heads = torch.randn(5, 2, 4, 10, 16).unbind()
    >>> with FlopCounterMode(display=False) as counter:
    ...     out = qacg_kernels.quasi_attention(*heads, torch.rand(2, 4, 10))
    >>> counter.get_total_flops()  # 6 x 10 x 10 x 16 for each of 2 x 4 heads
    76800

Per sequence and head, a forward counts as 6 L S D and a backward as 16 L S D (MATH.md, Work), whichever kernel runs.
Masks, key lengths and causality do not reduce the count. If the offsets of packed sequences cannot be read, the count
is an upper bound.
"""

from itertools import pairwise

from torch.utils.flop_counter import register_flop_formula

from qacg_kernels.backends import dispatch
from qacg_kernels.call.problem import Problem
from qacg_kernels.operators import schema
from qacg_kernels.utils.torch_internals import has_values

_FORWARD, _BACKWARD = 6, 16  # multiply-adds count as two


def _forward(*arguments: object, out_val: object = None) -> int:
    problem, _ = schema.of_forward(arguments)
    return _flop(_FORWARD, problem)


def _backward(*arguments: object, out_val: object = None) -> int:
    problem, _ = schema.of_backward(arguments)
    return _flop(_BACKWARD, problem)


def _flop(per_entry: int, p: Problem) -> int:
    if p.cu_seqlens is None:
        entries = p.sequences * p.query.shape[2] * p.key.shape[2]
    elif not has_values(p.cu_seqlens):
        entries = p.query.shape[0] * p.max_seqlen
    else:
        entries = sum((stop - start) ** 2 for start, stop in pairwise(p.cu_seqlens.tolist()))
    return per_entry * p.heads * p.head_dim * entries


for _backend in dispatch.BACKENDS:
    register_flop_formula(schema.forward_op(_backend), get_raw=True)(_forward)
    register_flop_formula(schema.backward_op(_backend), get_raw=True)(_backward)
