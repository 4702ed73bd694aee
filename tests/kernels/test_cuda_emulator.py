"""The emulator that the CUDA kernels are tested by: its instructions, and the mistakes that it must find."""

import concurrent.futures
import ctypes
import time
from pathlib import Path

import numpy as np
import pytest
from cuda_emulator import build
from full_members import members

HERE = Path(__file__).parents[1] / "cuda_emulator"


@pytest.fixture(scope="module")
def trial():
    """Runs a trial of trials.cu: what the emulator says, and 128 words of output."""
    if build.compiler() is None:
        pytest.skip("no C++ compiler to build the emulator with")
    return runner(build.single(HERE / "trials.cu"))


@pytest.fixture(scope="module")
def watched_trial():
    """The same with the race detector."""
    if not build.detects_races():
        pytest.skip("no GCC, which the race detector is built with")
    return runner(build.single(HERE / "trials.cu", races=True))


def test_two_that_want_the_same_library_build_it_once(tmp_path, monkeypatch):
    compiled = []

    def compile_slowly(source, flags, folder):
        compiled.append(source)
        time.sleep(0.2)
        return folder / f"{source.stem}.o"

    monkeypatch.setattr(build, "OUT", tmp_path)
    monkeypatch.setattr(build, "_compile", compile_slowly)
    monkeypatch.setattr(build, "_run", lambda command: Path(command[-1]).write_bytes(b"built"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(build.single, [HERE / "trials.cu"] * 2))
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == b"built"
    assert len(compiled) == 1


def runner(path):
    library = ctypes.CDLL(str(path))
    library.run_trial.restype = ctypes.c_char_p

    def run(name, words=()):
        memory, out = np.zeros(1024, dtype=np.uint32), np.zeros(128, dtype=np.uint32)
        words = np.asarray(words, dtype=np.uint32).ravel()
        start = (-memory.ctypes.data % 16) // 4
        memory[start : start + words.size] = words
        said = library.run_trial(
            name.encode(), ctypes.c_void_p(memory[start:].ctypes.data), ctypes.c_void_p(out.ctypes.data)
        )
        return said and said.decode(), out

    return run


LANES = np.arange(32)
GROUP, PAIR = LANES // 4, LANES % 4


def halves(rows, columns, matrix):
    """Registers whose low half is matrix[row, column] and whose high half is the next given pair."""
    low, high = (matrix[r, c].astype(np.float16).view(np.uint16).astype(np.uint32) for r, c in zip(rows, columns))
    return low | high << 16


def test_mma_fragments_follow_the_ptx_isa(trial):
    """PTX ISA, mma.m16n8k16, floating point: where element i of a lane's a, b and c lies in the matrices."""
    generator = np.random.default_rng(0)
    left, right = generator.integers(-8, 9, (16, 16)), generator.integers(-8, 9, (16, 8))

    def a_at(i):
        return GROUP + 8 * (i % 4 // 2), 2 * PAIR + i % 2 + 8 * (i // 4)

    def b_at(i):
        return 2 * PAIR + i % 2 + 8 * (i // 2), GROUP

    registers = [halves(*zip(a_at(i), a_at(i + 1)), left) for i in range(0, 8, 2)]
    registers += [halves(*zip(b_at(i), b_at(i + 1)), right) for i in range(0, 4, 2)]
    said, out = trial("products", np.stack(registers, axis=1))
    assert said is None
    c = out.view(np.float32).reshape(32, 4)
    for i in range(4):
        assert (c[:, i] == (left @ right)[GROUP + 8 * (i // 2), 2 * PAIR + i % 2]).all()


@pytest.mark.parametrize("name", ["matrices", "matrices transposed"])
def test_four_matrices_at_a_time(name, trial):
    """PTX ISA, ldmatrix: of each 8 x 8 matrix lane t gets elements 2 (t % 4) and the next of row (or column) t // 4."""
    elements = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    said, out = trial(name, elements.view(np.uint32))
    assert said is None
    got = out.view(np.uint16).reshape(32, 4, 2)
    if "transposed" in name:
        elements = elements.transpose(0, 2, 1)
    for matrix in range(4):
        for half in range(2):
            assert (got[:, matrix, half] == elements[matrix, GROUP, 2 * PAIR + half]).all()


def test_shared_memory_starts_as_nan(trial):
    said, out = trial("unwritten")
    assert said is None
    assert np.isnan(out[:32].view(np.float32)).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_that_is_waited_for_has_come(seed, trial, monkeypatch):
    monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
    said, out = trial("copy with a wait", np.arange(128) + 1)
    assert said is None
    assert (out[:32] == np.where(LANES % 2 == 0, 4 * LANES + 1, 0)).all()


def test_copy_without_wait_may_be_incomplete(trial, monkeypatch):
    results = set()
    for seed in (0, 1):
        monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
        results.add(trial("copy without a wait", np.arange(128) + 1)[1].tobytes())
    assert len(results) == 2


@pytest.mark.parametrize("barrier", [True, False])
def test_a_missing_barrier_gives_different_bits(barrier, trial, monkeypatch):
    results = set()
    for seed in range(8):
        monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
        said, out = trial("neighbours" if barrier else "neighbours without a barrier", [1, 2, 3, 4])
        assert said is None
        results.add(tuple(out[:4]))
    assert results == {(2, 3, 4, 1)} if barrier else len(results) > 1


@pytest.mark.parametrize(
    "name, said",
    [
        ("leaving before a barrier", "some threads of a block left while others wait at a barrier"),
        ("leaving before a shuffle", "threads of a warp wait for others that left or wait elsewhere"),
        ("different instructions", "threads of a warp run different instructions"),
        ("a byte too far", "a kernel wrote beyond its shared memory"),
        ("a bad store", "a store to a bad address in shared memory"),
        ("a store off four bytes", "a store to a bad address in shared memory"),
        ("a bad row", "ldmatrix: a bad address in shared memory"),
        ("a source off 16 bytes", "cp.async: a source off 16 bytes"),
        ("too much shared memory", "a kernel asked for more shared memory than there is"),
    ],
)
def test_a_mistake_is_found(name, said, trial):
    assert trial(name)[0] == said


SMALLEST = 2.0**-12


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "left, right, nearest, truncated",
    [
        # Each falls off to nearest even; tensor cores keep one bit more and add eight at a time.
        ([1] + 15 * [SMALLEST], [1] + 15 * [SMALLEST], 1, 1 + 7 * 2**-23),
        # One more bit down all are lost.
        ([1] + 15 * [SMALLEST], [1] + 15 * [SMALLEST / 2], 1, 1),
        ([1, 1.75 * SMALLEST], [1, 2 * SMALLEST], 1 + 2**-22, 1 + 2**-23),
        ([1, 2**-14, -1], [1, 2**-14, 1], 0, 0),
        # Cancelled in one step, so not to the step's last bit but exactly.
        ([1, 2**-11, -1], [1, 2**-11, 1], 2**-22, 2**-22),
    ],
)
def test_roundings_of_tensor_cores(left, right, nearest, truncated, sign, trial, monkeypatch):
    rows, columns = np.zeros((16, 16)), np.zeros((16, 8))
    rows[0, : len(left)], columns[: len(right), 0] = sign * np.array(left), right
    pairs = [(2 * PAIR + 8 * r, 2 * PAIR + 8 * r + 1) for r in range(2)]
    a = [halves((GROUP + 8 * (r % 2),) * 2, pairs[r // 2], rows) for r in range(4)]
    b = [halves(pairs[r], (GROUP,) * 2, columns) for r in range(2)]
    for rounding, expected in (("float32", nearest), ("truncate", truncated)):
        monkeypatch.setenv("QACG_EMULATOR_ROUNDING", rounding)
        said, out = trial("products", np.stack(a + b, axis=1))
        assert said is None
        assert out.view(np.float32)[0] == sign * expected, rounding


RACES = {
    "neighbours without a barrier": ("write by lane 0", "read by lane 0"),
    "write, read, same warp": ("write by lane 0 of warp 0", "read by lane 1 of warp 0"),
    "write, shuffle, read, same warp": ("write by lane 0 of warp 0", "read by lane 1 of warp 0"),
    "write, warp's barrier, read, next warp": ("write by lane 0 of warp 0", "read by lane 0 of warp 1"),
    "read, write, next warp": ("read by lane 0 of warp 0", "write by lane 0 of warp 1"),
    "write, write, next warp": ("write by lane 0 of warp 0", "write by lane 0 of warp 1"),
    "reads, warp's barriers, write, next warp": ("read by lane", "write by lane 0 of warp 1"),
    "copy, read, same thread": ("cp.async by lane 0 of warp 0", "read by lane 0 of warp 0"),
    "copy, wait, read, next warp": ("cp.async by lane 0 of warp 0", "read by lane 0 of warp 1"),
    "copy, block's barrier, read, next warp": ("cp.async by lane 0 of warp 0", "read by lane 0 of warp 1"),
    "copy onto a copy": ("cp.async by lane", "cp.async by lane"),
    "copy without a wait": ("cp.async by lane", "read by lane"),
    "store, matrices": ("write by lane", "read by lane"),
    "matrices, store": ("read by lane", "write by lane"),
}


@pytest.mark.parametrize("seed", members(range(6), fast=(0, 1)))
@pytest.mark.parametrize("name", RACES)
def test_a_race_is_found_in_any_order(name, seed, watched_trial, monkeypatch):
    """Both accesses are told, in the order in which this run made them, with their lines."""
    monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
    said, _ = watched_trial(name, [1, 2, 3, 4])
    assert said
    assert said.startswith("a race in ")
    assert all(side in said for side in RACES[name]), said
    assert said.count("(trials.cu:") == 2, said


@pytest.mark.parametrize("seed", members(range(6), fast=(0, 1)))
@pytest.mark.parametrize(
    "name",
    [
        "neighbours",
        "matrices",
        "copy with a wait",
        "write, warp's barrier, read, same warp",
        "write, block's barrier, read, next warp",
        "write, read, same thread",
        "read, read, next warp",
        "write, block's barrier, write, next warp",
        "reads, warp's barrier, write, same warp",
        "bytes side by side",
        "copy, wait, read, same thread",
        "copy, wait, block's barrier, read, next warp",
        "store, barrier, matrices, barrier, store",
    ],
)
def test_what_is_ordered_is_no_race(name, seed, watched_trial, monkeypatch):
    monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
    assert watched_trial(name, [1, 2, 3, 4])[0] is None
