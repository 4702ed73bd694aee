"""The CUDA kernels have no races in shared memory, and a removed barrier is reported as one.

The rules are in tests/cuda_emulator/README.md.
"""

import re
import shutil
from pathlib import Path

import check_races
import pytest
from cuda_emulator import build
from processes import ROOT, SUPPORT, run_python

pytestmark = pytest.mark.full
BARRIER = re.compile(r"synchronise_(?:block|warp)\(\);|wait_for_copies<\d>\(\);")


def check_races_with(*options: object, status: int) -> str:
    """The output of check_races.py."""
    return run_python(ROOT / "tests/check_races.py", *options, status=status, paths=(ROOT, SUPPORT)).stdout


@pytest.fixture
def without_a_barrier(tmp_path) -> Path:
    """A copy of csrc without the barrier between a tile's last use and the copies over it."""
    csrc = tmp_path / "csrc"
    shutil.copytree(build.CSRC, csrc, ignore=shutil.ignore_patterns("cpu"))
    path = csrc / "cuda/mma_tile.h"
    text = path.read_text()
    place = BARRIER.search(text, text.index("body(n, n % 2);\n"))
    path.write_text(text[: place.start()] + text[place.end() :])
    return csrc


@pytest.fixture(autouse=True)
def gcc():
    if not build.detects_races():
        pytest.skip("no GCC, which the race detector is built with")


def test_kernels_have_no_race():
    seeds = 3
    output = check_races_with("--seeds", seeds, status=0)
    runs = re.findall(r": ([\d,]+) accesses, no race$", output, re.MULTILINE)
    assert len(runs) >= seeds * len(check_races.CASES)
    # A case that accesses no shared memory would show nothing.
    assert all(int(accesses.replace(",", "")) > 10_000 for accesses in runs), output


def test_removed_barrier_is_reported(without_a_barrier):
    output = check_races_with("--csrc", without_a_barrier, "--first", status=1)
    race = output.splitlines()[-2]
    assert re.search(r"a race in .*qacg::cuda::mma::\w+<.*>, block \d+, byte \d+ of shared memory: ", race), race
    assert re.search(r"read by lane .* \(mma_tile.h:\d+.*\); with no barrier between, cp.async by", race), race
