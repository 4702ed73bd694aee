"""Gradients of 32 MB and more, which the CPU kernels write past the caches, have the bits that smaller calls give."""

import pytest
import torch
from full_members import member, members
from torch import Tensor

import qacg_kernels as qk
from qacg_kernels.backends import cpu

pytestmark = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are not there")

STREAMED_BYTES = 32 * 2**20  # kStreamedBytes of csrc/cpu/attention.cpp


@pytest.fixture(params=members(["native", "plain", "avx2", "avx512"], fast=["native", "avx2"]))
def capability(request, monkeypatch):
    if request.param == "native":
        return
    monkeypatch.setenv("QACG_CPU_CAPABILITY", request.param)
    if request.param not in cpu.instruction_sets().values():
        pytest.skip(f"this CPU has no {request.param}")


def operands(shape: tuple[int, ...], keys: int, dtype: torch.dtype) -> list[Tensor]:
    """query, key, value, context query and context key."""
    generator = torch.Generator().manual_seed(0)
    key_shape = (*shape[:-2], keys, shape[-1]) if len(shape) == 4 else shape
    shapes = (shape, key_shape, key_shape, shape, key_shape)
    return [torch.randn(s, generator=generator).to(dtype) for s in shapes]


def gate(form: str, head_dim: int, dtype: torch.dtype) -> qk.GateParameters:
    generator = torch.Generator().manual_seed(1)
    return qk.GateParameters(*(torch.randn(head_dim, generator=generator).to(dtype) for _ in range(4)), form=form)


def gradients(tensors: list[Tensor], gate_parameters: qk.GateParameters, **options) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    attend = qk.quasi_attention_varlen if "cu_seqlens" in options else qk.quasi_attention
    out = attend(*leaves, gate_parameters, backend="cpu", **options)
    return list(torch.autograd.grad(out, leaves, torch.ones_like(out) + 0.5 * tensors[0]))


def assert_large(tensors: list[Tensor]) -> None:
    assert sum(t.nbytes for t in tensors) >= STREAMED_BYTES


def assert_like_parts(whole: list[Tensor], parts: list[list[Tensor]]) -> None:
    assert_large(whole)
    for name, t, *pieces in zip(("query", "key", "value", "context_query", "context_key"), whole, *parts):
        assert sum(piece.nbytes for piece in pieces) == t.nbytes
        assert torch.equal(t, torch.cat(pieces)), name


SIZES = {64: torch.float32, 16: torch.float32, 96: torch.bfloat16, 17: torch.float32}


@pytest.mark.parametrize("form", ["row", "column"])
@pytest.mark.parametrize(
    ("dtype", "head_dim"), [member(dtype, d, id=f"{dtype}-{d}", fast=d == 17) for d, dtype in SIZES.items()]
)
def test_many_heads(dtype, head_dim, form, capability):
    """Rows of whole cache lines and, of head size 17, others."""
    size = dtype.itemsize
    sequences = STREAMED_BYTES // (5 * 3 * 33 * head_dim * size) + 2
    tensors = operands((sequences, 3, 33, head_dim), 33, dtype)
    parameters = gate(form, head_dim, dtype)
    lengths = torch.arange(sequences) % 34
    halves = (slice(0, sequences // 2), slice(sequences // 2, None))
    assert_like_parts(
        gradients(tensors, parameters, key_lengths=lengths),
        [gradients([t[half] for t in tensors], parameters, key_lengths=lengths[half]) for half in halves],
    )


def test_one_head_shared_by_threads(capability):
    tensors = operands((1, 1, 66_000, 64), 40, torch.float32)
    parameters = gate("column", 64, torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        shared = gradients(tensors, parameters)
        torch.set_num_threads(1)
        alone = gradients(tensors, parameters)
    finally:
        torch.set_num_threads(before)
    assert_large(shared)
    small = 4_000  # queries of a call that is not streamed
    part = gradients([tensors[0][:, :, :small], *tensors[1:3], tensors[3][:, :, :small], tensors[4]], parameters)
    for name, a, b in zip(("query", "key", "value", "context_query", "context_key"), shared, alone):
        assert torch.equal(a, b), name
    for t in (0, 3):
        assert torch.equal(shared[t][:, :, :small], part[t])


def test_packed_sequences(capability):
    # Both halves hold the longest sequence, by which the kernels choose their blocks.
    lengths = torch.arange(200).repeat(2)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    tensors = operands((int(offsets[-1]), 1, 64), 0, torch.float32)
    parameters = gate("row", 64, torch.float32)
    row = len(tensors[0]) // 2
    half = {"cu_seqlens": offsets[:201], "max_seqlen": 199}
    parts = [gradients([t[rows] for t in tensors], parameters, **half) for rows in (slice(row), slice(row, None))]
    assert_like_parts(gradients(tensors, parameters, cu_seqlens=offsets, max_seqlen=199), parts)
