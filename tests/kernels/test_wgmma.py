"""The emulator's products of warp groups against the formulas of the PTX ISA, and the mistakes that it must report.

Layouts and bits are derived a second time here, from the manual: "Strides", "Canonical layouts" and "Matrix descriptor
format" of the asynchronous warp-group instructions, "Matrix fragments for wgmma.mma_async.m64nNk16".
"""

import numpy as np
import pytest
from cuda_emulator import trials
from full_members import members

IMAGE_BYTES = 32 * 1024


@pytest.fixture(scope="module")
def trial():
    return trials.load("wgmma_trials.cu", words_in=12288, words_out=8192)


@pytest.fixture(scope="module")
def race_trial():
    return trials.load("wgmma_trials.cu", words_in=12288, words_out=8192, races=True)


THREADS = np.arange(128)


def words_of(*descriptors):
    return [part for bits in descriptors for part in (bits & 0xFFFFFFFF, bits >> 32)]


def encoded(address, leading, stride, mode):
    """Matrix descriptor format: each offset without its last four bits, in bits 0, 16 and 32; the swizzle in bit 62."""
    return (address & 0x3FFFF) >> 4 | (leading & 0x3FFFF) >> 4 << 16 | (stride & 0x3FFFF) >> 4 << 32 | mode << 62


# Bytes of a row of the swizzle's atom, which has eight rows, by the swizzle mode in a descriptor.
MODES = {0: 16, 1: 128, 2: 64, 3: 32}


def swizzled(address, mode):
    """Swizzle<3, 4, 3> of bytes for rows of 128 bytes, <2, 4, 3> and <1, 4, 3> for 64 and 32, <0, 4, 3> for none."""
    bits = {0: 0, 1: 3, 2: 2, 3: 1}[mode]
    source = address >> 7 & ((1 << bits) - 1)
    return address ^ source << 4


def k_major(row, k, leading, stride, mode):
    """((8, m), (T, 2)) : ((aT, SBO), (1, T)) with T = 8 elements and a of them in an atom's row; without a swizzle the
    second step along the sum is LBO."""
    atom = MODES[mode]
    along = k // 8 * (leading if mode == 0 else 16) + k % 8 * 2
    return row % 8 * atom + row // 8 * stride + along


def mn_major(column, k, leading, stride, mode):
    """((T, a, m), (8, k)) : ((1, T, LBO), (aT, SBO)); without a swizzle ((T, 1, m), (8, k)) : ((1, T, SBO), (T, LBO)).

    As above, an atom's row has a times T elements."""
    atom = MODES[mode]
    if mode == 0:
        return column % 8 * 2 + column // 8 * stride + k % 8 * 16 + k // 8 * leading
    wide = atom // 2
    return column % wide * 2 + column // wide * leading + k % 8 * atom + k // 8 * stride


