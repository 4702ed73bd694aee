"""The forward and backward allocate no L x S matrix: growth of a process.

`python -m benchmarks.measure.memory` measures the 12 heads of the performance target. Fewer heads are enough here,
because the map of one head is four times the bound.
"""

import json

import pytest
from full_members import members
from processes import run_python

MEGABYTE = 2**20

# Runs in a separate process, because a high-water mark cannot be lowered. Before the mark is first read, the script
# allocates and writes as much as a call keeps: the output, the gradients, the output of the softmax branch.
SCRIPT = """
import json, resource, sys
import torch
import qacg_kernels as qk

torch.set_num_threads(2)
batch, heads, length, head_dim, name, backend, options = json.loads(sys.argv[1])
dtype = getattr(torch, name)

def high_water_mark():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def growth(length):
    shape = (batch, heads, length, head_dim)
    tensors = [torch.randn(shape).to(dtype).requires_grad_() for _ in range(5)]
    gate = qk.GateParameters(*(torch.randn(head_dim).to(dtype).requires_grad_() for _ in range(4)))
    upstream = torch.randn(shape).to(dtype)
    kept = [torch.ones(shape, dtype=dtype) for _ in range(5 + 2)]
    before = high_water_mark()
    del kept
    qk.quasi_attention(*tensors, gate, backend=backend, **options).backward(upstream)
    assert all(t.grad is not None for t in tensors)
    return high_water_mark() - before

growth(16)  # libraries and pools of threads
print(json.dumps(growth(length)))
"""

CASES = {
    "long rows": (1, 1, 8192, 64, "float32", {}),
    "long rows, bfloat16": (1, 2, 8192, 64, "bfloat16", {"is_causal": True}),
    "long rows, dropout": (1, 1, 8192, 64, "float32", {"dropout_p": 0.1}),
    "many short rows": (256, 12, 128, 16, "float32", {}),
}


@pytest.mark.parametrize("name", members(CASES, fast=["long rows"]))
def test_temporary_memory_is_below_64_megabytes(name, kernel, device):
    if device != "cpu":
        pytest.skip("the high-water mark is that of the process, not of the device")
    batch, heads, length, *_ = CASES[name]
    maps = 4 * batch * heads * length * length
    assert maps > 2 * 64 * MEGABYTE, "the case is too small to detect a stored map"
    *sizes, options = CASES[name]
    grown = json.loads(run_python("-c", SCRIPT, json.dumps([*sizes, kernel, options])).stdout)
    assert grown < 64 * MEGABYTE, f"grew by {grown / MEGABYTE:.0f} MB"
