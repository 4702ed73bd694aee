"""Builds of the Triton kernels that are compiled without a GPU, and the limits of their machine code.

A build is one kernel of the tile tables on one chip, in one dtype, for one head size and one variant of a call. "small
kernels" stands for the kernels without tile sizes. The backend's Python code runs on CPU tensors, and only the launch
is replaced. Triton caches compiled kernels by content (TRITON_CACHE_DIR).
"""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
from triton_resources import Resources, resources

from benchmarks.absent_gpu import AbsentGPU
from qacg_kernels.backends.triton.first_calls import run_in_python
from qacg_kernels.backends.triton.tile_tables import (
    HEAD_DIMS,
    KERNELS,
    is_amd,
    kind_of,
    nearest_shipped,
    shipped,
    shipped_architectures,
    trial,
)
from qacg_kernels.call.problem import Residuals, Saved
from qacg_kernels.functional import problem_of
from qacg_kernels.testing.inputs import Case, make_inputs

# NVIDIA's chips that have a tile table.
OWN_TABLE = tuple(chip for chip in shipped_architectures() if not is_amd(chip))
AMD = ("gfx942", "gfx950")
# The most shared memory of a block, in bytes; for chips that are not listed here, it is `shared_bytes` of their table.
SHARED_BYTES = {chip: shipped(chip).shared_bytes for chip in shipped_architectures()} | {
    "gfx950": 160 * 1024,
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_120": 99 * 1024,
}
TENSOR_COLUMNS = 512
# On AMD GPUs the stack has a few bytes for scalar registers.
AMD_STACK = 32
WIDE_AMD_STACK = 512  # for gradients in float32 with head sizes above 128, where even the smallest tiles spill
# Limits on the stack, in bytes per thread. The forward uses some outside of its loop over keys, none inside. The
# backward has three accumulators and three tiles of scores; single-tile rows in float32 with head sizes above 128 come
# near it.
FORWARD_STACK = 80
# With dropout, single-tile rows of 64 features on Hopper have at most 168 registers, so that three blocks run on a
# multiprocessor: predicted 22 % faster than without the limit.
LIMITED_STACK = 96
BACKWARD_STACK = 160
PACKED_STACK = 176  # for packed calls in 16 bits; Triton 3.6.0 uses all of it
# Head sizes whose 16-bit tiles use wgmma on Hopper.
WGMMA_HEAD_DIMS = (64, 128)
TILED = ("tiled_forward", "key_gradients", "query_gradients")
# On Hopper, tiles of 128 keys with head size 128 spill, but use wgmma: the prediction with dropout is 185 executed
# TFLOP/s, and 75 for mma.sync tiles without spills.
WIDE_KEYS_STACK = 320

