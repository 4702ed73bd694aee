"""Measures tile sizes of the Triton kernels on the current GPU: `python -m qacg_kernels.tune`.

The table of the fastest ones is saved after every measurement. The Triton backend reads it in later processes.

For each entry of the tile table, `with_fastest_tiles` compiles the candidates in parallel and times the entry's kernel
alone, in a call of the entry's kind. The length limit of single-tile rows does not change. What is not measured before
the time limit stays unchanged and is logged.
"""

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import torch

from qacg_kernels.backends.triton import tile_tables
from qacg_kernels.backends.triton.tile_tables import BITS, HEAD_DIMS, KEYS, KINDS, Key, Table, TileEntry, trial
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import Problem, Residuals, Saved
from qacg_kernels.functional import problem_of

Pairs = list[tuple[Table, TileEntry]]
_HEADS, _TOKENS = 12, 8192
_TILED_LENGTH = 2048
# A candidate replaces the current entry if its time is at most this share of that entry's, as smaller gains are noise.
GAIN = 0.97

# Tiles to measure: (block_m, block_n, num_warps, num_stages), roughly from large to small. With more than 2 stages,
# loads overlap with the previous tile, except in float32 products by parts (`KernelConfig.by_parts`). An optional fifth
# number limits the registers per thread, so that one more block fits on a multiprocessor.
_TILES = {
    "whole_row_forward": (
        (128, 128, 8, 1), (64, 128, 4, 1, 168), (64, 128, 4, 1), (64, 128, 8, 1), (32, 128, 4, 1, 128), (32, 128, 4, 1),
        (32, 128, 8, 1), (16, 128, 4, 1), (16, 128, 8, 1), (64, 64, 4, 1), (64, 64, 8, 1), (32, 64, 4, 1),
        (32, 64, 8, 1), (16, 64, 4, 1), (16, 64, 8, 1), (32, 32, 4, 1), (32, 32, 8, 1), (16, 32, 4, 1), (16, 32, 8, 1),
        (16, 16, 8, 1),
    ),
    "tiled_forward": (
        (128, 64, 8, 3), (128, 64, 8, 4), (64, 64, 4, 3), (128, 32, 8, 3), (64, 32, 4, 3), (128, 64, 8, 2),
        (64, 64, 4, 2), (64, 64, 8, 2), (128, 32, 8, 2), (64, 32, 4, 2), (64, 32, 8, 2), (64, 32, 8, 1), (32, 64, 4, 1),
        (32, 64, 8, 1), (32, 32, 8, 2), (128, 16, 8, 3), (128, 16, 8, 2), (32, 32, 4, 1), (32, 32, 8, 1),
        (16, 64, 8, 1), (16, 32, 4, 1), (16, 32, 8, 1), (16, 32, 16, 1), (16, 16, 8, 1),
    ),
    "whole_row_backward": (
        (64, 128, 8, 1), (32, 128, 8, 2), (32, 128, 8, 1), (16, 128, 8, 2), (16, 128, 8, 1), (64, 64, 4, 1),
        (64, 64, 8, 1), (32, 64, 4, 2), (32, 64, 4, 1), (32, 64, 8, 1), (16, 64, 4, 1), (16, 64, 8, 1), (32, 32, 4, 1),
        (32, 32, 8, 1), (16, 32, 4, 1), (16, 32, 8, 1), (64, 16, 8, 1), (32, 16, 8, 1), (16, 16, 4, 1), (16, 16, 8, 1),
        (16, 16, 16, 1),
    ),
    "key_gradients": (
        (64, 128, 8, 3), (64, 128, 8, 2), (32, 128, 8, 3), (32, 128, 8, 4), (32, 128, 8, 2), (16, 128, 8, 3),
        (64, 64, 4, 2), (32, 64, 4, 3), (32, 64, 4, 2), (16, 64, 4, 3), (64, 64, 8, 1), (32, 64, 8, 1), (64, 32, 8, 1),
        (64, 32, 4, 1), (32, 64, 4, 1), (32, 32, 4, 3), (32, 32, 4, 1), (32, 32, 8, 1), (16, 32, 8, 1), (16, 32, 4, 1),
        (64, 16, 8, 1), (32, 16, 8, 1), (16, 16, 4, 1), (16, 16, 8, 1),
    ),
    "query_gradients": (
        (128, 64, 8, 3), (128, 64, 8, 2), (128, 32, 8, 3), (128, 32, 8, 4), (128, 32, 8, 2), (64, 64, 4, 3),
        (64, 32, 4, 3), (64, 32, 4, 2), (64, 64, 8, 1), (64, 32, 8, 1), (64, 32, 4, 1), (32, 64, 8, 1), (32, 64, 4, 1),
        (32, 32, 4, 3), (32, 32, 4, 1), (32, 32, 8, 1), (32, 16, 4, 1), (32, 16, 8, 1), (16, 64, 8, 1), (16, 32, 8, 1),
        (16, 16, 4, 1), (16, 16, 8, 1),
    ),
}  # fmt: skip
# The most accumulator elements per warp for float32 products by parts. Their operands occupy registers too.
_MOST_ELEMENTS = 1536
_MOST_STAGES_OF_FLOAT32 = 2
# The number of accumulators that a kernel has at the same time.
_ACCUMULATORS = {
    "whole_row_forward": 1,
    "tiled_forward": 2,
    "whole_row_backward": 3,
    "key_gradients": 3,
    "query_gradients": 2,
}
_MOST_STAGES_OF_AMD = 2  # AMD's loads go through registers, so more stages would only use more shared memory


