"""Measures tile sizes on the current GPU, for `python -m qacg_kernels.tune`.

For each entry of the tile table, `tuned` compiles the candidates in parallel and times the entry's kernel alone, in a
call of the entry's kind. The fastest candidate replaces the entry if it takes at most GAIN times the entry's time,
because a smaller gain may be noise. The length limit of single-tile rows does not change. Entries that are not measured
before the time limit stay unchanged and are logged.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from qacg_kernels.backends.triton.candidates import candidates
from qacg_kernels.backends.triton.tile_tables import Key, Table, TileEntry, trial
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import Problem, Residuals, Saved
from qacg_kernels.call.validation import dense_problem
from qacg_kernels.operators.schema import backward_op, call_backward, call_forward, forward_op

Measure = Callable[[Table, TileEntry], float]
Pairs = list[tuple[Table, TileEntry]]
_BATCH_TOKENS = 8192
_HEADS = 12
_TILED_LENGTH = 2048
# A candidate replaces the current entry if its time is at most this share of the entry's time; smaller gains are noise.
GAIN = 0.97


def tuned(
    base: Table,
    keys: Iterable[Key],
    measure: Measure,
    is_spent: Callable[[], bool],
    log: Callable[[str], None],
    keep: Callable[[Table], None] = lambda table: None,
    compile_all: Callable[[Pairs], None] = lambda pairs: None,
) -> Table:
    """Returns a table with the fastest entry for each key.

    Args:
        base: the table to start from.
        keys: keys of the entries to measure: (kernel, bits, head size, busy).
        measure: returns the seconds that an entry's kernel takes with a table; raises an exception if the kernel does
            not compile or run, such as Triton's PTXASError, CompilationError or OutOfResources.
        is_spent: returns whether the time limit is reached.
        log: called with a line of text for each key.
        keep: called with the table so far, after each key for which at least one configuration ran.
        compile_all: called before the configurations of a key are measured, with a (table, entry) pair for each: the
            current entry and the candidates.
    """
    table = base
    for key in keys:
        if is_spent():
            log(f"{_key_text(key)}: unchanged, the time limit is reached")
            continue
        own = table.by_key[key]
        tried = [own, *(entry for entry in _comparable(base, key) if entry != own)]
        compile_all([(_with(table, entry), entry) for entry in tried])
        times, errors = {}, {}
        for entry in tried:
            try:
                times[entry] = measure(_with(table, entry), entry)
            except Exception as error:  # it does not compile, or requires more memory or registers than the GPU has
                errors[entry] = error
        if not times:
            log(f"{_key_text(key)}: unchanged, none of {len(tried)} configurations runs: {errors[own]}")
            continue
        best = min(times, key=times.get)
        if own in times and times[best] > GAIN * times[own]:
            best = own
        table = _with(table, best)
        keep(table)
        log(f"{_key_text(key)}: {_tile_text(best)}, {1e6 * times[best]:.1f} us, best of {len(times)}")
    return table


def _comparable(base: Table, key: Key) -> list[TileEntry]:
    whole, block_n = key[0].startswith("whole_row"), base.by_key[key].block_n
    return [entry for entry in candidates(key, base.architecture) if not whole or entry.block_n == block_n]


def _with(table: Table, entry: TileEntry) -> Table:
    return replace(table, entries=tuple(entry if entry.key == other.key else other for other in table.entries))


def _key_text(key: Key) -> str:
    kernel, bits, head_dim, busy = key
    return f"{kernel}, {bits} bits, D = {head_dim}{', busy' if busy else ''}"


def _tile_text(entry: TileEntry) -> str:
    limit = f", {entry.registers} registers at most" if entry.registers else ""
    return f"{entry.block_m} x {entry.block_n}, {entry.num_warps} warps, {entry.num_stages} stages{limit}"


def example(entry: TileEntry, device: torch.device) -> tuple[Problem, torch.Tensor]:
    """Returns a random call of the kind that an entry is for, and a random gradient of the call's output.

    All calls have the vectors of a row gate. Calls for busy entries also have dropout and an additive mask that depends
    on queries and keys.
    """
    length = entry.block_n if entry.kernel.startswith("whole_row") else _TILED_LENGTH
    shape = (max(1, _BATCH_TOKENS // length), _HEADS, length, entry.head_dim)
    dtype = torch.bfloat16 if entry.bits == 16 else torch.float32
    wide = [torch.randn(shape, device=device, dtype=dtype) for _ in range(6)]
    vectors = [torch.randn(entry.head_dim, device=device, dtype=dtype) / entry.head_dim for _ in range(4)]
    mask = torch.zeros((shape[0], 1, length, length), device=device, dtype=dtype) if entry.busy else None
    seed = torch.tensor(1, device=device) if entry.busy else None
    problem = dense_problem(
        *wide[:5],
        GateParameters(*vectors),
        attn_mask=mask,
        key_lengths=None,
        is_causal=False,
        dropout_p=0.1 if entry.busy else 0.0,
        scale=None,
        quasi_scale=1.0,
        quasi_bias=0.0,
        dropout_seed=seed,
    )
    return problem, wide[5]


def compile_all(pairs: Pairs) -> None:
    """Compiles the kernels of (table, entry) pairs in parallel. Ignores errors, which `seconds` raises again."""
    calls = []
    for table, entry in pairs:
        with contextlib.suppress(Exception):
            calls.append(_launch_of(table, entry))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for kernel, programs, arguments, constants, options, _ in calls:
            pool.submit(kernel.warmup, *arguments, grid=(programs,), **constants, **options)


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
    from qacg_kernels.backends.triton import launch

    problem, grad_out = example(entry, torch.device("cuda", torch.cuda.current_device()))
    found = []

    def find(kernel, programs, arguments, constants, launch_options, device):
        if kernel.fn.__name__ == _FUNCTIONS[entry.kernel]:
            found.append((kernel, programs, arguments, constants, launch_options, device))

    whole = entry.kernel.startswith("whole_row")
    with trial(table), launch.through(find):
        outputs = call_forward(forward_op("triton"), problem, Residuals(not whole, not whole))
        if entry.kernel not in ("whole_row_forward", "tiled_forward"):
            found.clear()
            call_backward(backward_op("triton"), problem, Saved(grad_out, None, None, *outputs[1:]))
    (call,) = found
    return call


_FUNCTIONS = {
    "whole_row_forward": "forward_kernel",
    "tiled_forward": "forward_kernel",
    "whole_row_backward": "key_blocks_kernel",
    "key_gradients": "key_blocks_kernel",
    "query_gradients": "query_blocks_kernel",
}
