"""Forward of the Gluon backend; its backward is that of `launch`. Imports Triton."""

from dataclasses import replace

from torch import Tensor

from qacg_kernels.backends.triton import launch
from qacg_kernels.backends.triton.gates import row_gates_kernel
from qacg_kernels.backends.triton.gluon import without_gluon
from qacg_kernels.backends.triton.gluon_forward import gluon_forward_kernel
from qacg_kernels.backends.triton.kernel_config import GLUON_FORWARD
from qacg_kernels.backends.triton.launch_plan import launch_plan
from qacg_kernels.call.problem import Problem, Residuals

# Stages of the ring: one is read, one is read next, the others receive copies.
STAGES = 4
_COPIED = 16  # elements: Triton specialises on multiples of 16, and copies are of 16 bytes
_FAR_APART = 2**24  # elements: offsets within a tile of 128 rows would exceed 32 bits


def forward(problem: Problem, residuals: Residuals) -> launch.ForwardOutputs:
    """Kernel of qacg::gluon_attention.

    Single-tile rows, and calls that `gluon.without_gluon` names, run the Triton backend's forward.
    """
    if without_gluon(problem) or (not any(residuals) and launch_plan(problem).whole_forward):
        return launch.forward(problem, residuals)
    return launch.checked_first(FORWARD, problem, residuals)


def _prepare(problem: Problem, residuals: Residuals) -> launch.Operation:
    names = ("query", "key", "value", "context_query", "context_key")
    op = launch.Operation(replace(problem, **{name: _copyable(getattr(problem, name)) for name in names}))
    # The fake operator derives the outputs' strides from the caller's tensors, not from copies.
    op.caller_plan = launch_plan(problem)
    return op


def _launch(op: launch.Operation, problem: Problem, residuals: Residuals) -> launch.ForwardOutputs:
    results = launch.allocated(op.caller_plan, residuals)
    *written, query_gate, key_gate = results
    if query_gate is not None:
        gate_lambda = op.plan.query_values()
        op.launch(row_gates_kernel, None, "queries", query_gate, key_gate, gate_lambda)
        op.call = op.call._replace(gate_lambda=gate_lambda, gate=None)
    op.launch(gluon_forward_kernel, GLUON_FORWARD, "queries", *written, STAGES=STAGES)
    return launch.outputs_of(results)


FORWARD = launch.kernel_of("gluon", _prepare, _launch)


def _copyable(t: Tensor) -> Tensor:
    """The tensor, or a copy if its rows do not start at multiples of 16 bytes or are too far apart."""
    even = all(stride % _COPIED == 0 for stride in t.stride()[:-1])
    row = t.stride(0 if t.dim() == 3 else 2)
    if even and row < _FAR_APART and t.stride(-1) == 1 and t.data_ptr() % 16 == 0:
        return t
    return t.new_empty(t.shape).copy_(t)