ONE_QUERY = "one query"
_HEAVY = dict(mask="additive", is_causal=True, dropout_p=0.1, gate="per_head", bias="per_head", key_lengths=True)
_HEAVY |= dict(context_bias="shared", float32_gate=True)
VARIANTS: dict[str, dict[str, object]] = {
    "lambda": dict(),
    "row gate, lengths, causal": dict(gate="shared", bias="shared", key_lengths=True, is_causal=True),
    "row gate, lengths, causal, dropout": dict(
        gate="shared", bias="shared", key_lengths=True, is_causal=True, dropout_p=0.1
    ),
    "packed": dict(gate="per_head", packed=True, is_causal=True),
    "boolean mask": dict(mask="boolean"),
    "key mask": dict(mask="additive_keys", gate="shared", bias="shared", is_causal=True),
    "boolean keys": dict(mask="boolean_keys"),
    "boolean mask, dropout": dict(mask="boolean", dropout_p=0.1),
    "boolean keys, dropout": dict(mask="boolean_keys", dropout_p=0.1),
    "row gate, all at once": dict(_HEAVY, lambda_gradient=True),
    "column gate, all at once": dict(_HEAVY, form="column"),
    "packed, dropout": dict(gate="shared", bias="shared", packed=True, dropout_p=0.1),
    # Triton specialises kernels on sizes and strides of 1, and on multiples of 16.
    "one head, packed": dict(gate="per_head", bias="per_head", packed=True, heads=1),
    ONE_QUERY: dict(gate="per_head", bias="per_head", form="column", queries=1),
    "odd sizes": dict(gate="shared", shortened_by=5),
    "no gradient": dict(saves=False),
    "quasi bias": dict(gate="shared", bias="shared", key_lengths=True, is_causal=True, quasi_bias="per_query"),
    "quasi bias, key mask": dict(
        mask="additive_keys", gate="shared", bias="shared", dropout_p=0.1, quasi_bias="per_query"
    ),
    "quasi bias, column gate": dict(_HEAVY, form="column", quasi_bias="per_query"),
    "TF32": dict(gate="shared", bias="shared", key_lengths=True, is_causal=True, tf32=True),
    "TF32, all at once": dict(_HEAVY, form="column", tf32=True),
}
# The heaviest call without and with a mask, dropout or a column gate.
HEAVIEST = ("row gate, lengths, causal", "column gate, all at once")
_KEY_MASK = "key mask"
_DROPOUT = "row gate, lengths, causal, dropout"
_TF32 = ("TF32", "TF32, all at once")
_NO_GRADIENT = "no gradient"  # saves nothing; tiled rows only, as single-tile rows never save
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Head sizes that are no power of two: one in the upper half of each entry's range, and the smallest. If the head size
# is no multiple of 16, rows are read one element at a time and some kernels spill
# (qacg_kernels/backends/triton/README.md).
_UNEVEN_HEAD_DIMS = (48, 112, 208)
_LEAST_HEAD_DIM = 16
_TILED_LENGTH = 256  # longer than any single-tile row
# As in models: heads after rows in memory, and a number of heads that is not a power of two.
_LAYOUT = "heads_inside"
_HEADS = 12
_FORWARD = ("whole_row_forward", "tiled_forward")
_FUNCTIONS = {
    "whole_row_forward": ("forward_kernel",),
    "tiled_forward": ("forward_kernel",),
    "whole_row_backward": ("key_blocks_kernel",),
    "key_gradients": ("key_blocks_kernel",),
    "query_gradients": ("query_blocks_kernel",),
    "small kernels": ("key_gates_kernel", "gate_sums_kernel", "gate_gradients_kernel", "row_terms_kernel"),
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
    """All builds: each entry of each table in each dtype with the heaviest variants, then other sizes and chips."""
    others = tuple(v for v in VARIANTS if v not in (*HEAVIEST, *_TF32, _NO_GRADIENT, _KEY_MASK, _DROPOUT))
    groups = (
        (OWN_TABLE, KERNELS, DTYPES, HEAD_DIMS, HEAVIEST),
        (OWN_TABLE, KERNELS, (torch.bfloat16, torch.float32), _UNEVEN_HEAD_DIMS, HEAVIEST),
        (OWN_TABLE, KERNELS, DTYPES, HEAD_DIMS, (_KEY_MASK, _DROPOUT)),
        (OWN_TABLE, KERNELS, (torch.float32,), HEAD_DIMS, _TF32),
        (OWN_TABLE, KERNELS, DTYPES, (_LEAST_HEAD_DIM,), HEAVIEST[1:]),
        (OWN_TABLE, KERNELS, (torch.bfloat16,), (64,), others),
        (OWN_TABLE, ("tiled_forward",), (torch.bfloat16,), (64,), (_NO_GRADIENT,)),
        (OWN_TABLE, ("small kernels",), DTYPES, HEAD_DIMS, ("row gate, all at once",)),
        (AMD, KERNELS, (torch.bfloat16, torch.float32), HEAD_DIMS, HEAVIEST),
        (AMD, ("small kernels",), (torch.bfloat16, torch.float32), (64,), ("row gate, all at once",)),
        (("sm_86", "sm_89", "sm_120"), KERNELS, (torch.bfloat16, torch.float32), HEAD_DIMS, HEAVIEST[1:]),
    )
    return [Build(*parts) for group in groups for parts in itertools.product(*group)]


def compile_build(build: Build) -> dict[str, Resources]:
    """Compiles a build and returns the resources of each of its functions.

    Triton's driver stays replaced by `AbsentGPU`.
    """
    table = nearest_shipped(build.architecture, SHARED_BYTES[build.architecture])
    options = dict(VARIANTS[build.variant])
    shorter, saves, tf32 = options.pop("shortened_by", 0), options.pop("saves", True), options.pop("tf32", False)
    packed, has_lengths = options.pop("packed", False), options.pop("key_lengths", False)

    def call_of(length: int):
        rows = dict(sequences=(length, length - 5)) if packed else dict(queries=length, keys=length)
        rows |= dict(key_lengths=(length,)) if has_lengths else {}
        sizes = dict(batch=1, heads=_HEADS, head_dim=build.head_dim, layout=_LAYOUT)
        inputs = make_inputs(Case("ahead of time", **sizes | rows | options), build.dtype)
        return inputs, problem_of(*inputs.arguments(), **inputs.options)

    inputs, problem = call_of(_TILED_LENGTH - shorter)
    whole = build.kernel.startswith("whole_row")
    if whole:
        entry = table.entry(build.kernel, build.dtype, build.head_dim, kind_of(problem))
        inputs, problem = call_of(entry.block_n - shorter)
    saves = saves and not whole
    functions, compiled = _FUNCTIONS[build.kernel], {}

    def compile_only(kernel, grid, arguments, constants, options, device):
        name = kernel.fn.__name__
        if grid.programs and name in functions:
            compiled[name] = kernel.warmup(*arguments, grid=(grid.programs,), **constants, **options)

    triton.runtime.driver.set_active(AbsentGPU(build.architecture))
    with trial(table), products_in_tf32(tf32):
        _, *results = run_in_python(problem, Residuals(saves, saves and not problem.column_gate), compile_only)
        if build.kernel not in _FORWARD:
            grad_gates = [torch.empty_like(t) if inputs.case.lambda_gradient else None for t in results[-2:]]
            run_in_python(problem, Saved(inputs.grad_out, *grad_gates, *results), compile_only)
    assert compiled, f"{build}: the call launches none of {', '.join(functions)}"
    return {name: resources(kernel) for name, kernel in compiled.items()}


def builds_of_every_kind() -> list[Build]:
    """Every kernel in every kind of call for one chip and one head size: whether a Triton can compile the kernels."""
    return [build for build in every_build() if (build.architecture, build.head_dim) == ("sm_90", 64)]


@contextlib.contextmanager
def products_in_tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def faults(build: Build, used: dict[str, Resources]) -> list[str]:
    """Lists the faults of a build as text: limits that it exceeds, spills in loops, and reasons for a low rate."""
    found = []
    chip, kernel, narrow = build.architecture, build.kernel, build.dtype != torch.float32
    shared = min(SHARED_BYTES[chip], nearest_shipped(chip, SHARED_BYTES[chip]).shared_bytes)
    if is_amd(chip):
        is_wide = not narrow and build.head_dim > HEAD_DIMS[1] and kernel not in _FORWARD
        stack = WIDE_AMD_STACK if is_wide else AMD_STACK
    elif narrow and (chip, kernel) == ("sm_90", "whole_row_forward") and build.head_dim <= HEAD_DIMS[0]:
        stack = LIMITED_STACK
    elif kernel in (*_FORWARD, "small kernels"):
        stack = FORWARD_STACK
    elif narrow and (chip, kernel, build.head_dim) == ("sm_90", "key_gradients", 128):
        stack = WIDE_KEYS_STACK
    else:
        stack = PACKED_STACK if narrow and VARIANTS[build.variant].get("packed") else BACKWARD_STACK
    for function, r in used.items():
        for what, value, most in (
            ("bytes of stack", r.stack, stack),
            ("bytes of shared memory", r.shared, shared),
            ("columns of tensor memory", r.tensor_columns, TENSOR_COLUMNS),
        ):
            if value > most:
                found.append(f"{build}: {function} takes {value} {what}, expected at most {most}")
        if r.mismatched:
            found.append(f"{build}: {function} has {r.mismatched} products that Triton compiles wrongly")
        # A call with a single query does not fill a tile, so its rate is not checked.
        full = narrow and kernel in TILED and build.variant != ONE_QUERY and build.head_dim in WGMMA_HEAD_DIMS
        if not r.wgmma and (kernel in KERNELS if is_amd(chip) else full and chip == "sm_90"):
            found.append(f"{build}: {function} has no matrix instructions of a warp group")
        if not is_amd(chip) and kernel in _FORWARD and r.spills:
            found.append(f"{build}: {function} spills registers within a loop, in {r.spills} instructions")
    return found
