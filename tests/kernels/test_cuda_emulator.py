"""The emulator of CUDA kernels: its instructions, and the mistakes in kernels that it must report."""

import numpy as np
import pytest
from cuda_emulator import trials
from full_members import members


@pytest.fixture(scope="module")
def trial():
    return trials.load("trials.cu", words_in=1024, words_out=128)


@pytest.fixture(scope="module")
def race_trial():
    return trials.load("trials.cu", words_in=1024, words_out=128, races=True)


LANES = np.arange(32)
GROUP, PAIR = LANES // 4, LANES % 4


def halves(rows, columns, matrix):
    """Registers with the matrix elements at two (row, column) pairs, the first in the low half."""
    low, high = (matrix[r, c].astype(np.float16).view(np.uint16).astype(np.uint32) for r, c in zip(rows, columns))
    return low | high << 16


def test_mma_fragments_follow_the_ptx_isa(trial):
    """PTX ISA, mma.m16n8k16, floating point: the positions of element i of a lane's a, b and c in the matrices."""
    generator = np.random.default_rng(0)
    left, right = generator.integers(-8, 9, (16, 16)), generator.integers(-8, 9, (16, 8))

    def a_at(i):
        return GROUP + 8 * (i % 4 // 2), 2 * PAIR + i % 2 + 8 * (i // 4)

    def b_at(i):
        return 2 * PAIR + i % 2 + 8 * (i // 2), GROUP

    registers = [halves(*zip(a_at(i), a_at(i + 1)), left) for i in range(0, 8, 2)]
    registers += [halves(*zip(b_at(i), b_at(i + 1)), right) for i in range(0, 4, 2)]
    error, out = trial("products", np.stack(registers, axis=1))
    assert error is None
    c = out.view(np.float32).reshape(32, 4)
    for i in range(4):
        assert (c[:, i] == (left @ right)[GROUP + 8 * (i // 2), 2 * PAIR + i % 2]).all()


@pytest.mark.parametrize("name", ["matrices", "matrices transposed"])
def test_ldmatrix_fragments_follow_the_ptx_isa(name, trial):
    """PTX ISA, ldmatrix: of each 8 x 8 matrix, lane t gets elements 2 (t % 4) and the next of row or column t // 4."""
    elements = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    error, out = trial(name, elements.view(np.uint32))
    assert error is None
    got = out.view(np.uint16).reshape(32, 4, 2)
    if "transposed" in name:
        elements = elements.transpose(0, 2, 1)
    for matrix in range(4):
        for half in range(2):
            assert (got[:, matrix, half] == elements[matrix, GROUP, 2 * PAIR + half]).all()


@pytest.mark.parametrize(
    "name, error",
    [
        ("leaving before a barrier", "some threads of a block left while others wait at a barrier"),
        ("different instructions", "threads of a warp run different instructions"),
        ("a byte too far", "a kernel wrote beyond its shared memory"),
        ("a store off four bytes", "a store to a bad address in shared memory"),
        ("a source off 16 bytes", "cp.async: a source off 16 bytes"),
    ],
)
def test_mistake_fails_the_launch(name, error, trial):
    assert trial(name)[0] == error


RACES = {
    "write, shuffle, read, same warp": ("write by lane 0 of warp 0", "read by lane 1 of warp 0"),
    "write, warp's barrier, read, next warp": ("write by lane 0 of warp 0", "read by lane 0 of warp 1"),
    "read, write, next warp": ("read by lane 0 of warp 0", "write by lane 0 of warp 1"),
    "write, write, next warp": ("write by lane 0 of warp 0", "write by lane 0 of warp 1"),
    "copy, read, same thread": ("cp.async by lane 0 of warp 0", "read by lane 0 of warp 0"),
    "copy, wait, read, next warp": ("cp.async by lane 0 of warp 0", "read by lane 0 of warp 1"),
    "copy onto a copy": ("cp.async by lane", "cp.async by lane"),
    "store, matrices": ("write by lane", "read by lane"),
    "matrices, store": ("read by lane", "write by lane"),
}


@pytest.mark.parametrize("seed", members(range(6), fast=(0, 1)))
@pytest.mark.parametrize("name", RACES)
def test_race_is_reported_under_every_seed(name, seed, race_trial, monkeypatch):
    """The report names both accesses in the order of this run, with their source lines."""
    monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
    error, _ = race_trial(name, [1, 2, 3, 4])
    assert error is not None
    assert error.startswith("a race in ")
    assert all(side in error for side in RACES[name]), error
    assert error.count("(trials.cu:") == 2, error


@pytest.mark.parametrize("seed", members(range(6), fast=(0, 1)))
@pytest.mark.parametrize(
    "name",
    [
        "matrices",
        "write, warp's barrier, read, same warp",
        "write, block's barrier, read, next warp",
        "read, read, next warp",
        "write, block's barrier, write, next warp",
        "bytes side by side",
        "copy, wait, read, same thread",
        "copy, wait, block's barrier, read, next warp",
        "store, barrier, matrices, barrier, store",
    ],
)
def test_ordered_accesses_are_no_race(name, seed, race_trial, monkeypatch):
    monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
    assert race_trial(name, [1, 2, 3, 4])[0] is None
