"""The operator's two functions: choosing kernels and forms for a call, allocating, launching. Imports Triton."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from qacg_kernels.backends.triton import interpreted
from qacg_kernels.backends.triton.arguments import (
    Call,
    Factors,
    Form,
    Gate,
    Gradients,
    Saved,
    Side,
    Sizes,
    Strided,
    has_dense_rows,
    mask_of,
    per_head,
    strided,
    strides,
)
from qacg_kernels.backends.triton.backward import (
    finish_queries_kernel,
    key_blocks_kernel,
    query_blocks_kernel,
    row_terms_kernel,
)
from qacg_kernels.backends.triton.configurations import Row, Table, is_busy, table_for
from qacg_kernels.backends.triton.forward import forward_kernel
from qacg_kernels.backends.triton.gates import gate_gradients_kernel, gate_sums_kernel, key_gates_kernel
from qacg_kernels.dropout import drop_threshold, keep_scale
from qacg_kernels.ops import ForwardOutputs, empty_dense_like

_LOG2E = math.log2(math.e)
# Kernels of rows x D are bound by memory; any tile that fills a warp's loads will do.
_SMALL_ROWS = 32
_SMALL_WARPS = 4
# A factor that a GPU flushes to 0 would make NaN of a hidden cell's minus infinity.
_LEAST_FOLDED = 1e-30
# Rows that one program sums for the gate's parameters: few partial sums, yet programs enough for long sequences.
_SUM_ROWS = 1024


def _power_of_two(n: int) -> int:
    return max(16, triton.next_power_of_2(n))


class _Traits(NamedTuple):
    """What a call's kernels have in common, beside its sizes."""

    uneven: bool  # sequences differ in length
    is_causal: bool
    column_gate: bool
    fast_sigmoid: bool
    folds_scale: bool
    precision: str
    by_parts: bool


