"""Forward and backward of the Triton backend: allocates results and launches kernels. Imports Triton."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
import triton
from torch import Tensor

from qacg_kernels.backends.triton import NAME, interpreted
from qacg_kernels.backends.triton.arguments import (
    Call,
    Gate,
    Gradients,
    Integers,
    Saved,
    Side,
    Strided,
    has_dense_rows,
    mask_of,
    per_head,
    strided,
)
from qacg_kernels.backends.triton.backward import (
    key_blocks_kernel,
    query_blocks_kernel,
    row_terms_kernel,
)
from qacg_kernels.backends.triton.forward import forward_kernel
from qacg_kernels.backends.triton.gates import gate_gradients_kernel, gate_sums_kernel, key_gates_kernel
from qacg_kernels.backends.triton.kernel_config import power_of_two
from qacg_kernels.backends.triton.launch_plan import forget_plans, launch_plan
from qacg_kernels.call import problem as call_problem
from qacg_kernels.call.problem import ForwardOutputs, Problem, Residuals
from qacg_kernels.operators import self_check

# Rows that one program sums for the gradients of the gate's parameters. More rows give fewer partial sums, fewer rows
# give more programs for long sequences.
_SUM_ROWS = 128
# Rows and columns of partial sums that one program adds in an iteration.
_ADDED_SUMS, _ADDED_COLUMNS = 256, 16


def _gate_of(parameters: Sequence[Tensor | None], beta: float, gamma: float) -> Gate:
    """Returns a Gate of the four vectors and two biases, or of their gradients, in the operator schema's order."""
    query, context_query, key, context_key, query_bias, key_bias = parameters
    return Gate(
        Side(per_head(query, 1), per_head(context_query, 1), per_head(query_bias, 0)),
        Side(per_head(key, 1), per_head(context_key, 1), per_head(key_bias, 0)),
        beta,
        gamma,
    )


class Operation:
    """One call: its inputs as kernel arguments, and its launch plan."""

    def __init__(self, problem: Problem, others: tuple[Tensor | None, ...] = ()) -> None:
        """Prepares a call.

        Args:
            problem: the call.
            others: further tensors that the kernels read, in the backward those of `Saved`.
        """
        self.plan = plan = launch_plan(problem, others)
        inputs, options = problem.tensors, problem.options
        gate_lambda, lengths, offsets = inputs.gate_lambda, inputs.key_lengths, inputs.cu_seqlens
        quasi_bias = inputs.quasi_bias
        wide = (inputs.query, inputs.key, inputs.value, inputs.context_query, inputs.context_key)
        self.call = Call(
            *[
                Strided(t, *strides) if strides else strided(t.contiguous(), plan.packed)
                for t, strides in zip(wide, plan.wide)
            ],
            gate_lambda=None if gate_lambda is None else Strided(gate_lambda, *plan.gate_lambda),
            gate=None if gate_lambda is not None else _gate_of(problem.gate_parameters, options.beta, options.gamma),
            mask=mask_of(inputs.attn_mask),
            # Written out twice: a function call would add launch overhead.
            key_lengths=None if lengths is None else Integers(lengths, lengths.stride(0)),
            cu_seqlens=None if offsets is None else Integers(offsets, offsets.stride(0)),
            seed=inputs.dropout_seed if options.dropout_p > 0 else None,
            quasi_bias=None if quasi_bias is None else Strided(quasi_bias, *plan.quasi_bias),
            sizes=plan.sizes,
            factors=plan.factors,
        )

    def rows(self, t: Tensor | None):
        """Returns a tensor of this call as Strided; None if `t` is None or has the shape (0,), which means absent.

        With 0 queries or keys, tensors of two to four dimensions are empty but present, so they do not become None.
        """
        return None if t is None or t.dim() == 1 else strided(t, self.plan.packed)

    def launch(
        self,
        kernel: Callable,
        role: str | None,
        over: str | int,
        *arguments: object,
        **constants: object,
    ) -> None:
        """Launches a kernel.

        Args:
            kernel: the Triton kernel.
            role: the kernel's name in the tile tables; None for kernels without tile sizes.
            over: the number of programs; or "queries" or "keys", for one program for each block of queries or of keys
                in each sequence and head.
            arguments: the kernel's arguments after the first, which is always the Call.
            constants: the kernel's compile-time arguments except `config`.
        """
        plan, arguments = self.plan, (self.call, *arguments)
        name = (kernel.__name__, role, *constants.values(), *[a is None for a in arguments])
        prepared = plan.prepared.get(name)
        if prepared is not None and _launch is run:
            prepared(*arguments)
            return
        config, options = plan.config(role)
        programs = over if isinstance(over, int) else plan.programs(over, config)
        constants["config"] = config
        if _launch is not run or interpreted() or not programs:
            _launch(kernel, programs, arguments, constants, options, plan.device)
        elif prepared := _prepare(kernel, programs, arguments, constants, options, plan.device):
            plan.prepared[name] = prepared
            prepared(*arguments)


