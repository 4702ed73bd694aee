"""Calibrates the model by a kernel whose rate is published: one factor for all rates, and a ratio per head size.

The kernel is plain flash attention in Triton on an H100: about 400 TFLOP/s at head size 64 and 467 at 128, with 4 S^2 D
FLOP (Shah et al., FlashAttention-3, figure 5: forward, no causal mask, 16-bit, the longest sequences). The
published rate is that of the fastest tile size, so the model's rate is that of the fastest tile in `_TILES`.
"""

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from benchmarks.static import kernel
from benchmarks.static.compile import AbsentGPU
from benchmarks.static.hardware import CHIPS

ARCHITECTURE = "sm_90"
PUBLISHED = {64: 400.0, 128: 467.0}  # TFLOP/s by head size
# Tiles by head size, as (queries, keys, warps, stages).
_TILES = {
    64: ((128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 3)),
    128: ((128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 8, 2)),
}
_LENGTH = 4096


class Calibration(NamedTuple):
    """The result of the calibration.

    Attributes:
        factor: the factor on all rates of the model: the geometric mean of `by_head_dim`.
        by_head_dim: published rate divided by the model's rate, by head size.
    """

    factor: float
    by_head_dim: dict[int, float]


@functools.cache
def calibration() -> Calibration:
    found = {head_dim: rate / _modelled(head_dim) for head_dim, rate in PUBLISHED.items()}
    return Calibration(math.exp(sum(map(math.log, found.values())) / len(found)), found)


def _modelled(head_dim: int) -> float:
    """The model's rate of plain flash attention with the fastest tile, in TFLOP/s."""
    return max(_rate(head_dim, *tile) for tile in _TILES[head_dim])


def _rate(head_dim: int, block_m: int, block_n: int, warps: int, stages: int) -> float:
    triton.runtime.driver.set_active(AbsentGPU(ARCHITECTURE))
    operands = [torch.empty(1, dtype=torch.bfloat16) for _ in range(4)]
    compiled = plain_attention_kernel.warmup(
        *operands, head_dim, _LENGTH, 0.5, block_m, block_n, head_dim, grid=(1,), num_warps=warps, num_stages=stages
    )
    work = kernel.Work(block_m * block_n, head_dim, products=2, iterates=True, exponentials=1)
    estimate = kernel.estimate_code(compiled, ARCHITECTURE, warps, work)
    return rate(ARCHITECTURE, work.flops * estimate.resident, estimate.iteration)


def rate(architecture: str, flops: float, clocks: float) -> float:
    """The rate of a chip in TFLOP/s, if each multiprocessor executes `flops` FLOP in `clocks` clocks."""
    chip = CHIPS[architecture]
    return flops / clocks * chip.multiprocessors * chip.gigahertz / 1e3


@triton.jit
def plain_attention_kernel(
    query, key, value, out, row, length, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):
    """Computes softmax(s Q K^T) V for BLOCK_M queries of one head.

    Tensors are (heads, length, D) with a row stride of `row`. `scale` is s log2(e). `length` is a multiple of BLOCK_M
    and BLOCK_N.
    """
    feature = tl.arange(0, D)
    base = tl.program_id(1).to(tl.int64) * length * row
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q = tl.load(query + base + rows[:, None] * row + feature[None, :])
    keys = tl.arange(0, BLOCK_N)
    k_pointers = key + base + keys[:, None] * row + feature[None, :]
    v_pointers = value + base + keys[:, None] * row + feature[None, :]
    total = tl.zeros((BLOCK_M, D), tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    for _ in range(0, length, BLOCK_N):
        scores = tl.dot(q, tl.trans(tl.load(k_pointers)))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        total = tl.dot(p.to(q.dtype), tl.load(v_pointers), total * rescale[:, None])
        row_max = new_max
        k_pointers += BLOCK_N * row
        v_pointers += BLOCK_N * row
    tl.store(out + base + rows[:, None] * row + feature[None, :], (total / row_sum[:, None]).to(q.dtype))
