"""Machine code of the Gluon forward for Hopper, compiled without a GPU as a launch would compile it."""

import pytest
import torch

pytest.importorskip("triton")
from benchmarks.static.compile import NVDISASM, kernels_of, resources
from benchmarks.static.sass import disassembled, main_loop
from qacg_kernels.backends.triton import gluon_launch
from qacg_kernels.backends.triton.tile_tables import shipped
from qacg_kernels.call.problem import Residuals
from qacg_kernels.functional import problem_of
from qacg_kernels.testing.inputs import Case, make_inputs

pytestmark = pytest.mark.full
CALLS = {
    "plain": dict(),
    "lengths, causal": dict(key_lengths=(250,), is_causal=True),
    "packed": dict(sequences=(256, 100), is_causal=True, gate="shared", bias="shared"),
    "bias, lengths, causal": dict(key_lengths=(250,), is_causal=True, quasi_bias="per_query"),
}


def compiled(head_dim, call, dtype):
    sizes = dict(batch=1, heads=12, queries=256, keys=256, head_dim=head_dim, layout="heads_inside")
    inputs = make_inputs(Case("ahead of time", **sizes | CALLS[call]), dtype)
    problem = problem_of(*inputs.arguments(), **inputs.options)

    def forward():
        gluon_launch.forward(problem, Residuals(True, True))

    return kernels_of(forward, shipped("sm_90"), "sm_90", "gluon_forward_kernel".__eq__)["gluon_forward_kernel"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_products_overlap_in_the_main_loop(head_dim, call):
    """ptxas waits after each product if it cannot assign the registers to products."""
    kernel = compiled(head_dim, call, (torch.bfloat16, torch.float16)[head_dim // 128])
    used = resources(kernel)
    assert used.wgmma
    assert not used.spills
    assert used.stack <= 80
    assert used.shared <= 227 * 1024
    program = disassembled(kernel.asm["cubin"], NVDISASM)
    loop = main_loop(program)
    body = program[loop.start : loop.stop + 1]
    assert sum(i.stem == "HGMMA" for i in body) == {64: 16, 128: 20}[head_dim]
    assert sum(i.opcode.startswith("WARPGROUP.DEPBAR") for i in body) == 2