def candidates(key: Key, architecture: str = "sm_90") -> list[TileEntry]:
    """Tile-table entries to try for a key (kernel, bits, head size, kind), roughly from large to small tiles."""
    kernel, bits, head_dim, kind = key
    amd, wide = tile_tables.is_amd(architecture), tile_tables.has_wide_waves(architecture)
    tiles = _TILES[kernel]
    if bits == 32 and not wide:  # products by parts
        tiles = [t for t in tiles if t[3] <= _MOST_STAGES_OF_FLOAT32 and len(t) == 4]
        # Accumulators have block_n rows (t[1]) in kernels over key blocks, else block_m rows (t[0]).
        own = 1 if kernel in ("whole_row_backward", "key_gradients") else 0
        tiles = [t for t in tiles if _ACCUMULATORS[kernel] * t[own] * head_dim <= _MOST_ELEMENTS * t[2]]
    if amd:
        # On wide waves half the warps, so that the number of lanes is the same.
        tiles = [
            (m, n, warps // 2 if wide else warps, min(stages, _MOST_STAGES_OF_AMD)) for m, n, warps, stages, *_ in tiles
        ]
    return [TileEntry(kernel, bits, head_dim, kind, *tile) for tile in dict.fromkeys(tiles)]


def with_fastest_tiles(
    base: Table,
    keys: Iterable[Key],
    measure: Callable[[Table, TileEntry], float],
    prepare: Callable[[Pairs], None],
    keep: Callable[[Table], None],
    end: float,
) -> Table:
    """Returns `base` with the fastest entry for each key, and prints a line for each.

    `measure` returns the seconds that an entry's kernel takes with a table. `prepare` is called with all pairs of a key
    before they are measured, and `keep` with the table so far after each key for which a configuration ran. No key is
    measured from the time `end` of `time.monotonic` on.
    """
    table = base
    for key in keys:
        kernel, bits, head_dim, kind = key
        name = f"{kernel}, {bits} bits, D = {head_dim}, {kind}"
        if time.monotonic() >= end:
            print(f"{name}: unchanged, the time limit is reached")
            continue
        own = table.by_key[key]
        tried = [own, *(entry for entry in _comparable(base, key) if entry != own)]
        prepare([(_with(table, entry), entry) for entry in tried])
        times, errors = {}, {}
        for entry in tried:
            try:
                times[entry] = measure(_with(table, entry), entry)
            except Exception as error:  # it does not compile, or requires more memory or registers than the GPU has
                errors[entry] = error
        if not times:
            print(f"{name}: unchanged, none of {len(tried)} configurations runs: {errors[own]}")
            continue
        best = min(times, key=times.get)
        if own in times and times[best] > GAIN * times[own]:
            best = own
        table = _with(table, best)
        keep(table)
        tile = f"{best.block_m} x {best.block_n}, {best.num_warps} warps, {best.num_stages} stages"
        limit = f", {best.registers} registers at most" if best.registers else ""
        print(f"{name}: {tile}{limit}, {1e6 * times[best]:.1f} us, best of {len(times)}", flush=True)
    return table


def _comparable(base: Table, key: Key) -> list[TileEntry]:
    whole, block_n = key[0].startswith("whole_row"), base.by_key[key].block_n
    return [entry for entry in candidates(key, base.architecture) if not whole or entry.block_n == block_n]


def _with(table: Table, entry: TileEntry) -> Table:
    return replace(table, entries=tuple(entry if entry.key == other.key else other for other in table.entries))


def example(entry: TileEntry, device: torch.device) -> tuple[Problem, torch.Tensor]:
    """Returns a random call of the kind that an entry is for, and a random gradient of the call's output.

    All calls have the vectors of a row gate. Calls that are not plain also have dropout. Masked ones also have an
    additive mask that depends on queries and keys.
    """
    length = entry.block_n if entry.kernel.startswith("whole_row") else _TILED_LENGTH
    shape = (max(1, _TOKENS // length), _HEADS, length, entry.head_dim)
    dtype = torch.bfloat16 if entry.bits == 16 else torch.float32
    wide = [torch.randn(shape, device=device, dtype=dtype) for _ in range(6)]
    vectors = [torch.randn(entry.head_dim, device=device, dtype=dtype) / entry.head_dim for _ in range(4)]
    options = {}
    if entry.kind != "plain":
        options = dict(dropout_p=0.1, dropout_seed=torch.tensor(1, device=device))
    if entry.kind == "masked":
        options["attn_mask"] = torch.zeros((shape[0], 1, length, length), device=device, dtype=dtype)
    problem = problem_of(*wide[:5], GateParameters(*vectors), **options)
    return problem, wide[5]


def compile_all(pairs: Pairs) -> None:
    """Compiles the kernels of (table, entry) pairs in parallel. Ignores errors, which `seconds` raises again."""
    calls = []
    for table, entry in pairs:
        with contextlib.suppress(Exception):
            calls.append(_launch_of(table, entry))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for kernel, grid, arguments, constants, options, _ in calls:
            pool.submit(kernel.warmup, *arguments, grid=(grid.programs,), **constants, **options)


def seconds(table: Table, entry: TileEntry) -> float:
    """Returns the median time of an entry's kernel on the current GPU, in seconds, in a call of the entry's kind."""
    from triton.testing import do_bench

    from qacg_kernels.backends.triton import launch

    call = _launch_of(table, entry)
    launch.run(*call)  # compiles the kernel, which is impossible while a graph is captured
    # A launch from Python takes longer than the kernel of a short call; the replay of a graph does not.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch.run(*call)
    return 1e-3 * do_bench(graph.replay, warmup=10, rep=50, return_mode="median")


def _launch_of(table: Table, entry: TileEntry) -> tuple:
    """Returns the arguments of `launch.run` for an entry's kernel, in a call of the entry's kind; launches nothing."""
    from qacg_kernels.backends.triton.first_calls import run_in_python

    problem, grad_out = example(entry, torch.device("cuda", torch.cuda.current_device()))
    is_forward, by_queries = entry.kernel.endswith("_forward"), entry.kernel == "query_gradients"
    function = "forward_kernel" if is_forward else "query_blocks_kernel" if by_queries else "key_blocks_kernel"
    found = []

    def find(kernel, grid, arguments, constants, launch_options, device):
        if kernel.fn.__name__ == function:
            found.append((kernel, grid, arguments, constants, launch_options, device))

    whole = entry.kernel.startswith("whole_row")
    with trial(table):
        outputs = run_in_python(problem, Residuals(not whole, not whole), find)
        if not is_forward:
            found.clear()
            run_in_python(problem, Saved(grad_out, None, None, *outputs[1:]), find)
    (call,) = found
    return call


def main(arguments: list[str] | None = None) -> None:
    """Runs the command with these arguments (those of `sys.argv` when None)."""
    parser = argparse.ArgumentParser(
        prog="python -m qacg_kernels.tune",
        description="Measures tile sizes on this GPU and saves the fastest ones, which later calls use.",
    )
    parser.add_argument("--bits", type=int, choices=BITS, nargs="+", default=[16], help="element widths (default: 16)")
    parser.add_argument(
        "--head-dims", type=int, choices=HEAD_DIMS, nargs="+", default=[64, 128], help="head sizes (default: 64 128)"
    )
    parser.add_argument("--seconds", type=float, default=900, help="time limit in seconds (default: 900)")
    parser.add_argument("--output", type=Path, help="file to write (default: the file that the kernels read)")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("expected an NVIDIA or AMD GPU, got none. Run this on the machine with the GPU")
    device = torch.device("cuda", torch.cuda.current_device())
    name = torch.cuda.get_device_name(device)
    path = options.output or tile_tables.saved_path(name)
    if path is None:
        parser.error("expected a home folder to save to, got none. Set QACG_TRITON_TABLES, or pass --output")
    try:
        current = tile_tables.table_for(device)
    except ValueError as error:
        parser.error(str(error))
    saves = []

    def keep(table: Table) -> None:
        taken = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        measured = {"gpu": name, "taken": taken, "torch": torch.__version__, "triton": version("triton")}
        tile_tables.save(replace(table, measured=measured), path)
        saves.append(path)

    base = replace(
        current,
        architecture=tile_tables.architecture_of(device),
        shared_bytes=tile_tables.shared_bytes_of(device),
    )
    keys = [key for key in KEYS if key[1] in options.bits and key[2] in options.head_dims]
    keys.sort(key=lambda key: KINDS.index(key[3]))  # rarer kinds of call last, in case the time limit is reached
    with_fastest_tiles(base, keys, seconds, compile_all, keep, end=time.monotonic() + options.seconds)
    print(f"saved to {path}" if saves else "nothing was measured, so no table is saved")


if __name__ == "__main__":
    main()
