"""Large results of the CPU kernels, written past the caches or to huge pages, equal those of smaller calls."""

import pytest
import torch
from full_members import member, members
from judging import assert_same_bits
from torch import Tensor

import qacg_kernels as qk
from qacg_kernels.backends import cpu

STREAMED_BYTES = 32 * 2**20  # kStreamedBytes of csrc/cpu/attention.cpp
HUGE_PAGE_BYTES = 4 * 2**20  # kLeast of csrc/cpu/huge_pages.h
NAMES = ("out", "query", "key", "value", "context_query", "context_key")

pytestmark = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are missing")
sets = members(["native", "plain", "avx2", "avx512"], fast=["native", "avx2"])
each_capability = pytest.mark.parametrize("capability", sets, indirect=True)


def operands(shape: tuple[int, ...], keys: int, dtype: torch.dtype) -> list[Tensor]:
    """query, key, value, context query and context key."""
    generator = torch.Generator().manual_seed(0)
    key_shape = (*shape[:-2], keys, shape[-1]) if len(shape) == 4 else shape
    shapes = (shape, key_shape, key_shape, shape, key_shape)
    return [torch.randn(s, generator=generator).to(dtype) for s in shapes]


def gate(form: str, head_dim: int, dtype: torch.dtype) -> qk.GateParameters:
    generator = torch.Generator().manual_seed(1)
    return qk.GateParameters(*(torch.randn(head_dim, generator=generator).to(dtype) for _ in range(4)), form=form)


def results_of(tensors: list[Tensor], gate_parameters: qk.GateParameters, **options) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    attend = qk.quasi_attention_varlen if "cu_seqlens" in options else qk.quasi_attention
    out = attend(*leaves, gate_parameters, backend="cpu", **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out) + 0.5 * tensors[0])]


def assert_large(tensors: list[Tensor]) -> None:
    assert sum(t.nbytes for t in tensors[1:]) >= STREAMED_BYTES


def assert_equals_parts(whole: list[Tensor], parts: list[list[Tensor]]) -> None:
    """Checks that a large result has the bits of the results of smaller calls."""
    assert_large(whole)
    assert_same_bits(dict(zip(NAMES, whole)), dict(zip(NAMES, map(torch.cat, zip(*parts)))))


SIZES = {64: torch.float32, 16: torch.float32, 96: torch.bfloat16, 17: torch.float32}


@pytest.mark.parametrize("form", ["row", "column"])
@pytest.mark.parametrize(
    ("dtype", "head_dim"), [member(dtype, d, id=f"{dtype}-{d}", fast=d == 17) for d, dtype in SIZES.items()]
)
@each_capability
def test_large_gradients_of_many_heads_equal_halves(dtype, head_dim, form, capability, set_threads):
    """Except with a head size of 17, rows are whole cache lines. Halves of results do not fit on huge pages."""
    set_threads(3)
    size = dtype.itemsize
    sequences = STREAMED_BYTES // (5 * 3 * 33 * head_dim * size) + 2
    tensors = operands((sequences, 3, 33, head_dim), 33, dtype)
    parameters = gate(form, head_dim, dtype)
    lengths = torch.arange(sequences) % 34
    halves = (slice(0, sequences // 2), slice(sequences // 2, None))
    whole = results_of(tensors, parameters, key_lengths=lengths)
    parts = [results_of([t[half] for t in tensors], parameters, key_lengths=lengths[half]) for half in halves]
    assert whole[0].nbytes >= HUGE_PAGE_BYTES > parts[0][0].nbytes
    assert_equals_parts(whole, parts)


@each_capability
def test_large_gradients_of_one_head_equal_one_thread(capability, set_threads):
    tensors = operands((1, 1, 66_000, 64), 40, torch.float32)
    parameters = gate("column", 64, torch.float32)
    set_threads(2)
    shared = results_of(tensors, parameters)
    set_threads(1)
    single = results_of(tensors, parameters)
    assert_large(shared)
    assert_same_bits(dict(zip(NAMES, shared)), dict(zip(NAMES, single)))
    small = 4_000  # queries of a call that is not streamed
    part = results_of([tensors[0][:, :, :small], *tensors[1:3], tensors[3][:, :, :small], tensors[4]], parameters)
    for t in (0, 1, 4):
        assert torch.equal(shared[t][:, :, :small], part[t])


@each_capability
def test_large_packed_gradients_equal_halves(capability):
    # Both halves have the longest sequence, which determines the blocks of the kernels.
    lengths = torch.arange(200).repeat(2)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    tensors = operands((int(offsets[-1]), 1, 64), 0, torch.float32)
    parameters = gate("row", 64, torch.float32)
    row = len(tensors[0]) // 2
    half = {"cu_seqlens": offsets[:201], "max_seqlen": 199}
    parts = [results_of([t[rows] for t in tensors], parameters, **half) for rows in (slice(row), slice(row, None))]
    assert_equals_parts(results_of(tensors, parameters, cu_seqlens=offsets, max_seqlen=199), parts)
