"""Runs the kernels of trials.cu, which test the emulator itself."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from cuda_emulator import build

Run = Callable[..., tuple[str | None, np.ndarray]]


def load(source: str, words_in: int, words_out: int, races: bool = False) -> Run:
    """Compiles a file of trials; skips the test where that is not possible.

    Args:
        source: name of the file in this folder.
        words_in: size of the input in words of 32 bits.
        words_out: size of the output in words.
        races: with the race detector.

    Returns:
        A function of a trial's name and its input words that returns the emulator's error message and the output.
    """
    if build.compiler() is None:
        pytest.skip("no C++ compiler to build the emulator with")
    if races and not build.detects_races():
        pytest.skip("no GCC, which the race detector is built with")
    library = ctypes.CDLL(str(build.single(build.HERE / source, races=races)))
    library.run_trial.restype = ctypes.c_char_p

    def run(name: str, words=()) -> tuple[str | None, np.ndarray]:
        memory, out = np.zeros(words_in, dtype=np.uint32), np.zeros(words_out, dtype=np.uint32)
        words = np.asarray(words, dtype=np.uint32).ravel()
        start = (-memory.ctypes.data % 16) // 4
        memory[start : start + words.size] = words
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (memory[start:], out))
        error = library.run_trial(name.encode(), *pointers)
        return error and error.decode(), out

    return run
