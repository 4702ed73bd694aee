"""Plain flash attention in Triton, forward, as its tutorial writes it: the kernel that the model is held to.

Of such a kernel the rate on an H100 is published, which ours have not.
"""

import triton
import triton.language as tl


@triton.jit
def plain_attention_kernel(
    query, key, value, out, row, length, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):
    """softmax(scale Q K^T) V for BLOCK_M queries of one head; rows of (heads, length, D) lie `row` apart.

    scale has log2(e) in it. length is a multiple of both blocks.
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
