"""Machine code of the Triton kernels, without a GPU: it compiles, fits the GPU, and does not spill.

The default run compiles seven kernels, five of them in kinds of call that are not the heaviest. The full run compiles
every entry of every table at its heaviest call. `make check-triton` adds the other calls, dtypes and head sizes.
"""

import importlib.util
import os

import pytest
from full_members import member

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def two_kernels(builds):
    """A build of a forward and one of a backward, which differ in GPU, head size and dtype."""
    by_kernel = {name: [b for b in builds if b.kernel == name] for name in ("whole_row_forward", "query_gradients")}
    return [found[5 * n % len(found)] for n, found in enumerate(by_kernel.values())]


def other_kinds(builds):
    """Builds with a quasi_bias, and with a boolean mask and dropout, for two GPUs."""
    kinds = (
        ("sm_90", "tiled_forward", "quasi bias"),
        ("sm_80", "key_gradients", "quasi bias"),
        ("sm_80", "key_gradients", "boolean mask, dropout"),
        ("sm_80", "whole_row_backward", "boolean keys, dropout"),
        ("sm_90", "whole_row_backward", "boolean keys, dropout"),
    )
    return [b for b in builds if (b.architecture, b.kernel, b.variant) in kinds]


@pytest.mark.parametrize(
    "part",
    [
        member(two_kernels, id="two", fast=True),
        member(other_kinds, id="kinds", fast=True),
        member(list, id="tables", fast=False),
    ],
)
def test_selected_builds_compile_fit_and_do_not_spill(part, capsys):
    from check_triton import outcomes
    from triton_builds import KERNELS, every_build, selected_builds

    assert {build.kernel for build in selected_builds()} == {*KERNELS, "small kernels"}
    builds = part(selected_builds())
    with capsys.disabled():
        left = len(every_build()) - len(builds)
        print(f" {len(builds)} builds of the Triton kernels; make check-triton compiles {left} others ", end="")
    found = list(outcomes(builds, len(os.sched_getaffinity(0))))
    assert sorted(map(str, (o.build for o in found))) == sorted(map(str, builds))
    assert [fault for o in found for fault in o.faults] == []
    assert all(r.registers > 16 for o in found for r in o.used.values()), "fewer registers than any kernel needs"


@pytest.mark.parametrize(
    "part", [member("few_amd_builds", id="few", fast=True), member("amd_builds", id="table", fast=False)]
)
def test_amd_builds_use_matrix_instructions_unspilled(part):
    import triton_builds
    from check_triton import outcomes

    builds = getattr(triton_builds, part)()
    found = list(outcomes(builds, len(os.sched_getaffinity(0))))
    assert [fault for o in found for fault in o.faults] == []
    assert sorted(map(str, (o.build for o in found))) == sorted(map(str, builds))
