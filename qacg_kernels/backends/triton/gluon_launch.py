"""The operator's forward by the Gluon kernel; its backward is that of `launch`. Imports Triton."""

from torch import Tensor

from qacg_kernels.backends.triton import launch
from qacg_kernels.backends.triton.gates import row_gates_kernel
from qacg_kernels.backends.triton.gluon import without_gluon
from qacg_kernels.backends.triton.gluon_forward import gluon_forward_kernel
from qacg_kernels.backends.triton.kernel_config import GLUON_FORWARD
from qacg_kernels.backends.triton.launch_plan import LaunchPlan, launch_plan

# Of the ring: one being read, one that is read next, the others on their way.
STAGES = 4
_COPIED = 16  # elements: Triton knows of a number that it is a multiple of 16, and 16 bytes are copied at a time
_FAR_APART = 2**24  # elements: a tile's 128 rows then pass 32 bits


def forward(*inputs, **options):
    """Kernel of qacg::gluon_attention.

    Rows that the Triton backend takes whole, and calls that `gluon.without_gluon` names, have its own forward.
    """
    query, attn_mask = inputs[0], inputs[12]
    saves = options.get("save_softmax_out", True) or options.get("save_quasi_out", False)
    without = without_gluon(
        query.dtype, query.shape[-1], attn_mask is not None, options["dropout_p"], options["column_gate"]
    )
    if without or (not saves and _own_plan(inputs, options).whole_forward):
        return launch.forward(*inputs, **options)
    return launch.checked_first(FORWARD, inputs, options)


def _own_plan(inputs: tuple, options: dict[str, object]) -> LaunchPlan:
    """The plan of the caller's tensors, not of their copies: from it the fake operator derives the output's strides."""
    return launch_plan(inputs, options, ())


def _prepare(inputs: tuple, options: dict[str, object]) -> launch.Operation:
    op = launch.Operation((*map(_copyable, inputs[:5]), *inputs[5:]), options)
    op.own = _own_plan(inputs, options)
    op.settled = op.own.settled
    return op


def _launch(op: launch.Operation, inputs: tuple, options: dict[str, object]) -> launch.ForwardOutputs:
    results = launch.allocated(op.own, options.get("save_softmax_out", True), options.get("save_quasi_out", False))
    *written, query_gate, key_gate = results
    if query_gate is not None:
        gate_lambda = op.plan.query_values()
        op.launch(row_gates_kernel, None, "queries", query_gate, key_gate, gate_lambda)
        op.call = op.call._replace(gate_lambda=gate_lambda, gate=None)
    op.launch(gluon_forward_kernel, GLUON_FORWARD, "queries", *written, STAGES=STAGES)
    return launch.outputs_of(results)


FORWARD = launch.kernel_of("gluon", _prepare, _launch, is_backward=False)


def _copyable(t: Tensor) -> Tensor:
    """The tensor, or a copy of it where its rows do not begin at multiples of 16 bytes or lie too far apart."""
    even = all(stride % _COPIED == 0 for stride in t.stride()[:-1])
    row = t.stride(0 if t.dim() == 3 else 2)
    if even and row < _FAR_APART and t.stride(-1) == 1 and t.data_ptr() % 16 == 0:
        return t
    return t.new_empty(t.shape).copy_(t)
