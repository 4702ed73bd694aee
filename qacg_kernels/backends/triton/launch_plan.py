"""Launch plans: tiles, layouts and prepared launches that similar calls share. Imports Triton."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from qacg_kernels.backends.triton import interpreted
from qacg_kernels.backends.triton.arguments import Factors, KernelConfig, Sizes, Strided, has_dense_rows, strides
from qacg_kernels.backends.triton.kernel_config import Traits, kernel_config
from qacg_kernels.backends.triton.tile_tables import HEAD_DIMS, Table, TileEntry, is_busy, is_entry_mask, table_for
from qacg_kernels.call.dropout import drop_threshold, keep_scale
from qacg_kernels.call.masks import is_key_mask
from qacg_kernels.call.problem import Problem
from qacg_kernels.operators.schema import empty_dense_like

_LOG2E = math.log2(math.e)
# A GPU may flush a smaller scale to 0, and 0 times the minus infinity of a hidden entry would be NaN.
_LEAST_FOLDED = 1e-30


class Layout(NamedTuple):
    """Layout of a tensor that every call with the same launch plan allocates.

    Attributes:
        shape: its shape.
        stride: its stride in every dimension, as torch.empty_strided takes them.
        strides: its strides of batch, head and row, as `Strided` stores them.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    strides: tuple[int, int, int]

    @classmethod
    def like(cls, t: Tensor, packed: bool) -> "Layout":
        return cls(t.shape, t.stride(), strides(t, packed))

    def empty(self, dtype: torch.dtype, device: torch.device) -> Strided:
        return Strided(torch.empty_strided(self.shape, self.stride, dtype=dtype, device=device), *self.strides)


class LaunchPlan:
    """Everything that the launches of a call require except its tensors. Calls with the same `_key` share a plan."""

    def __init__(self, problem: Problem, table: Table) -> None:
        query, key, scale, dropout_p = problem.query, problem.key, problem.scale, problem.dropout_p
        self.table = table
        self.device, self.dtype = query.device, query.dtype
        self.packed = problem.packed
        self.column_gate = problem.column_gate
        mask = problem.attn_mask
        key_mask = mask is not None and is_key_mask(mask)
        self.busy = is_busy(is_entry_mask(mask, problem.head_dim), dropout_p, self.column_gate)
        if self.packed:
            tokens, self.heads, self.head_dim = query.shape
            self.queries = self.keys = problem.max_seqlen
            self.sequences = problem.sequences
        else:
            self.sequences, self.heads, self.queries, self.head_dim = query.shape
            self.keys, tokens = key.shape[2], 0
        self.tf32 = _multiplies_in_tf32(query) and not interpreted()
        self.traits = Traits(
            uneven=self.packed or problem.key_lengths is not None or key_mask,
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
            table.takes_whole_rows(kernel, query.dtype, self.head_dim, self.busy, self.queries, self.keys)
            for kernel in ("whole_row_forward", "whole_row_backward")
        )
        # None for a tensor that must be copied first, because its last stride is not 1.
        self.wide = [strides(t, self.packed) if has_dense_rows(t) else None for t in problem.wide]
        self.gate_lambda = None if problem.gate_lambda is None else strides(problem.gate_lambda, self.packed)
        bias = problem.quasi_bias  # expanded, it has stride 0 where it broadcasts
        self.quasi_bias = None if bias is None else strides(bias.expand(query.shape[:-1]), self.packed)
        # Layouts of the output and of the inputs' gradients, and of tensors with one value per query or per key.
        like = [torch.empty_strided(t.shape, t.stride(), device="meta") for t in problem.wide]
        self.dense = [Layout.like(empty_dense_like(t), self.packed) for t in like]
        self.query_rows, self.key_rows = (Layout.like(t.new_empty(t.shape[:-1]), self.packed) for t in like[:2])
        self.prepared: dict[tuple, Callable] = {}
        self.checked = False  # whether the self-check has compared this plan's kernels

    def mark_checked(self) -> None:
        self.checked = True

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
            return self.table.entry(kernel, torch.float16, HEAD_DIMS[1], self.busy)
        return self.table.entry(kernel, self.dtype, self.head_dim, self.busy)

    def config(self, role: str | None) -> tuple[KernelConfig, dict[str, int | bool]]:
        """Returns a kernel's configuration and launch options.

        Args:
            role: the kernel's name in the tile tables; None for kernels without tile sizes, which have no products.
        """
        if role is None:
            return kernel_config(None, self.head_dim, self.queries, self.keys, False, False, self.traits)
        by_parts = self.dtype == torch.float32 and not (self._whole_in_tf32(role) or self.table.multiplies_float32)
        whole_row = role.startswith("whole_row")
        entry = self.entry(role)
        return kernel_config(entry, self.head_dim, self.queries, self.keys, whole_row, by_parts, self.traits)

    def _whole_in_tf32(self, kernel: str) -> bool:
        return self.tf32 and self.head_dim <= self.table.most_features_in_tf32(kernel)

    def programs(self, over: str, config: KernelConfig) -> int:
        blocks = (
            triton.cdiv(self.queries, config.block_m) if over == "queries" else triton.cdiv(self.keys, config.block_n)
        )
        return blocks * self.heads * self.sequences


_plans: dict[tuple, LaunchPlan] = {}
_MOST_PLANS = 4096  # packed calls have a plan for each number of tokens


def _multiplies_in_tf32(query: Tensor) -> bool:
    if query.dtype != torch.float32 or torch.version.hip:
        return False
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def _key(p: Problem, others: tuple[Tensor | None, ...]) -> tuple:
    """Returns everything that Triton specialises kernels for: options, and every input's shape, strides and alignment.

    Tensors that the call allocates are not included: their memory is aligned, and their layouts follow from the inputs.
    """
    inputs = p.tensors
    query = inputs.query
    facts = [None if t is None else (t.shape, t.stride(), t.data_ptr() % 16) for t in (*inputs, *others)]
    # The dtypes of these four tensors determine those of all others.
    dtypes = [None if t is None else t.dtype for t in (query, inputs.attn_mask, inputs.key_lengths, inputs.cu_seqlens)]
    return (query.device, *dtypes, _multiplies_in_tf32(query), *p.options, *facts)


def launch_plan(problem: Problem, others: tuple[Tensor | None, ...] = ()) -> LaunchPlan:
    """Returns the launch plan of a call, from the cache if an earlier call had the same `_key` and tile table.

    Args:
        problem: the call.
        others: further tensors that the kernels read, in the backward those of `Saved`.
    """
    table, key = table_for(problem.tensors.query.device), _key(problem, others)
    plan = _plans.get(key)
    if plan is None or plan.table is not table:  # `tile_tables.trial` changes the table
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        plan = _plans[key] = LaunchPlan(problem, table)
    return plan


def forget_plans() -> None:
    """Clears the cache, so that the next call of each kind makes a plan that is not marked as checked."""
    _plans.clear()
