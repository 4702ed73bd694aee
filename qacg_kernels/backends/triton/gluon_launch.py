"""Launches the forward of the Gluon backend; its backward is the one in `launch`. Imports Triton."""

from dataclasses import replace

from torch import Tensor

from qacg_kernels.backends.triton import launch
from qacg_kernels.backends.triton.gates import row_gates_kernel
from qacg_kernels.backends.triton.gluon import without_gluon
from qacg_kernels.backends.triton.gluon_forward import gluon_forward_kernel
from qacg_kernels.backends.triton.kernel_config import GLUON_FORWARD
from qacg_kernels.backends.triton.launch_plan import LaunchPlan, launch_plan
from qacg_kernels.call.problem import Problem, Residuals

# Stages of the ring: one is being read, one is read next, the others receive copies.
STAGES = 4
_WIDE = ("query", "key", "value", "context_query", "context_key")
_COPIED = 16  # elements; strides must be multiples: Triton specialises on 16 elements, and copies take 16 bytes
_FAR_APART = 2**24  # elements; with this distance of rows, offsets within a tile of 128 rows would exceed 32 bits


def forward(problem: Problem, residuals: Residuals) -> launch.ForwardOutputs:
    """The implementation of the operator qacg::gluon_attention.

    Single-tile rows, and calls for which `gluon.without_gluon` has a reason, run the Triton backend's forward.
    """
    if without_gluon(problem):
        return launch.forward(problem, residuals)
    plan = launch_plan(problem)
    if plan.whole_forward and not any(residuals):
        return launch.forward(problem, residuals, plan)
    return launch.checked_first(FORWARD, problem, residuals, plan)


def _prepare(problem: Problem, residuals: Residuals, plan: LaunchPlan | None) -> launch.Operation:
    plan = plan or launch_plan(problem)
    copies = {name: copy for name in _WIDE if (copy := _copyable(t := getattr(problem, name))) is not t}
    op = launch.Operation(replace(problem, **copies)) if copies else launch.Operation(problem, plan=plan)
    # Outputs must have the strides that the fake operator derives from the caller's tensors, not from the copies.
    op.caller_plan = plan
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
    """The tensor, or a contiguous copy if its rows do not start at multiples of 16 bytes or are too far apart."""
    even = all(stride % _COPIED == 0 for stride in t.stride()[:-1])
    row = t.stride(0 if t.dim() == 3 else 2)
    if even and row < _FAR_APART and t.stride(-1) == 1 and t.data_ptr() % 16 == 0:
        return t
    return t.new_empty(t.shape).copy_(t)