@functools.lru_cache(maxsize=4096)
def _form(
    row: Row | None, head_dim: int, queries: int, keys: int, whole_row: bool, traits: _Traits
) -> tuple[Form, dict[str, int | bool]]:
    """The form of a kernel and its launch options; `row` is None for the small kernels."""
    block_m = min(row.block_m if row else _SMALL_ROWS, _power_of_two(queries))
    block_n = row.block_n if row else _SMALL_ROWS
    block_n = min(block_n, _power_of_two(keys))
    block_d = _power_of_two(head_dim)
    even_keys = not traits.uneven and (keys == block_n if whole_row else keys % block_n == 0)
    form = Form(
        traits.is_causal,
        traits.column_gate,
        whole_row,
        even_keys,
        head_dim == block_d,
        traits.fast_sigmoid,
        traits.folds_scale,
        traits.precision,
        traits.by_parts,
        block_m,
        block_n,
        block_d,
    )
    warps, stages = (row.num_warps, row.num_stages) if row else (_SMALL_WARPS, 1)
    if not traits.by_parts:
        # A matrix instruction gives 16 x 16 results a warp: more warps than that would compute the same. float32 is not
        # held to it: in the few warps of a call with few queries the sums for many keys would spill.
        widest = max(block_n, block_d)
        warps = min(warps, block_m * widest // 256)
    # Triton 3.10 is to stop fusing a multiplication and an addition unless it is asked to, as 3.9 warns.
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    return form, options | ({"maxnreg": row.registers} if row and row.registers else {})


GLUON_FORWARD = "gluon_forward"
# Queries and, by head size, keys of its tiles: 64 keys of 128 features would leave no registers for their sums.
GLUON_QUERIES = 128
GLUON_KEYS = {64: 64, 128: 32}


@functools.lru_cache(maxsize=256)
def _gluon_form(head_dim: int, keys: int, traits: _Traits) -> tuple[Form, dict[str, int | bool]]:
    """As `_form`, of the Gluon forward, whose layouts ask for whole tiles and eight warps whatever the call's size."""
    block_n = GLUON_KEYS[head_dim]
    even_keys = not traits.uneven and keys % block_n == 0
    form = Form(
        is_causal=traits.is_causal,
        column_gate=False,
        whole_row=False,
        even_keys=even_keys,
        even_dim=True,
        fast_sigmoid=True,
        folds_scale=traits.folds_scale,
        precision="ieee",
        by_parts=False,
        block_m=GLUON_QUERIES,
        block_n=block_n,
        block_d=head_dim,
    )
    return form, {"num_warps": GLUON_QUERIES // 16, "enable_fp_fusion": True}


class Layout(NamedTuple):
    """Of tensors that the calls of a plan allocate: what torch takes, and the strides that kernels take."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    strides: tuple[int, int, int]

    @classmethod
    def like(cls, t: Tensor, packed: bool) -> "Layout":
        return cls(t.shape, t.stride(), strides(t, packed))

    def empty(self, dtype: torch.dtype, device: torch.device) -> Strided:
        return Strided(torch.empty_strided(self.shape, self.stride, dtype=dtype, device=device), *self.strides)


class _Plan:
    """All that a call's launches need beside its tensors: calls that agree in `_key` share one."""

    def __init__(self, inputs: tuple[Tensor | None, ...], options: dict[str, object], table: Table) -> None:
        query, key = inputs[:2]
        attn_mask, key_lengths, cu_seqlens = inputs[12:15]
        scale, dropout_p = options["scale"], options["dropout_p"]
        self.table = table
        self.device, self.dtype = query.device, query.dtype
        self.packed = cu_seqlens is not None
        self.column_gate = options["column_gate"]
        self.busy = is_busy(attn_mask is not None, dropout_p, self.column_gate)
        if self.packed:
            tokens, self.heads, self.head_dim = query.shape
            self.queries = self.keys = options["max_seqlen"]
            self.sequences = cu_seqlens.shape[0] - 1
        else:
            self.sequences, self.heads, self.queries, self.head_dim = query.shape
            self.keys, tokens = key.shape[2], 0
        self.traits = _Traits(
            uneven=self.packed or key_lengths is not None,
            is_causal=options["is_causal"],
            column_gate=self.column_gate,
            fast_sigmoid=query.dtype.itemsize == 2,
            folds_scale=scale > _LEAST_FOLDED,
            precision="tf32" if _multiplies_in_tf32(query) and not interpreted() else "ieee",
            by_parts=query.dtype == torch.float32,
        )
        self.sizes = Sizes(self.heads, self.queries, self.keys, self.head_dim, tokens)
        threshold, keep = drop_threshold(dropout_p), keep_scale(dropout_p)
        self.factors = Factors(scale, scale * _LOG2E, options["quasi_scale"], keep, threshold)
        self.whole_forward, self.whole_backward = (
            table.takes_whole_rows(kernel, query.dtype, self.head_dim, self.busy, self.queries, self.keys)
            for kernel in ("whole_row_forward", "whole_row_backward")
        )
        # Of a tensor that must be copied first: None.
        self.wide = [strides(t, self.packed) if has_dense_rows(t) else None for t in inputs[:5]]
        self.gate_lambda = None if inputs[5] is None else strides(inputs[5], self.packed)
        # Of the output and the inputs' gradients, and of one value a query or key.
        like = [torch.empty_strided(t.shape, t.stride(), device="meta") for t in inputs[:5]]
        self.dense = [Layout.like(empty_dense_like(t), self.packed) for t in like]
        self.query_rows, self.key_rows = (Layout.like(t.new_empty(t.shape[:-1]), self.packed) for t in like[:2])
        self.prepared: dict[tuple, Callable] = {}

    def query_values(self) -> Strided:
        """Uninitialised float32, one for each query."""
        return self.query_rows.empty(torch.float32, self.device)

    def key_values(self) -> Strided:
        """As `query_values`, for each key whose gate counts: that of its own position in a row gate."""
        rows = self.key_rows if self.column_gate else self.query_rows
        return rows.empty(torch.float32, self.device)

    def row(self, kernel: str) -> Row:
        return self.table.row(kernel, self.dtype, self.head_dim, self.busy)

    def form(self, role: str | None) -> tuple[Form, dict[str, int | bool]]:
        """Of the kernel that has this name in the tables, or of the Gluon forward; None for the small ones."""
        if role == GLUON_FORWARD:
            return _gluon_form(self.head_dim, self.keys, self.traits)
        row = self.row(role) if role else None
        whole_row = role is not None and role.startswith("whole_row")
        return _form(row, self.head_dim, self.queries, self.keys, whole_row, self.traits)

    def programs(self, over: str, form: Form) -> int:
        blocks = triton.cdiv(self.queries, form.block_m) if over == "queries" else triton.cdiv(self.keys, form.block_n)
        return blocks * self.heads * self.sequences


_plans: dict[tuple, _Plan] = {}
_MOST_PLANS = 4096  # one for each number of tokens of packed calls, among others


def _multiplies_in_tf32(query: Tensor) -> bool:
    return query.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"


def _key(tensors: tuple[Tensor | None, ...], options: dict[str, object]) -> tuple:
    """What a kernel is compiled for goes by it: sizes, strides and multiples of 16 of every tensor. What the call
    allocates follows from its inputs, and begins at multiples of 16."""
    query, integers_and_mask = tensors[0], tensors[12:15]
    facts = [None if t is None else (t.shape, t.stride(), t.data_ptr() % 16) for t in tensors]
    dtypes = (query.dtype, *[None if t is None else t.dtype for t in integers_and_mask])  # the others follow
    switches = (_multiplies_in_tf32(query), torch.are_deterministic_algorithms_enabled())
    return (query.device, *dtypes, *switches, *options.values(), *facts)


def _plan_of(inputs: tuple[Tensor | None, ...], options: dict[str, object], others: tuple[Tensor | None, ...]) -> _Plan:
    """The plan of a call with these inputs, and with other tensors that its kernels read."""
    table, key = table_for(inputs[0].device), _key((*inputs, *others), options)
    plan = _plans.get(key)
    if plan is None or plan.table is not table:  # tiles on trial
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        plan = _plans[key] = _Plan(inputs, options, table)
    return plan


def _gate_of(parameters: Sequence[Tensor | None], beta: float, gamma: float) -> Gate:
    """The gate's parameters, or their gradients, in the operator's order."""
    query, context_query, key, context_key, query_bias, key_bias = parameters
    return Gate(
        Side(per_head(query, 1), per_head(context_query, 1), per_head(query_bias, 0)),
        Side(per_head(key, 1), per_head(context_key, 1), per_head(key_bias, 0)),
        beta,
        gamma,
    )


class Operation:
    """One call of the operator: its inputs as kernels take them, and the plan of their launches."""

    def __init__(
        self, inputs: tuple[Tensor | None, ...], options: dict[str, object], others: tuple[Tensor | None, ...] = ()
    ) -> None:
        """`others` are tensors that are read too, in the backward."""
        self.plan = plan = _plan_of(inputs, options, others)
        gate_lambda = inputs[5]
        attn_mask, key_lengths, cu_seqlens, seed = inputs[12:]
        self.call = Call(
            *[
                Strided(t, *known) if known else strided(t.contiguous(), plan.packed)
                for t, known in zip(inputs, plan.wide)
            ],
            gate_lambda=None if gate_lambda is None else Strided(gate_lambda, *plan.gate_lambda),
            gate=None if gate_lambda is not None else _gate_of(inputs[6:12], options["beta"], options["gamma"]),
            mask=mask_of(attn_mask),
            key_lengths=None if key_lengths is None else key_lengths.contiguous(),
            cu_seqlens=None if cu_seqlens is None else cu_seqlens.contiguous(),
            seed=seed if options["dropout_p"] > 0 else None,
            sizes=plan.sizes,
            factors=plan.factors,
        )

    def rows(self, t: Tensor | None):
        """A tensor of this call as Strided; None for the empty one that stands for an absent one."""
        return None if t is None or not t.numel() else strided(t, self.plan.packed)

    def launch(
        self,
        kernel: Callable,
        role: str | None,
        over: str | int,
        *arguments: object,
        **constants: object,
    ) -> None:
        """Runs a kernel with one program for each block of queries or of keys of each sequence and head.

        Args:
            role: the kernel's name in the tables, or GLUON_FORWARD; None for the small ones.
            over: "queries" or "keys", or the number of programs.
        """
        plan, arguments = self.plan, (self.call, *arguments)
        name = (kernel.__name__, role, *constants.values(), *[a is None for a in arguments])
        prepared = plan.prepared.get(name)
        if prepared is not None and _launch is run:
            prepared(*arguments)
            return
        form, options = plan.form(role)
        programs = over if isinstance(over, int) else plan.programs(over, form)
        constants["form"] = form
        if _launch is not run or interpreted() or not programs:
            _launch(kernel, programs, arguments, constants, options, plan.device)
        elif prepared := _prepare(kernel, programs, arguments, constants, options, plan.device):
            plan.prepared[name] = prepared
            prepared(*arguments)


def _prepare(kernel, programs, arguments, constants, options, device: torch.device) -> Callable | None:
    """What launches a kernel with such arguments as `run` does, without Triton's look through them at every call.

    None where a hook of Triton's has taken the compilation (`jit_cache_hook`): then there is nothing to launch.
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
    """Makes a device the current one, where it is not."""
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
    """Launches a kernel on the device of its tensors, in the current stream."""
    if programs:
        with _on(device):
            kernel[(programs,)](*arguments, **constants, **options)


_launch: Launch = run


@contextlib.contextmanager
def through(other: Launch) -> Iterator[None]:
    """Within it kernels go to `other`, with the arguments of `run`, in place of being launched."""
    global _launch  # noqa: PLW0603
    before, _launch = _launch, other
    try:
        yield
    finally:
        _launch = before


def forward(*inputs, save_softmax_out=True, save_quasi_out=False, **options):
    """Kernel of qacg::triton_attention."""
    op = Operation(inputs, options)
    plan = op.plan
    results = allocated(plan, save_softmax_out, save_quasi_out)
    if plan.column_gate:
        op.launch(key_gates_kernel, None, "keys", results.key_gate)
    whole = plan.whole_forward and not (save_softmax_out or save_quasi_out)
    role = "whole_row_forward" if whole else "tiled_forward"
    op.launch(forward_kernel, role, "queries", *results)
    return outputs_of(results)


class Results(NamedTuple):
    """`ForwardOutputs` as kernels take them."""

    out: Strided
    softmax_out: Strided | None
    quasi_out: Strided | None
    row_max: Strided
    row_sum: Strided
    query_gate: Strided | None
    key_gate: Strided | None


def allocated(plan: _Plan, save_softmax_out: bool, save_quasi_out: bool) -> Results:
    """What a forward is to write."""
    dense, dtype, device, has_vectors = plan.dense[0], plan.dtype, plan.device, plan.gate_lambda is None
    return Results(
        dense.empty(dtype, device),
        dense.empty(dtype, device) if save_softmax_out else None,
        dense.empty(dtype, device) if save_quasi_out else None,
        plan.query_values(),
        plan.query_values(),
        plan.query_values() if has_vectors else None,
        plan.key_values() if has_vectors else None,
    )


def outputs_of(results: Results) -> ForwardOutputs:
    return ForwardOutputs(*[None if rows is None else rows.data for rows in results])


def backward(grad_out, grad_query_gate, grad_key_gate, *tensors, **options):
    """Kernels of qacg::triton_attention_backward."""
    inputs, (softmax_out, quasi_out, row_max, row_sum, query_gate, key_gate) = tensors[:16], tensors[16:]
    op = Operation(inputs, options, (grad_out, grad_query_gate, grad_key_gate, *tensors[16:]))
    saved = Saved(
        op.rows(grad_out if has_dense_rows(grad_out) else grad_out.contiguous()),
        *[op.rows(t) for t in (softmax_out, quasi_out, row_max, row_sum)],
        *[op.rows(t) for t in (query_gate, key_gate, grad_query_gate, grad_key_gate)],
    )
    plan, has_vectors = op.plan, op.call.gate is not None
    whole = plan.whole_backward
    grads = Gradients(
        *[layout.empty(plan.dtype, plan.device) for layout in plan.dense],
        gate_lambda=None if has_vectors else plan.query_rows.empty(plan.dtype, plan.device),
        query_logit=plan.query_values() if has_vectors else None,
        key_logit=plan.key_values() if has_vectors else None,
        delta=None if whole else plan.query_values(),
        log_sum=None if whole else plan.query_values(),
        weight=None if whole else plan.query_values(),
    )
    if whole:
        op.launch(key_blocks_kernel, "whole_row_backward", "keys", saved, grads)
    else:
        _tiled_backward(op, saved, grads)

    of_gate = _gate_gradients(op, inputs[6:12], grads.query_logit, grads.key_logit) if has_vectors else [None] * 6
    return *[None if rows is None else rows.data for rows in grads[:6]], *of_gate


def _tiled_backward(op: Operation, saved: Saved, grads: Gradients) -> None:
    if saved.softmax_out is not None and (op.plan.column_gate or saved.quasi_out is not None):
        op.launch(row_terms_kernel, None, "queries", saved, grads)
    else:
        op.launch(query_blocks_kernel, "query_gradients", "queries", saved, grads, SUMS_ONLY=True)
    free = not torch.are_deterministic_algorithms_enabled()
    if op.plan.row("key_gradients").atomic and free and not op.plan.column_gate:
        sums = [torch.zeros_like(t, dtype=torch.float32) for t in (grads.query.data, grads.context_query.data)]
        atomic = grads._replace(query=op.rows(sums[0]), context_query=op.rows(sums[1]))
        op.launch(key_blocks_kernel, "key_gradients", "keys", saved, atomic)
        op.launch(finish_queries_kernel, None, "queries", atomic, grads)
    else:
        no_queries = grads._replace(query=None, context_query=None)
        op.launch(key_blocks_kernel, "key_gradients", "keys", saved, no_queries)
        op.launch(query_blocks_kernel, "query_gradients", "queries", saved, grads, SUMS_ONLY=False)


def _gate_gradients(
    op: Operation, parameters: Sequence[Tensor | None], query_logit: Strided, key_logit: Strided
) -> list[Tensor | None]:
    """The gradients of the gate's vectors and biases, laid out as these are."""
    plan = op.plan
    chunks = triton.cdiv(plan.queries, _SUM_ROWS) + triton.cdiv(plan.keys, _SUM_ROWS)
    sums = query_logit.data.new_empty((plan.sequences, plan.heads, chunks, 2 * _power_of_two(plan.head_dim) + 1))
    programs = plan.sequences * plan.heads * chunks
    op.launch(gate_sums_kernel, None, programs, query_logit, key_logit, sums, ROWS=_SUM_ROWS)
    # Without heads there is no program that would write what they share.
    allocate = torch.empty_like if plan.heads else torch.zeros_like
    grads = [None if t is None else allocate(t, memory_format=torch.contiguous_format) for t in parameters]
    targets = _gate_of(grads, op.call.gate.beta, op.call.gate.gamma)
    op.launch(gate_gradients_kernel, None, 2 * plan.heads, sums, plan.sequences, targets, ROWS=_SUM_ROWS)
    return grads
