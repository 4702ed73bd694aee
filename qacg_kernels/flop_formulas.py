"""Floating-point operations of the operators: import this module before you use torch's FlopCounterMode.

The package does not import it, because torch.utils.flop_counter loads NumPy and Triton.

Example:
    >>> import qacg_kernels.flop_formulas
    >>> from torch.utils.flop_counter import FlopCounterMode
    >>> with FlopCounterMode() as counter:
    ...     model(inputs)

Counted as everywhere in this project (MATH.md, Work): 6 L S D a head forward and 16 L S D backward, whatever a kernel
computes twice.
"""

from functools import partial
from itertools import pairwise

from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from qacg_kernels.operators.schema import BACKENDS, backward_op, forward_op

_FORWARD, _BACKWARD = 6, 16
_GRADIENTS = 3  # arguments of the backward operator before the inputs
_OFFSETS = 14  # place of cu_seqlens among the inputs


def _flop(per_cell: int, first: int, *arguments: object, out_val: object = None, **options: object) -> int:
    query, key, offsets = arguments[first], arguments[first + 1], arguments[first + _OFFSETS]
    assert isinstance(query, Tensor) and isinstance(key, Tensor)
    if offsets is None:
        batch, heads, queries, head_dim = query.shape
        return per_cell * batch * heads * queries * key.shape[2] * head_dim
    assert isinstance(offsets, Tensor)
    tokens, heads, head_dim = query.shape
    if offsets.is_meta:  # the lengths are not known: at most
        cells = tokens * int(options["max_seqlen"])  # type: ignore[call-overload]
    else:
        cells = sum((stop - start) ** 2 for start, stop in pairwise(offsets.tolist()))
    return per_cell * heads * head_dim * cells


for _backend in BACKENDS:
    register_flop_formula(forward_op(_backend), get_raw=True)(partial(_flop, _FORWARD, 0))
    register_flop_formula(backward_op(_backend), get_raw=True)(partial(_flop, _BACKWARD, _GRADIENTS))
