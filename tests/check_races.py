"""Finds races in the CUDA kernels, emulated on the CPU: `make check-races`, no GPU needed.

Runs cases, forward and backward, under several seeds with the race detector (tests/cuda_emulator/README.md). It prints
a line per run; the exit status is 1 if there is a race. It replaces the operators of the CUDA backend in its process.
"""

import argparse
import ctypes
import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from cases import LAYOUT_CASES, SMALL, STRIPS, TILED
from cuda_emulator import build

from qacg_kernels.backends import cuda, dispatch
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

# Every kernel and every path that uses shared memory: single-tile and tiled rows, O1 saved or not, each gate, masks,
# lengths, packed sequences, causality, dropout, each padded head size, blocks without a key. Heads are separate blocks,
# so one is enough.
CASES = (
    *(replace(case, heads=1) for case in STRIPS),
    Case("races, 128 dims, dropout", batch=1, heads=1, queries=70, keys=150, head_dim=128, dropout_p=0.1),
    Case("races, 64 dims, column", batch=1, heads=1, queries=90, keys=170, head_dim=64, gate="shared", form="column"),
    Case("races, packed, causal", heads=1, sequences=(150, 0, 30), head_dim=64, is_causal=True, dropout_p=0.1),
    Case("races, no key at all", batch=2, heads=1, queries=64, keys=130, head_dim=64, key_lengths=(0, 0)),
    # Several tiles of queries in the backward.
    Case("races, queries, 64 dims", batch=1, heads=1, queries=150, keys=70, head_dim=64, gate="shared", form="column"),
    Case("races, queries, 128 dims", batch=1, heads=1, queries=100, keys=70, head_dim=128, dropout_p=0.1),
    Case("races, queries, packed, causal", heads=1, sequences=(150, 0, 30), head_dim=128, is_causal=True),
)
THOROUGH = tuple(
    replace(case, heads=1)
    for case in (*SMALL, *LAYOUT_CASES, *TILED)
    if max(case.queries, case.key_count) <= 520 and not dispatch.wrong_head_dim(cuda, case.head_dim)
)


def run(case: Case, dtype: torch.dtype) -> str | None:
    """Runs a case in this dtype; returns the report of a race, or None if there is none."""
    inputs = make_inputs(case, dtype)
    attend = through_backend("cuda")
    try:
        evaluate(inputs, attend)
        with torch.no_grad():  # a forward that saves nothing runs another path
            attend(inputs, inputs.tensors)
    except RuntimeError as error:
        if "a race in" not in str(error):
            raise
        return str(error)
    return None


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of orders of threads and copies per case")
    parser.add_argument("--cases", metavar="WORDS", default="", help="only cases whose names contain this text")
    parser.add_argument("--thorough", action="store_true", help="also the cases of the operator tests, in all types")
    parser.add_argument("--first", action="store_true", help="stop at the first race")
    parser.add_argument("--csrc", type=Path, default=build.CSRC, help="folder of the sources (default: csrc)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    if not build.detects_races():
        print("check_races: the race detector requires GCC, in CXX or on the path", file=sys.stderr)
        return 2
    library = build.library(options.csrc, races=True)
    torch.ops.load_library(library)
    counters = ctypes.CDLL(str(library))
    counters.qacg_emulator_accesses.restype = ctypes.c_int64
    cuda._missing, cuda.DEVICE, cuda._gpus = [], "cpu", ("9.0",)
    torch.set_num_threads(1)
    pairs = [(case, cuda.DTYPES[n % 2]) for n, case in enumerate(CASES)]
    if options.thorough:
        pairs = [(case, dtype) for case in (*CASES, *THOROUGH) for dtype in cuda.DTYPES]
    pairs = [(case, dtype) for case, dtype in pairs if options.cases in case.name]
    if not pairs:
        print(f"check_races: --cases: expected a part of a case's name, got {options.cases!r}", file=sys.stderr)
        return 2
    runs = races = 0
    for (case, dtype), seed in itertools.product(pairs, range(options.seeds)):
        os.environ["QACG_EMULATOR_SEED"] = str(seed)
        before = counters.qacg_emulator_accesses()
        race = run(case, dtype)
        runs, races = runs + 1, races + (race is not None)
        count = counters.qacg_emulator_accesses() - before
        print(f"{case.name}, {dtype}, seed {seed}: {count:,} accesses, {race or 'no race'}", flush=True)
        if race and options.first:
            break
    print(f"{runs} runs, {counters.qacg_emulator_accesses():,} accesses, {races} races")
    return int(races > 0)


if __name__ == "__main__":
    sys.exit(main())