def _prepare(kernel, programs, arguments, constants, options, device: torch.device) -> Callable | None:
    """Compiles a kernel and returns a function that launches it like `run`, but does not inspect the arguments.

    Returns None if Triton's `jit_cache_hook` handled the compilation, so that there is nothing to launch.
    """
    with _on(device):
        compiled = kernel.warmup(*arguments, grid=(programs,), **constants, **options)
        if compiled is None:
            return None
        runner = compiled[programs, 1, 1]
    others = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])

    def prepared(*arguments) -> None:
        with _on(device):
            runner(*arguments, *others)

    return prepared


def _on(device: torch.device) -> contextlib.AbstractContextManager:
    """A context manager that makes `device` the current one."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        return torch.cuda.device(device)
    return _HERE


_HERE = contextlib.nullcontext()


Launch = Callable[[Callable, int, tuple, dict, dict[str, int | bool], torch.device], None]


def run(
    kernel: Callable,
    programs: int,
    arguments: tuple,
    constants: dict,
    options: dict[str, int | bool],
    device: torch.device,
) -> None:
    """Launches a kernel on a device, in its current stream. Does nothing for 0 programs.

    Args:
        kernel: the Triton kernel.
        programs: number of programs.
        arguments: the kernel's arguments.
        constants: the kernel's compile-time arguments by name.
        options: Triton's launch options, such as num_warps.
        device: where the kernel runs.
    """
    if programs:
        with _on(device):
            kernel[(programs,)](*arguments, **constants, **options)


_launch: Launch = run


@contextlib.contextmanager
def through(other: Launch) -> Iterator[None]:
    """A context manager: every launch calls `other`, with the arguments of `run`, instead of launching a kernel."""
    global _launch  # noqa: PLW0603
    before, _launch = _launch, other
    try:
        yield
    finally:
        _launch = before


def forward(problem: Problem, residuals: Residuals) -> ForwardOutputs:
    """Implements qacg::triton_attention.

    Calls `first_call` of the self-check until the launch plan is marked as checked.
    """
    op = Operation(problem)
    if op.plan.checked or _launch is not run:
        return launch_forward(op, residuals)
    return _CHECK.first_call(problem, residuals, op.plan.mark_checked)


def backward(problem: Problem, saved: call_problem.Saved) -> call_problem.Gradients:
    """Implements qacg::triton_attention_backward. Calls `first_call` as `forward` does."""
    op = Operation(problem, saved)
    if op.plan.checked or _launch is not run:
        return _launch_backward(op, problem, saved)
    return _CHECK.first_call(problem, saved, op.plan.mark_checked)


def _run_unchecked(problem: Problem, others: Residuals | call_problem.Saved) -> ForwardOutputs | call_problem.Gradients:
    if isinstance(others, Residuals):
        return launch_forward(Operation(problem), others)
    return _launch_backward(Operation(problem, others), problem, others)


_CHECK = self_check.Kernel(NAME, _run_unchecked, restart=forget_plans)


def launch_forward(op: Operation, residuals: Residuals) -> ForwardOutputs:
    """Launches the kernels of a forward and returns its results, with the branch outputs that `residuals` requests."""
    plan = op.plan
    dense, dtype, device, has_vectors = plan.dense[0], plan.dtype, plan.device, plan.gate_lambda is None
    key_gate = plan.key_values() if has_vectors else None
    results = (
        dense.empty(dtype, device),
        dense.empty(dtype, device) if residuals.save_softmax_out else None,
        dense.empty(dtype, device) if residuals.save_quasi_out else None,
        plan.query_values(),
        plan.query_values(),
        plan.query_values() if has_vectors else None,
        key_gate,
    )
    if plan.column_gate:
        op.launch(key_gates_kernel, None, "keys", key_gate)
    whole = plan.whole_forward and residuals == (False, False)
    role = "whole_row_forward" if whole else "tiled_forward"
    op.launch(forward_kernel, role, "queries", *results)
    return ForwardOutputs(*[None if rows is None else rows.data for rows in results])


def _launch_backward(op: Operation, problem: Problem, tensors: call_problem.Saved) -> call_problem.Gradients:
    grad_out = tensors.grad_out
    saved = Saved(
        op.rows(grad_out if has_dense_rows(grad_out) else grad_out.contiguous()),
        *[op.rows(t) for t in (tensors.softmax_out, tensors.quasi_out, tensors.row_max, tensors.row_sum)],
        *[op.rows(t) for t in (tensors.query_gate, tensors.key_gate)],
        *[op.rows(t) for t in (tensors.grad_query_gate, tensors.grad_key_gate)],
    )
    plan, has_vectors = op.plan, op.call.gate is not None
    whole = plan.whole_backward
    grads = Gradients(
        *[layout.empty(plan.dtype, plan.device) for layout in plan.dense],
        gate_lambda=None if has_vectors else plan.query_rows.empty(plan.dtype, plan.device),
        query_logit=plan.query_values() if has_vectors else None,
        key_logit=plan.key_values() if has_vectors else None,
        delta=None if whole else plan.query_values(),
        shift=None if whole else plan.query_values(),
        weight=None if whole else plan.query_values(),
    )
    if whole:
        op.launch(key_blocks_kernel, "whole_row_backward", "keys", saved, grads)
    else:
        if saved.softmax_out is None or (saved.quasi_out is None and not plan.column_gate):
            # A direct call of the forward operator may not have saved O1 and O2. The public functions always save them.
            outputs = launch_forward(op, Residuals(True, not plan.column_gate))
            saved = saved._replace(softmax_out=op.rows(outputs.softmax_out), quasi_out=op.rows(outputs.quasi_out))
        op.launch(row_terms_kernel, None, "queries", saved, grads)
        no_queries = grads._replace(query=None, context_query=None)
        op.launch(key_blocks_kernel, "key_gradients", "keys", saved, no_queries)
        op.launch(query_blocks_kernel, "query_gradients", "queries", saved, grads)

    parameters = problem.gate_parameters
    of_gate = _gate_gradients(op, parameters, grads.query_logit, grads.key_logit) if has_vectors else [None] * 6
    return call_problem.Gradients(*[None if rows is None else rows.data for rows in grads[:6]], *of_gate)


def _gate_gradients(
    op: Operation, parameters: Sequence[Tensor | None], query_logit: Strided, key_logit: Strided
) -> list[Tensor | None]:
    """Returns the gradients of the gate's four vectors and two biases, contiguous; None for an absent bias.

    Args:
        op: the call.
        parameters: the four vectors and two biases, in the order of the operator's schema.
        query_logit, key_logit: tq and tk of MATH.md, eq. 14, one float32 value per query or key.
    """
    plan, block_d = op.plan, power_of_two(op.plan.head_dim)
    chunks = triton.cdiv(plan.queries, _SUM_ROWS) + triton.cdiv(plan.keys, _SUM_ROWS)
    sums = query_logit.data.new_empty((plan.sequences, plan.heads, chunks, 2 * block_d + 4))
    programs = plan.sequences * plan.heads * chunks
    op.launch(gate_sums_kernel, None, programs, query_logit, key_logit, sums, ROWS=_SUM_ROWS)
    # With 0 heads no program would write the gradients of parameters that the heads share.
    allocate = torch.empty_like if plan.heads else torch.zeros_like
    grads = [None if t is None else allocate(t, memory_format=torch.contiguous_format) for t in parameters]
    targets = _gate_of(grads, op.call.gate.beta, op.call.gate.gamma)
    programs = 2 * plan.heads * (2 * block_d // _ADDED_COLUMNS + 1)
    tile = {"ROWS": _SUM_ROWS, "COLUMNS": _ADDED_COLUMNS, "ADDED": _ADDED_SUMS}
    op.launch(gate_gradients_kernel, None, programs, sums, plan.sequences, targets, **tile)
    return grads
