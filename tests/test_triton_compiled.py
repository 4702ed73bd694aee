"""Machine code of the Triton kernels for GPUs that are not here: it compiles, fits the chip, and does not spill.

Head size 64 in bfloat16 on sm_90, gate vectors, no mask and no dropout: no other configuration is compiled by a test.
"""

import importlib.util

import pytest
import torch

from qacg_kernels.backends.triton import configurations
from qacg_kernels.problem import dense_problem
from qacg_kernels.testing_inputs import Case, make_inputs

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

SHARED_BYTES = {"sm_90": 227 * 1024}
# The kernel over key blocks holds three accumulators and three tiles of scores; whole rows of 128 keys spill a little.
MOST_BACKWARD_STACK = 64


@pytest.mark.parametrize("length", [128, 256], ids=["whole rows", "tiled"])
@pytest.mark.parametrize("architecture", ["sm_90"])
def test_kernels_compile_and_fit(architecture, length, tmp_path, monkeypatch):
    from ahead_of_time import kernels_of, resources

    from qacg_kernels.backends.triton import launch

    table = configurations.shipped(architecture)
    monkeypatch.setattr(launch, "table_for", lambda device: table)
    case = Case("compiled", batch=1, heads=2, queries=length, head_dim=64, gate="shared", bias="shared")
    inputs = make_inputs(case, torch.bfloat16)
    problem = dense_problem(*inputs.arguments(), attn_mask=None, key_lengths=None, dropout_seed=None, **inputs.options)
    tiled = length > table.row("whole_row_forward", torch.bfloat16, 64).block_n

    def call():
        saved = dict(save_softmax_out=tiled, save_quasi_out=tiled)
        _, *rest = launch.forward(*problem.tensors(), **problem.options(), **saved)
        launch.backward(inputs.grad_out, None, None, *problem.tensors(), *rest, **problem.options())

    kernels = kernels_of(call, int(architecture.removeprefix("sm_")), monkeypatch)
    assert {"forward_kernel", "key_blocks_kernel", "gate_sums_kernel"} <= set(kernels)
    assert ("query_blocks_kernel" in kernels) == tiled
    for name, kernel in kernels.items():
        used = resources(kernel, tmp_path)
        assert used.shared <= SHARED_BYTES[architecture], f"{name}: {used}"
        limit = 0 if name == "forward_kernel" else MOST_BACKWARD_STACK
        assert used.stack <= limit, f"{name}: {used}"