def place(image, matrix, address, layout, *strides):
    """Writes matrix[line, k] to its address in the layout."""
    for (line, k), x in np.ndenumerate(matrix):
        at = swizzled(address + layout(line, k, *strides), strides[-1])
        image[at // 2] = np.float16(x).view(np.uint16)


def sums_of(out, columns):
    """Fragment D: element i of a thread in row 16 warp + lane / 4 (+ 8), columns 8 (i / 4) + 2 (lane % 4) + i % 2."""
    got = np.empty((64, columns), dtype=np.float32)
    values = out[: 64 * columns].view(np.float32).reshape(128, columns // 2)
    for i in range(columns // 2):
        rows = 16 * (THREADS // 32) + THREADS % 32 // 4 + 8 * (i // 2 % 2)
        got[rows, 8 * (i // 4) + 2 * (THREADS % 4) + i % 2] = values[:, i]
    return got


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_product_of_matrices_in_shared_memory_is_exact(mode, seed, trial, monkeypatch):
    """Both matrices are K-major. The second product is added to the first."""
    monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
    generator = np.random.default_rng(mode)
    left, right = generator.integers(-8, 9, (64, 16)), generator.integers(-8, 9, (64, 16))
    image = np.full(IMAGE_BYTES // 2, 0x7E00, dtype=np.uint16)  # NaN
    strides = (256, 512, mode) if mode == 0 else (0, 8 * MODES[mode], mode)
    # Starts 32 bytes into an atom's row, like the second step along a row: the swizzle applies to addresses.
    first = 0 if mode in (0, 3) else 32
    place(image, left, first, k_major, *strides)
    place(image, right, 16384 + first, k_major, *strides)
    matrices = (encoded(address, *strides) for address in (first, 16384 + first))
    error, out = trial("scores", [*words_of(*matrices), *image.view(np.uint32)])
    assert error is None
    assert (sums_of(out, 64) == 2 * left @ right.T).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_product_of_weights_in_registers_is_exact(mode, seed, trial, monkeypatch):
    """The left matrix is fragment A of the instruction, in registers; the right one is MN-major."""
    monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
    generator = np.random.default_rng(mode)
    left, right = generator.integers(-8, 9, (64, 16)), generator.integers(-8, 9, (128, 16))
    image = np.full(IMAGE_BYTES // 2, 0x7E00, dtype=np.uint16)
    # Two atoms of eight steps each along the sum, followed by those of the next columns.
    strides = (128, 256, mode) if mode == 0 else (16 * MODES[mode], 8 * MODES[mode], mode)
    place(image, right, 2048, mn_major, *strides)
    registers = np.empty((128, 4, 2), dtype=np.uint16)
    for i in range(8):  # a0 to a7
        rows = 16 * (THREADS // 32) + THREADS % 32 // 4 + 8 * (i // 2 % 2)
        steps = 2 * (THREADS % 4) + i % 2 + 8 * (i // 4)
        registers[:, i // 2, i % 2] = left[rows, steps].astype(np.float16).view(np.uint16)
    words = [*words_of(encoded(2048, *strides)), 0, 0, *image.view(np.uint32), *registers.view(np.uint32).ravel()]
    error, out = trial("weighted", words)
    assert error is None
    assert (sums_of(out, 128) == 1 + left @ right.T).all()


@pytest.mark.parametrize("address, leading, stride", [(0, 0, 1024), (8192, 16384, 1024), (230400, 8192, 2048)])
def test_descriptor_has_the_bits_of_the_ptx_isa(address, leading, stride, trial):
    error, out = trial("descriptor", [address, leading, stride])
    assert error is None
    got = out[:4].view(np.uint64)
    assert int(got[0]) == encoded(address, leading, stride, 1)
    assert int(got[1]) == encoded(address + 2048, leading, stride, 1)


def test_tile_chunks_lie_where_its_descriptors_point(trial):
    """The tile has 128 rows of 128 dims in two panels, at address 4,096; a product sums along rows or across them."""
    error, out = trial("tile")
    assert error is None
    places, descriptors = out[:2048].reshape(128, 16), out[2048 : 2048 + 32].view(np.uint64)
    panel = 128 * 128  # bytes
    for k in range(8):
        first = 4096 + 64 * 128 + k // 4 * panel + k % 4 * 32
        assert int(descriptors[k]) == encoded(first, 0, 1024, 1)
        for row in range(64):
            for chunk in range(2):
                assert places[64 + row, 2 * k + chunk] == swizzled(first + k_major(row, 8 * chunk, 0, 1024, 1), 1)
        first = 4096 + k * 16 * 128
        assert int(descriptors[8 + k]) == encoded(first, panel, 1024, 1)
        for row in range(16):
            for chunk in range(16):
                at = swizzled(first + mn_major(8 * chunk, row, panel, 1024, 1), 1)
                assert places[16 * k + row, chunk] == at


def test_wrong_descriptor_gives_other_numbers(trial):
    generator = np.random.default_rng(0)
    left, right = generator.integers(-8, 9, (64, 16)), generator.integers(-8, 9, (64, 16))
    image = np.zeros(IMAGE_BYTES // 2, dtype=np.uint16)
    place(image, left, 0, k_major, 0, 1024, 1)
    place(image, right, 16384, k_major, 0, 1024, 1)
    for wrong in (encoded(16384, 0, 512, 1), encoded(16384, 0, 1024, 2), encoded(16384 + 32, 0, 1024, 1)):
        error, out = trial("scores", [*words_of(encoded(0, 0, 1024, 1), wrong), *image.view(np.uint32)])
        assert error is None
        assert not (sums_of(out, 64) == 2 * left @ right.T).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "name, error",
    [
        ("right", None),
        ("right, by cp.async", None),
        ("no fence", "wgmma: no fence behind the last access to the sums"),
        ("weights behind the fence", "wgmma: no fence behind the last access to the weights"),
        ("sums behind the fence", "wgmma: no fence behind the last access to the sums"),
        ("not all waited for", "wgmma: a wait names sums that are still under way"),
        ("weights before the wait", "wgmma: weights were written before the wait for their product"),
        ("sums before the wait", "wgmma: sums were written before the wait for their product"),
        ("no commit", "wgmma: a wait names sums that are still under way"),
        ("no wait", "wgmma: a block ended before its products"),
        ("base offset", "wgmma: a descriptor's base offset, which the emulator does not support"),
        ("beyond", "wgmma: a matrix beyond the shared memory"),
        ("one thread elsewhere", "wgmma: threads of a group name different matrices"),
    ],
)
def test_wgmma_mistake_fails_the_launch(name, error, seed, trial, monkeypatch):
    monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
    assert trial(name, np.arange(1024))[0] == error


def test_sums_without_a_wait_are_nan(trial):
    assert np.isnan(trial("no wait", np.arange(1024))[1][:4096].view(np.float32)).all()


@pytest.mark.parametrize("seed", members(range(6), fast=(0, 1)))
@pytest.mark.parametrize(
    "name, first, second",
    [
        ("not shown", "write by lane", "with no proxy fence and barrier between, wgmma by lane"),
        ("not shown, by cp.async", "cp.async by lane", "with no proxy fence and barrier between, wgmma by lane"),
        ("shown behind the barrier", "write by lane", "with no proxy fence and barrier between, wgmma by lane"),
        ("no barrier", "write by lane", "with no proxy fence and barrier between, wgmma by lane"),
        ("matrix before the wait", "wgmma by lane", "before its thread has waited for it, write by lane 5 of warp 0"),
        ("matrix behind the wait", "wgmma by lane", "write by lane 5 of warp 0"),
    ],
)
def test_wgmma_race_is_reported_under_every_seed(name, first, second, seed, race_trial, monkeypatch):
    monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
    error, _ = race_trial(name, np.arange(1024))
    assert error is not None
    assert error.startswith("a race in ")
    assert first in error
    assert second in error
    assert error.count("(wgmma_trials.cu:") == 2, error


@pytest.mark.parametrize("seed", members(range(6), fast=(0, 1)))
@pytest.mark.parametrize("name", ["right", "right, by cp.async", "matrix behind a barrier"])
def test_ordered_wgmma_accesses_are_no_race(name, seed, race_trial, monkeypatch):
    monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
    assert race_trial(name, np.arange(1024))[0] is None
