"""Forward and backward of the Triton backend from Python: plans a call, allocates its results, launches the kernels.

Ordinary calls run here only once of a kind: csrc/launch repeats their launches. Imports Triton.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from qacg_kernels.backends.triton import interpreted, tile_tables
from qacg_kernels.backends.triton.arguments import (
    Call,
    Factors,
    Gate,
    Gradients,
    Integers,
    KernelConfig,
    Mask,
    PerHead,
    Saved,
    Side,
    Sizes,
    Strided,
)
from qacg_kernels.backends.triton.backward import (
    key_blocks_kernel,
    query_blocks_kernel,
    row_terms_kernel,
)
from qacg_kernels.backends.triton.forward import forward_kernel
from qacg_kernels.backends.triton.gates import gate_gradients_kernel, gate_sums_kernel, key_gates_kernel
from qacg_kernels.backends.triton.tile_tables import HEAD_DIMS, TileEntry, kind_of
from qacg_kernels.call import problem as call_problem
from qacg_kernels.call.dropout import drop_threshold, keep_scale
from qacg_kernels.call.problem import ForwardOutputs, Problem, Residuals, is_key_mask
from qacg_kernels.operators.schema import empty_dense_like

_LOG2E = math.log2(math.e)
# A GPU may flush a smaller scale to 0, and 0 times the minus infinity of a hidden entry would be NaN.
_LEAST_FOLDED = 1e-30
# Tile of the kernels without tile sizes, which are bound by memory: those of the gate, and `row_terms_kernel`.
_SMALL_ROWS = 32
_SMALL_WARPS = 4
# Rows that one program sums for the gradients of the gate's parameters. More rows give fewer partial sums, fewer rows
# give more programs for long sequences.
SUM_ROWS = 128
# Rows and columns of partial sums that one program adds in an iteration.
_ADDED_SUMS, _ADDED_COLUMNS = 256, 16


def power_of_two(n: int) -> int:
    """Returns the smallest power of two that is at least n and at least 16, the smallest size that tl.dot accepts."""
    return max(16, triton.next_power_of_2(n))


def sum_columns(head_dim: int) -> int:
    """Returns the number of columns of the sums that `gate_sums_kernel` writes."""
    return 2 * power_of_two(head_dim) + 4


@functools.lru_cache(maxsize=4096)
def _interned(**fields: bool | int | str) -> KernelConfig:
    """Returns the same instance for equal fields, because Triton compares configurations by identity."""
    return KernelConfig(**fields)


def strided(t: Tensor | None, packed: bool) -> Strided | None:
    """Returns a dense tensor (B, H, rows, ...) or a packed one (T, H, ...) as Strided; None stays None."""
    return None if t is None else Strided(t, *strides(t, packed))


def strides(t: Tensor, packed: bool) -> tuple[int, int, int]:
    """Returns the strides of batch, head and row of a dense or packed tensor; for a packed one, batch stride 0."""
    if packed:
        row, head, *_ = t.stride()
        return 0, head, row
    return t.stride()[:3]


def has_dense_rows(t: Tensor) -> bool:
    """Whether the last stride is 1, as the kernels require, or the last dimension has size 1."""
    return t.stride(-1) == 1 or t.shape[-1] == 1


def dense_rows(t: Tensor) -> Tensor:
    """Returns the tensor, or a copy with dense rows in the same memory order.

    csrc/launch copies the same tensors in the same way, since strides and addresses select the machine code.
    """
    return t if has_dense_rows(t) else empty_dense_like(t).copy_(t)


def mask_of(t: Tensor | None) -> Mask | None:
    if t is None:
        return None
    strides = [0 if n == 1 else s for n, s in zip(t.shape, t.stride())]
    return Mask(t.view(torch.uint8) if t.dtype == torch.bool else t, *strides)


def per_head(t: Tensor | None, shared_dims: int) -> PerHead | None:
    """Returns a gate vector or a bias as PerHead; heads share it if it has `shared_dims` dimensions or one row."""
    if t is None:
        return None
    if shared_dims:  # a vector
        t = dense_rows(t)
    return PerHead(t, 0 if t.dim() == shared_dims or t.shape[0] == 1 else t.stride(0))


class Layout(NamedTuple):
    """Shape and strides of a tensor that every call with the same launch plan allocates; `strides` as in Strided."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    strides: tuple[int, int, int]

    @classmethod
    def like(cls, t: Tensor, packed: bool) -> "Layout":
        return cls(t.shape, t.stride(), strides(t, packed))

    def empty(self, dtype: torch.dtype, device: torch.device) -> Strided:
        return Strided(torch.empty_strided(self.shape, self.stride, dtype=dtype, device=device), *self.strides)


