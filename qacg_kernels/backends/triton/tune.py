"""Measuring tiles on the GPU that is here, for `python -m qacg_kernels.tune`.

Nothing is tuned at a user's call. For each row of the tables the candidates are compiled in parallel, and those that
run are timed on a call of the row's kind, the one kernel alone; the fastest is kept. Up to how many keys a row is taken
whole stays as the table has it. Rows that the time did not reach stay as they are, and are named.
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
# A candidate must be this much faster than the row that is there: less is noise.
GAIN = 0.97


def tuned(
    base: Table,
    keys: Iterable[Key],
    measure: Measure,
    is_spent: Callable[[], bool],
    tell: Callable[[str], None],
    keep: Callable[[Table], None] = lambda table: None,
    compile_all: Callable[[Pairs], None] = lambda pairs: None,
) -> Table:
    """The table with the fastest row of each key.

    Args:
        measure: seconds that a row's kernel takes within a table; raises any exception where it does not compile or
            run, as Triton's PTXASError, CompilationError and OutOfResources.
        is_spent: whether to leave the keys that follow as they are.
        tell: gets a line for each key.
        keep: gets the table after each key.
        compile_all: gets the candidates of a key before they are measured.
    """
    table = base
    for key in keys:
        if is_spent():
            tell(f"{_named(key)}: left as it is, the time is spent")
            continue
        own = table.by_key[key]
        tried = [own, *(row for row in _comparable(key, own) if row != own)]
        compile_all([(_with(table, row), row) for row in tried])
        times, errors = {}, {}
        for row in tried:
            try:
                times[row] = measure(_with(table, row), row)
            except Exception as error:  # it does not compile, or the GPU has not the memory or the registers for it
                errors[row] = error
        if not times:
            tell(f"{_named(key)}: left as it is, none of {len(tried)} configurations runs: {errors[own]}")
            continue
        best = min(times, key=times.get)
        if own in times and times[best] > GAIN * times[own]:
            best = own
        table = _with(table, best)
        keep(table)
        tell(f"{_named(key)}: {_tile(best)}, {1e6 * times[best]:.1f} us of {len(times)} tried")
    return table


def _comparable(key: Key, own: TileEntry) -> list[TileEntry]:
    whole = key[0].startswith("whole_row")
    return [row for row in candidates(key) if not whole or row.block_n == own.block_n]


def _with(table: Table, row: TileEntry) -> Table:
    return replace(table, entries=tuple(row if row.key == other.key else other for other in table.entries))


def _named(key: Key) -> str:
    kernel, bits, head_dim, busy = key
    return f"{kernel}, {bits} bits, D = {head_dim}{', busy' if busy else ''}"


def _tile(row: TileEntry) -> str:
    limit = f", {row.registers} registers at most" if row.registers else ""
    return f"{row.block_m} x {row.block_n}, {row.num_warps} warps, {row.num_stages} stages{limit}"


def example(row: TileEntry, device: torch.device) -> tuple[Problem, torch.Tensor]:
    """A call of a row's kind, and a gradient of its output.

    Busy calls have dropout and an additive mask; all have a row gate's vectors.
    """
    length = row.block_n if row.kernel.startswith("whole_row") else _TILED_LENGTH
    shape = (max(1, _BATCH_TOKENS // length), _HEADS, length, row.head_dim)
    dtype = torch.bfloat16 if row.bits == 16 else torch.float32
    wide = [torch.randn(shape, device=device, dtype=dtype) for _ in range(6)]
    vectors = [torch.randn(row.head_dim, device=device, dtype=dtype) / row.head_dim for _ in range(4)]
    mask = torch.zeros((shape[0], 1, 1, length), device=device, dtype=dtype) if row.busy else None
    seed = torch.tensor(1, device=device) if row.busy else None
    problem = dense_problem(
        *wide[:5],
        GateParameters(*vectors),
        attn_mask=mask,
        key_lengths=None,
        is_causal=False,
        dropout_p=0.1 if row.busy else 0.0,
        scale=None,
        quasi_scale=1.0,
        dropout_seed=seed,
    )
    return problem, wide[5]


def compile_all(pairs: Pairs) -> None:
    """Compiles the kernels of many rows in parallel; an error comes up again when its row is measured."""
    calls = []
    for table, row in pairs:
        with contextlib.suppress(Exception):
            calls.append(_launch_of(table, row))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for kernel, programs, arguments, constants, options, _ in calls:
            pool.submit(kernel.warmup, *arguments, grid=(programs,), **constants, **options)


def seconds(table: Table, row: TileEntry) -> float:
    """Median time of a row's kernel on the current GPU, in a call of the row's kind."""
    from triton.testing import do_bench

    from qacg_kernels.backends.triton import launch

    call = _launch_of(table, row)
    return 1e-3 * do_bench(lambda: launch.run(*call), warmup=10, rep=50, return_mode="median")


def _launch_of(table: Table, row: TileEntry) -> tuple:
    """The arguments of `launch.run` for a row's kernel, in a call of the row's kind. Nothing is launched."""
    from qacg_kernels.backends.triton import launch

    problem, grad_out = example(row, torch.device("cuda", torch.cuda.current_device()))
    found = []

    def find(kernel, programs, arguments, constants, launch_options, device):
        if kernel.fn.__name__ == _FUNCTIONS[row.kernel]:
            found.append((kernel, programs, arguments, constants, launch_options, device))

    whole = row.kernel.startswith("whole_row")
    with trial(table), launch.through(find):
        outputs = call_forward(forward_op("triton"), problem, Residuals(not whole, not whole))
        if row.kernel not in ("whole_row_forward", "tiled_forward"):
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
