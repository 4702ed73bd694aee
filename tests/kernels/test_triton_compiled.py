"""Machine code of the Triton kernels, without a GPU: it compiles, fits the GPU, and does not spill.

The default run compiles some kernels, most of them in kinds of call that are not the heaviest. The full run compiles a
fifth of all builds, `make check-triton` all.
"""

import importlib.util
import os

import pytest
import torch
from full_members import member

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
KINDS = (
    ("sm_80", "whole_row_forward", torch.bfloat16, 64, "column gate, all at once"),
    ("sm_100", "query_gradients", torch.float32, 64, "row gate, lengths, causal"),
    ("sm_90", "tiled_forward", torch.bfloat16, 64, "quasi bias"),
    ("sm_80", "key_gradients", torch.bfloat16, 64, "quasi bias"),
    ("sm_80", "key_gradients", torch.bfloat16, 64, "boolean mask, dropout"),
    ("sm_80", "whole_row_backward", torch.bfloat16, 64, "boolean keys, dropout"),
    ("sm_90", "whole_row_backward", torch.bfloat16, 64, "boolean keys, dropout"),
    ("sm_90", "tiled_forward", torch.bfloat16, 64, "packed, dropout"),
    ("sm_90", "query_gradients", torch.bfloat16, 64, "row gate, lengths, causal, dropout"),
    ("gfx942", "whole_row_forward", torch.bfloat16, 64, "row gate, lengths, causal"),
    ("gfx950", "tiled_forward", torch.bfloat16, 64, "row gate, lengths, causal"),
    ("gfx942", "whole_row_backward", torch.float32, 64, "row gate, lengths, causal"),
    ("gfx950", "key_gradients", torch.float32, 64, "row gate, lengths, causal"),
    ("gfx942", "query_gradients", torch.bfloat16, 64, "row gate, lengths, causal"),
)


@pytest.mark.parametrize("part", [member("kinds", id="kinds", fast=True), member("a fifth", id="a fifth", fast=False)])
def test_builds_compile_fit_and_do_not_spill(part, capsys):
    from check_triton import outcomes
    from triton_builds import Build, every_build

    every = every_build()
    builds = [Build(*kind) for kind in KINDS] if part == "kinds" else every[::5]
    with capsys.disabled():
        print(f" {len(builds)} builds of the Triton kernels; make check-triton compiles all {len(every)} ", end="")
    found = list(outcomes(builds, len(os.sched_getaffinity(0))))
    assert [fault for o in found for fault in o.faults] == []
    assert sorted(map(str, (o.build for o in found))) == sorted(map(str, builds))
    assert all(r.registers > 16 for o in found for r in o.used.values()), "fewer registers than any kernel needs"