class Grid(NamedTuple):
    """The programs of a launch: one for each `per` queries or keys, or chunk of them, in each sequence and head.

    `over` is "queries", "keys" or "chunks" (`per` queries, then `per` keys); or "heads", for `per` programs a head.
    """

    over: str
    per: int
    programs: int


class LaunchPlan:
    """Everything that the launches of a call require except its tensors."""

    def __init__(self, problem: Problem) -> None:
        query, key, scale, dropout_p = problem.query, problem.key, problem.scale, problem.dropout_p
        self.table = table = tile_tables.table_for(query.device)
        self.device, self.dtype = query.device, query.dtype
        self.packed = problem.packed
        self.column_gate = problem.column_gate
        mask = problem.attn_mask
        key_mask = mask is not None and is_key_mask(mask)
        self.kind = kind_of(problem)
        if self.packed:
            tokens, self.heads, self.head_dim = query.shape
            self.queries = self.keys = problem.max_seqlen
            self.sequences = problem.sequences
        else:
            self.sequences, self.heads, self.queries, self.head_dim = query.shape
            self.keys, tokens = key.shape[2], 0
        self.tf32 = multiplies_in_tf32(query) and not interpreted()
        # Whether sequences may differ in the number of keys that they see.
        self.uneven = self.packed or problem.key_lengths is not None or key_mask
        self.traits: dict[str, bool | str] = dict(
            is_causal=problem.is_causal,
            column_gate=self.column_gate,
            key_mask=key_mask,
            fast_sigmoid=query.dtype.itemsize == 2,
            folds_scale=scale > _LEAST_FOLDED,
            precision="tf32" if self.tf32 else "ieee",
        )
        self.sizes = Sizes(self.heads, self.queries, self.keys, self.head_dim, tokens)
        threshold, keep = drop_threshold(dropout_p), keep_scale(dropout_p)
        self.factors = Factors(scale, scale * _LOG2E, problem.quasi_scale, keep, threshold)
        self.whole_forward, self.whole_backward = (
            table.takes_whole_rows(kernel, query.dtype, self.head_dim, self.kind, self.queries, self.keys)
            for kernel in ("whole_row_forward", "whole_row_backward")
        )
        # Layouts of the output and of the inputs' gradients, and of tensors with one value per query or per key.
        like = [torch.empty_strided(t.shape, t.stride(), device="meta") for t in problem.wide]
        self.dense = [Layout.like(empty_dense_like(t), self.packed) for t in like]
        self.query_rows, self.key_rows = (Layout.like(t.new_empty(t.shape[:-1]), self.packed) for t in like[:2])

    def query_values(self) -> Strided:
        """Returns an uninitialised float32 tensor with one value per query."""
        return self.query_rows.empty(torch.float32, self.device)

    def key_values(self) -> Strided:
        """Returns an uninitialised float32 tensor with one value per key for a column gate, else one per query."""
        rows = self.key_rows if self.column_gate else self.query_rows
        return rows.empty(torch.float32, self.device)

    def entry(self, kernel: str) -> TileEntry:
        if self._whole_in_tf32(kernel) and self.head_dim <= HEAD_DIMS[0] and not kernel.startswith("whole_row"):
            # A TF32 operand has as many bytes as a 16-bit operand of twice the head size, so both use the same entry.
            return self.table.entry(kernel, torch.float16, HEAD_DIMS[1], self.kind)
        return self.table.entry(kernel, self.dtype, self.head_dim, self.kind)

    def config(self, role: str | None) -> tuple[KernelConfig, dict[str, int | bool]]:
        """Returns a kernel's configuration and launch options; `role` is None for kernels without tile sizes."""
        entry = self.entry(role) if role else None
        whole_row = role is not None and role.startswith("whole_row")
        # Kernels without a role have no products.
        multiplies_exactly = role is not None and self.dtype == torch.float32 and not self._whole_in_tf32(role)
        # Matrix instructions multiply float32 exactly on AMD's CDNA GPUs.
        by_parts = multiplies_exactly and not tile_tables.has_wide_waves(self.table.architecture)
        block_m = min(entry.block_m if entry else _SMALL_ROWS, power_of_two(self.queries))
        block_n = min(entry.block_n if entry else _SMALL_ROWS, power_of_two(self.keys))
        block_d = power_of_two(self.head_dim)
        config = _interned(
            **self.traits,
            whole_row=whole_row,
            even_keys=not self.uneven and (self.keys == block_n if whole_row else self.keys % block_n == 0),
            even_dim=self.head_dim == block_d,
            by_parts=by_parts,
            block_m=block_m,
            block_n=block_n,
            block_d=block_d,
        )
        warps, stages = (entry.num_warps, entry.num_stages) if entry else (_SMALL_WARPS, 1)
        if not by_parts:
            # At most one warp for each 16 x 16 results of a product: with more, several would compute the same entries.
            # Products by parts keep their warps: with fewer, calls with few queries would spill the sums of many keys.
            warps = min(warps, block_m * max(block_n, block_d) // 256)
        # Triton 3.9 warns that 3.10 will fuse multiplications and additions only if asked to.
        options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
        return config, options | ({"maxnreg": entry.registers} if entry and entry.registers else {})

    def _whole_in_tf32(self, kernel: str) -> bool:
        return self.tf32 and self.head_dim <= self.table.most_features_in_tf32(kernel)

    def grid(self, over: str, per: int) -> Grid:
        if over == "heads":
            return Grid(over, per, per * self.heads)
        queries, keys = triton.cdiv(self.queries, per), triton.cdiv(self.keys, per)
        blocks = {"queries": queries, "keys": keys, "chunks": queries + keys}[over]
        return Grid(over, per, blocks * self.heads * self.sequences)


def multiplies_in_tf32(query: Tensor) -> bool:
    if query.dtype != torch.float32 or torch.version.hip:
        return False
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def _gate_of(parameters: Sequence[Tensor | None], beta: float, gamma: float) -> Gate:
    """Returns a Gate of the four vectors and four biases, or of their gradients, in the operator schema's order."""
    vectors, biases = [per_head(t, 1) for t in parameters[:4]], [per_head(t, 0) for t in parameters[4:]]
    return Gate(Side(*vectors[:2], *biases[:2]), Side(*vectors[2:], *biases[2:]), beta, gamma)


class Operation:
    """One call: its inputs as kernel arguments, its launch plan, and the function that launches kernels."""

    def __init__(self, problem: Problem, through: "Launch") -> None:
        self.plan = plan = LaunchPlan(problem)
        self.through = through
        inputs, options, packed = problem.tensors, problem.options, plan.packed
        gate_lambda, lengths, offsets = inputs.gate_lambda, inputs.key_lengths, inputs.cu_seqlens
        bias, rows = inputs.quasi_bias, inputs.query.shape[:-1]  # expanded, a bias has stride 0 where it broadcasts
        self.call = Call(
            *[strided(dense_rows(t), packed) for t in problem.wide],
            gate_lambda=strided(gate_lambda, packed),
            gate=None if gate_lambda is not None else _gate_of(problem.gate_parameters, options.beta, options.gamma),
            mask=mask_of(inputs.attn_mask),
            key_lengths=None if lengths is None else Integers(lengths, lengths.stride(0)),
            cu_seqlens=None if offsets is None else Integers(offsets, offsets.stride(0)),
            seed=inputs.dropout_seed if options.dropout_p > 0 else None,
            quasi_bias=None if bias is None else Strided(bias, *strides(bias.expand(rows), packed)),
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
        over: str,
        *arguments: object,
        per: int = 0,
        **constants: object,
    ) -> None:
        """Launches a kernel with the Call, `arguments` and its compile-time arguments `constants` and `config`.

        `role` is the kernel's name in the tile tables; None for kernels without tile sizes. `over` and `per` are those
        of a Grid; 0 stands for the block of queries or keys in `config`.
        """
        plan = self.plan
        config, options = plan.config(role)
        grid = plan.grid(over, per or (config.block_m if over == "queries" else config.block_n))
        constants["config"] = config
        self.through(kernel, grid, (self.call, *arguments), constants, options, plan.device)


def on(device: torch.device) -> contextlib.AbstractContextManager:
    """A context manager that makes `device` the current one."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        return torch.cuda.device(device)
    return _HERE


_HERE = contextlib.nullcontext()


Launch = Callable[[Callable, Grid, tuple, dict, dict[str, int | bool], torch.device], None]


def run(
    kernel: Callable,
    grid: Grid,
    arguments: tuple,
    constants: dict,
    options: dict[str, int | bool],
    device: torch.device,
) -> None:
    """Launches a kernel on a device, in its current stream. Does nothing for 0 programs."""
    if grid.programs:
        with on(device):
            kernel[(grid.programs,)](*arguments, **constants, **options)


def launch_forward(op: Operation, residuals: Residuals) -> ForwardOutputs:
    """Launches the kernels of a forward and returns its results, with the branch outputs that `residuals` requests."""
    plan = op.plan
    dense, dtype, device, has_vectors = plan.dense[0], plan.dtype, plan.device, op.call.gate is not None
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


def launch_backward(op: Operation, problem: Problem, tensors: call_problem.Saved) -> call_problem.Gradients:
    wide = tensors.grad_out, tensors.softmax_out, tensors.quasi_out
    saved = Saved(
        *[op.rows(None if t is None else dense_rows(t)) for t in wide],
        *[op.rows(t) for t in (tensors.row_max, tensors.row_sum, tensors.query_gate, tensors.key_gate)],
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
    of_gate = _gate_gradients(op, parameters, grads.query_logit, grads.key_logit) if has_vectors else [None] * 8
    return call_problem.Gradients(*[None if rows is None else rows.data for rows in grads[:6]], *of_gate)


def _gate_gradients(
    op: Operation, parameters: Sequence[Tensor | None], query_logit: Strided, key_logit: Strided
) -> list[Tensor | None]:
    """Returns the gradients of the gate's four vectors and four biases, contiguous; None for an absent bias.

    `query_logit` and `key_logit` are tq and tk of MATH.md, eq. 14, one float32 value per query or key.
    """
    plan, block_d = op.plan, power_of_two(op.plan.head_dim)
    rows = plan.grid("chunks", SUM_ROWS).programs
    sums = query_logit.data.new_empty((rows, sum_columns(plan.head_dim)))
    op.launch(gate_sums_kernel, None, "chunks", query_logit, key_logit, sums, per=SUM_ROWS, ROWS=SUM_ROWS)
    # With 0 heads no program would write the gradients of parameters that the heads share.
    allocate = torch.empty_like if plan.heads else torch.zeros_like
    grads = [None if t is None else allocate(t, memory_format=torch.contiguous_format) for t in parameters]
    targets = _gate_of(grads, op.call.gate.beta, op.call.gate.gamma)
    programs = 2 * (2 * block_d // _ADDED_COLUMNS + 2)
    tile = {"ROWS": SUM_ROWS, "COLUMNS": _ADDED_COLUMNS, "ADDED": _ADDED_SUMS}
    op.launch(gate_gradients_kernel, None, "heads", sums, plan.sequences, targets, per=programs, **tile)
    return grads
