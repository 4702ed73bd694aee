"""Measures tiles on the GPU that is here and saves a table: `python -m qacg_kernels.backends.triton.tune`.

Nothing is tuned at a user's call. For each row of the tables the candidates that run are timed on a call of the row's
kind, the one kernel alone; the fastest is kept. Up to how many keys a row is taken whole stays as the shipped table
has it. Rows that the time did not reach stay as they are, and are named.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from qacg_kernels.backends.triton import configurations
from qacg_kernels.backends.triton.candidates import candidates
from qacg_kernels.backends.triton.configurations import HEAD_DIMS, KEYS, Key, Row, Table, trial
from qacg_kernels.ops import backward_op, forward_op

Measure = Callable[[Table, Row], float]
_BATCH_TOKENS = 8192
_HEADS = 12
_TILED_LENGTH = 2048
# A candidate must be this much faster than the row that is there: less is noise.
_GAIN = 0.97


def tuned(
    base: Table, keys: Iterable[Key], measure: Measure, is_spent: Callable[[], bool], tell: Callable[[str], None]
) -> Table:
    """The table with the fastest row of each key.

    Args:
        measure: seconds that a row's kernel takes within a table; raises RuntimeError where it does not run.
        is_spent: whether to leave the keys that follow as they are.
        tell: gets a line for each key.
    """
    rows = {row.key: row for row in base.rows}
    for key in keys:
        if is_spent():
            tell(f"{_named(key)}: left as it is, the time is spent")
            continue
        own = rows[key]
        tried = [own, *(row for row in _comparable(key, own) if row != own)]
        times = {}
        for row in tried:
            try:
                times[row] = measure(_with(base, row), row)
            except RuntimeError:  # the GPU has not the shared memory or the registers for it
                continue
        if not times:
            raise RuntimeError(f"{_named(key)}: none of {len(tried)} configurations runs on this GPU")
        best = min(times, key=times.get)
        if own in times and times[best] > _GAIN * times[own]:
            best = own
        rows[key] = best
        tell(f"{_named(key)}: {_tile(best)}, {1e6 * times[best]:.1f} us of {len(times)} tried")
    return replace(base, rows=tuple(rows[key] for key in KEYS))


def _comparable(key: Key, own: Row) -> list[Row]:
    whole = key[0].startswith("whole_row")
    return [row for row in candidates(key) if not whole or row.block_n == own.block_n]


def _with(table: Table, row: Row) -> Table:
    return replace(table, rows=tuple(row if row.key == other.key else other for other in table.rows))


def _named(key: Key) -> str:
    kernel, bits, head_dim, busy = key
    return f"{kernel}, {bits} bits, D = {head_dim}{', busy' if busy else ''}"


def _tile(row: Row) -> str:
    limit = f", {row.registers} registers at most" if row.registers else ""
    return f"{row.block_m} x {row.block_n}, {row.num_warps} warps, {row.num_stages} stages{limit}"


def example(row: Row, device: torch.device) -> tuple[tuple, dict[str, object], torch.Tensor]:
    """The operator's inputs and options for a call of a row's kind, and a gradient of its output.

    Busy calls have dropout and an additive mask; all have a row gate's vectors.
    """
    length = row.block_n if row.kernel.startswith("whole_row") else _TILED_LENGTH
    shape = (max(1, _BATCH_TOKENS // length), _HEADS, length, row.head_dim)
    dtype = torch.bfloat16 if row.bits == 16 else torch.float32
    wide = [torch.randn(shape, device=device, dtype=dtype) for _ in range(6)]
    vectors = [torch.randn(row.head_dim, device=device, dtype=dtype) / row.head_dim for _ in range(4)]
    mask = torch.zeros((shape[0], 1, 1, length), device=device, dtype=dtype) if row.busy else None
    seed = torch.tensor(1, device=device) if row.busy else None
    options = dict(
        max_seqlen=0,
        is_causal=False,
        dropout_p=0.1 if row.busy else 0.0,
        scale=row.head_dim**-0.5,
        quasi_scale=1.0,
        beta=1.0,
        gamma=1.0,
        column_gate=False,
    )
    return (*wide[:5], None, *vectors, None, None, mask, None, None, seed), options, wide[5]


def seconds(table: Table, row: Row) -> float:
    """Median time of a row's kernel on the current GPU, in a call of the row's kind.

    Raises:
        RuntimeError: the configuration does not run there.
    """
    from triton.runtime.errors import OutOfResources
    from triton.testing import do_bench

    from qacg_kernels.backends.triton import launch

    inputs, options, grad_out = example(row, torch.device("cuda", torch.cuda.current_device()))
    found = []

    def find(kernel, programs, arguments, constants, launch_options, device):
        launch.run(kernel, programs, arguments, constants, launch_options, device)
        if kernel.fn.__name__ == _FUNCTIONS[row.kernel] and not constants.get("SUMS_ONLY"):
            found.append((kernel, programs, arguments, constants, launch_options, device))

    whole = row.kernel.startswith("whole_row")
    try:
        with trial(table), launch.through(find):
            out = forward_op("triton")(*inputs, **options, save_softmax_out=not whole, save_quasi_out=not whole)
            if row.kernel not in ("whole_row_forward", "tiled_forward"):
                found.clear()
                backward_op("triton")(grad_out, None, None, *inputs, *out[1:], **options)
        (call,) = found
        return 1e-3 * do_bench(lambda: launch.run(*call), warmup=10, rep=50, return_mode="median")
    except OutOfResources as error:
        raise RuntimeError(str(error)) from error


_FUNCTIONS = {
    "whole_row_forward": "forward_kernel",
    "tiled_forward": "forward_kernel",
    "whole_row_backward": "key_blocks_kernel",
    "key_gradients": "key_blocks_kernel",
    "query_gradients": "query_blocks_kernel",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m qacg_kernels.backends.triton.tune",
        description="Measures tile sizes on this GPU and saves a table that the Triton backend then prefers.",
    )
    parser.add_argument("--bits", type=int, choices=(16, 32), nargs="+", default=[16], help="widths of the elements")
    parser.add_argument("--head-dims", type=int, choices=HEAD_DIMS, nargs="+", default=[64, 128])
    parser.add_argument("--seconds", type=float, default=900, help="when to stop; rows not reached stay as they are")
    parser.add_argument("--output", type=Path, help="the file; where the backend looks for it if not given")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("tune: torch sees no NVIDIA GPU on this machine; run it on the GPU that is meant", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    name, architecture = torch.cuda.get_device_name(device), configurations.architecture_of(device)
    path = options.output or configurations.saved_path(name)
    if path is None:
        print("tune: there is no home folder to save to; set QACG_TRITON_TABLES to a folder", file=sys.stderr)
        return 2
    shared_bytes = configurations.shared_bytes_of(device)
    base = configurations.nearest_shipped(architecture, shared_bytes)
    keys = [key for key in KEYS if key[1] in options.bits and key[2] in options.head_dims]
    end = time.monotonic() + options.seconds
    table = tuned(base, keys, seconds, lambda: time.monotonic() >= end, lambda line: print(line, flush=True))
    import triton

    measured = {
        "gpu": name,
        "taken": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    table = replace(table, architecture=architecture, shared_bytes=shared_bytes, measured=measured)
    configurations.save(table, path)
    print(f"saved to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
