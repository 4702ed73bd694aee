"""The CUDA kernels have no races in shared memory, and a removed barrier is reported as one.

The rules are in tests/cuda_emulator/README.md. By default, the shorter list of tests/check_races.py runs under three
seeds, and one barrier is removed. With `--thorough-cuda` the longer list runs, and each barrier and wait of the
tensor-core path is removed, one at a time.
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


def barriers() -> list[tuple[str, int]]:
    """Returns the barriers and waits of the tensor-core path: name of the file, and index in the file."""
    found = []
    for path in sorted((build.CSRC / "cuda").glob("mma_*.h")):
        found += [(path.name, n) for n in range(len(BARRIER.findall(path.read_text())))]
    return found


def without(name: str, number: int, folder: Path) -> Path:
    """A copy of csrc without one barrier."""
    csrc = folder / "csrc"
    shutil.copytree(build.CSRC, csrc, ignore=shutil.ignore_patterns("cpu"))
    path = csrc / "cuda" / name
    text = path.read_text()
    place = list(BARRIER.finditer(text))[number]
    path.write_text(text[: place.start()] + text[place.end() :])
    return csrc


def end_of_body() -> tuple[str, int]:
    """The barrier between a tile's last use and the copies over it."""
    text = (build.CSRC / "cuda/mma_tile.h").read_text()
    before = text[: text.index("body(n, n % 2);\n")]
    return "mma_tile.h", len(BARRIER.findall(before))


def pytest_generate_tests(metafunc):
    if "barrier" in metafunc.fixturenames:
        every = metafunc.config.getoption("--thorough-cuda")
        chosen = barriers() if every else [end_of_body()]
        metafunc.parametrize("barrier", chosen, ids=lambda barrier: f"{barrier[0]} {barrier[1]}")


@pytest.fixture(autouse=True)
def gcc():
    if not build.detects_races():
        pytest.skip("no GCC, which the race detector is built with")


def test_kernels_have_no_race(request):
    thorough = request.config.getoption("--thorough-cuda")
    seeds = 6 if thorough else 3
    output = check_races_with("--seeds", seeds, *(["--thorough"] if thorough else []), status=0)
    print(output)
    runs = re.findall(r": ([\d,]+) accesses, no race$", output, re.MULTILINE)
    lists = (check_races.TENSOR_CORES, check_races.NARROW, check_races.PLAIN)
    assert len(runs) >= seeds * sum(map(len, lists))
    # A case that accesses no shared memory would show nothing.
    assert all(int(accesses.replace(",", "")) > 10_000 for accesses in runs), output


def test_removed_barrier_is_reported(barrier, tmp_path):
    output = check_races_with("--csrc", without(*barrier, tmp_path), "--first", status=1)
    race = output.splitlines()[-2]
    assert re.search(r"a race in .*qacg::cuda::mma::\w+<.*>, block \d+, byte \d+ of shared memory: ", race), race
    if barrier == end_of_body():
        assert re.search(r"read by lane .* \(mma_tile.h:\d+.*\); with no barrier between, cp.async by", race), race
