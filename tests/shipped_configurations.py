"""What of the Triton backend is compiled without a GPU, and what the machine code may use.

A build is one kernel of the tables on one architecture, in one dtype, for one head size and one variant of a call;
"small kernels" are those of rows x D, and "atomic" is key_gradients with dQ by atomic additions.
"""

import itertools
from dataclasses import dataclass, replace

import torch
from ahead_of_time import Resources, kernels_of, resources

from qacg_kernels.backends.triton import launch
from qacg_kernels.backends.triton.configurations import KERNELS, Table, shipped, shipped_architectures
from qacg_kernels.problem import Problem, dense_problem, packed_problem
from qacg_kernels.testing_inputs import Case, make_inputs

SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024}  # of a block
TENSOR_COLUMNS = 512
# Of a thread, in bytes. The backward holds three accumulators and three tiles of scores.
BACKWARD_STACK = {(16, 64): 64, (16, 128): 64, (16, 256): 64, (32, 64): 64, (32, 128): 64, (32, 256): 64}
ATOMIC_STACK = 512

_HEAVY = dict(mask="additive", is_causal=True, dropout_p=0.1, gate="per_head", bias="per_head", key_lengths=True)
VARIANTS: dict[str, dict[str, object]] = {
    "lambda": dict(),
    "row gate, lengths, causal": dict(gate="shared", bias="shared", key_lengths=True, is_causal=True),
    "packed": dict(gate="per_head", packed=True, is_causal=True),
    "boolean mask": dict(mask="boolean"),
    "row gate, all at once": dict(_HEAVY, lambda_gradient=True),
    "column gate, all at once": dict(_HEAVY, form="column"),
    "packed, dropout": dict(gate="shared", bias="shared", packed=True, dropout_p=0.1),
}
# The heaviest of calls that are not busy and of those that are.
HEAVIEST = ("row gate, lengths, causal", "column gate, all at once")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_TILED_LENGTH = 256  # longer than any row that is taken whole
_FORWARD = ("whole_row_forward", "tiled_forward")
_FUNCTIONS = {
    "whole_row_forward": ("forward_kernel",),
    "tiled_forward": ("forward_kernel",),
    "whole_row_backward": ("key_blocks_kernel",),
    "key_gradients": ("key_blocks_kernel",),
    "query_gradients": ("query_blocks_kernel", "query_blocks_kernel_sums"),
    "atomic": ("key_blocks_kernel",),
    "small kernels": ("key_gates_kernel", "gate_sums_kernel", "row_terms_kernel", "finish_queries_kernel"),
}


@dataclass(frozen=True)
class Build:
    architecture: str
    kernel: str
    dtype: torch.dtype
    head_dim: int
    variant: str

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.architecture} {self.kernel} {dtype} D={self.head_dim}, {self.variant}"


def every_build() -> list[Build]:
    """Each row of each table at the variants that hold most, then the other variants, dtypes and head sizes."""
    architectures = shipped_architectures()
    heaviest = [
        Build(*parts)
        for parts in itertools.product(architectures, KERNELS, DTYPES, (64, 128, 256), HEAVIEST)
    ]
    others = [
        Build(*parts)
        for parts in itertools.product(
            architectures, KERNELS, (torch.bfloat16,), (64,), tuple(v for v in VARIANTS if v not in HEAVIEST)
        )
    ]
    sizes = [
        Build(*parts)
        for parts in itertools.product(architectures, KERNELS, (torch.bfloat16,), (16, 20, 32, 80), HEAVIEST)
    ]
    extra = [
        Build(*parts)
        for parts in itertools.product(
            architectures, ("atomic", "small kernels"), DTYPES, (64, 128, 256), ("row gate, all at once",)
        )
    ]
    return [*heaviest, *others, *sizes, *extra]


def selected_builds() -> list[Build]:
    """What every run of the tests compiles: bfloat16 at head size 64, each kernel on each chip; other forms once."""
    heaviest = [
        Build(*parts)
        for parts in itertools.product(shipped_architectures(), KERNELS, (torch.bfloat16,), (64,), HEAVIEST[1:])
    ]
    return [
        *heaviest,
        *(Build("sm_90", kernel, torch.bfloat16, 64, HEAVIEST[0]) for kernel in KERNELS),
        *(Build("sm_90", kernel, torch.float16, 128, HEAVIEST[0]) for kernel in _FORWARD),
        Build("sm_90", "small kernels", torch.bfloat16, 64, "row gate, all at once"),
        Build("sm_90", "whole_row_backward", torch.bfloat16, 64, "packed"),
    ]


def compile_build(build: Build) -> dict[str, Resources]:
    """What each function of a build uses."""
    table = _table(build)
    problem, grad_out = _problem(build, table)
    takes_whole = build.kernel.startswith("whole_row")
    saved = dict(save_softmax_out=not takes_whole, save_quasi_out=not takes_whole and not problem.column_gate)
    functions = _FUNCTIONS[build.kernel]

    def call() -> None:
        _, *rest = launch.forward(*problem.tensors(), **problem.options(), **saved)
        if build.kernel not in _FORWARD:
            launch.backward(grad_out, None, None, *problem.tensors(), *rest, **problem.options())

    capability = int(build.architecture.removeprefix("sm_"))
    kernels = kernels_of(call, table, capability, lambda name: name in functions)
    if not kernels:
        raise AssertionError(f"{build}: the call launches none of {', '.join(functions)}")
    return {name: resources(kernel) for name, kernel in kernels.items()}


def _table(build: Build) -> Table:
    table = shipped(build.architecture)
    if build.kernel in ("atomic", "small kernels"):
        rows = (replace(row, atomic=row.kernel == "key_gradients") for row in table.rows)
        table = replace(table, rows=tuple(rows))
    return table


def _problem(build: Build, table: Table) -> tuple[Problem, torch.Tensor]:
    options = dict(VARIANTS[build.variant])
    busy = any(options.get(name) for name in ("mask", "dropout_p")) or options.get("form") == "column"
    length = _TILED_LENGTH
    if build.kernel.startswith("whole_row"):
        length = table.row(build.kernel, build.dtype, build.head_dim, busy).block_n
    if options.pop("packed", False):
        options["sequences"] = (length, length)
    if options.get("key_lengths"):
        options["key_lengths"] = (length,)
    inputs = make_inputs(
        Case("ahead of time", batch=1, heads=2, queries=length, head_dim=build.head_dim, **options), build.dtype
    )
    make = packed_problem if "sequences" in options else dense_problem
    defaults = dict(dropout_seed=None) | ({} if "sequences" in options else dict(attn_mask=None, key_lengths=None))
    return make(*inputs.arguments(), **defaults | inputs.options), inputs.grad_out


def faults(build: Build, used: dict[str, Resources]) -> list[str]:
    """What of a build breaks the limits of this file; empty if nothing does."""
    found = []
    bits = 8 * build.dtype.itemsize
    head_dim = next(d for d in (64, 128, 256) if build.head_dim <= d)
    stack = ATOMIC_STACK if build.kernel == "atomic" else BACKWARD_STACK[bits, head_dim]
    if build.kernel in (*_FORWARD, "small kernels"):
        stack = 0
    for function, r in used.items():
        for what, value, most in (
            ("bytes of stack", r.stack, stack),
            ("bytes of shared memory", r.shared, SHARED_BYTES[build.architecture]),
            ("columns of tensor memory", r.tensor_columns, TENSOR_COLUMNS),
        ):
            if value > most:
                found.append(f"{build}: {function} takes {value} {what}, at most {most} are wanted")
    return found
