"""Measures tile sizes and backends on the current GPU: `python -m qacg_kernels.tune`.

The result is a table with the tile sizes of the Triton kernels. It also has the fastest backend by number of keys, for
training and for inference. The table is saved after every measurement. The Triton backend and `backend="auto"` read it
in later processes. Without measured backends `auto` prefers Triton on a GPU.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from qacg_kernels.backends import dispatch
from qacg_kernels.backends.triton import tile_tables
from qacg_kernels.backends.triton.tile_tables import HEAD_DIMS, KEYS, LENGTHS, Choice, Table
from qacg_kernels.backends.triton.tune import GAIN, compile_all, seconds, tuned
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.functional import quasi_attention

_HEADS, _TOKENS = 12, 8192

Measure = Callable[[str, Choice], float]


def with_fastest_backends(
    table: Table,
    kinds: list[Choice],
    measure: Measure,
    is_spent: Callable[[], bool],
    log: Callable[[str], None],
    keep: Callable[[Table], None],
) -> Table:
    """Measures which backend is fastest for each kind of call.

    Another backend replaces Triton only if its time is at most GAIN times Triton's.

    Args:
        table: the table to start from.
        kinds: the kinds of calls to measure; the field `backend` is ignored.
        measure: returns the seconds that a backend takes for a kind of call; raises an exception if the backend cannot
            run that kind.
        is_spent: returns whether the time limit is reached.
        log: called with a line for each kind that is measured or skipped, and for each backend that cannot run a kind.
        keep: called with the new table after each kind that at least one backend could run.

    Returns:
        The table with the fastest backends. Kinds that were not measured keep their entries in `table`.
    """
    for kind in kinds:
        direction = "training" if kind.training else "inference"
        name = f"{kind.bits} bits, D = {kind.head_dim}, {direction}, {kind.longest} keys"
        if is_spent():
            log(f"{name}: unchanged, the time limit is reached")
            continue
        times = {}
        for backend in tile_tables.gpu_backends:
            try:
                times[backend] = measure(backend, kind)
            except Exception as error:  # unsupported, does not compile, or out of memory
                log(f"{name}: {backend} does not run: {(str(error).splitlines() or [type(error).__name__])[0]}")
        if not times:
            continue
        best = min(times, key=times.get)
        if "triton" in times and times[best] > GAIN * times["triton"]:
            best = "triton"
        others = [c for c in table.choices if replace(c, backend=kind.backend) != kind]
        table = replace(table, choices=(*others, replace(kind, backend=best)))
        keep(table)
        log(f"{name}: {best}, " + ", ".join(f"{b} {1e6 * t:.0f} us" for b, t in times.items()))
    return table


def seconds_of(backend: str, kind: Choice) -> float:
    """Returns the median time of a call with a backend on the current GPU, in seconds (`triton.testing.do_bench`).

    A call for training includes its backward.
    """
    from triton.testing import do_bench

    dtype = torch.bfloat16 if kind.bits == 16 else torch.float32

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_(kind.training)

    batch = max(1, _TOKENS // kind.longest)
    wide = [drawn(batch, kind.longest, _HEADS, kind.head_dim).transpose(1, 2) for _ in range(5)]
    gate = GateParameters(*(drawn(kind.head_dim) for _ in range(4)))
    upstream = torch.randn_like(wide[0])

    def call() -> None:
        with torch.set_grad_enabled(kind.training):
            out = quasi_attention(*wide, gate, backend=backend)
            if kind.training:
                torch.autograd.grad(out, wide, upstream)

    call()
    return 1e-3 * do_bench(call, warmup=10, rep=50, return_mode="median")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command with these arguments (those of `sys.argv` when None).

    Returns:
        The exit status: 0, or 2 if there is no supported GPU or no folder to save to.
    """
    parser = argparse.ArgumentParser(
        prog="python -m qacg_kernels.tune",
        description="Measures tile sizes and backends on this GPU and saves the fastest ones, which later calls use.",
    )
    parser.add_argument(
        "--bits", type=int, choices=(16, 32), nargs="+", default=[16], help="element widths to measure (default: 16)"
    )
    parser.add_argument(
        "--head-dims",
        type=int,
        choices=HEAD_DIMS,
        nargs="+",
        default=[64, 128],
        help="head sizes to measure (default: 64 128)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=900,
        help="time limit in seconds (default: 900); table entries that are not measured by then stay unchanged",
    )
    parser.add_argument("--output", type=Path, help="file to write (default: the file that the kernels read)")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("tune: expected an NVIDIA or AMD GPU, got none. Run this on the machine with the GPU", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    name = torch.cuda.get_device_name(device)
    path = options.output or tile_tables.saved_path(name)
    if path is None:
        print(
            "tune: expected a home folder to save to, got none. Set QACG_TRITON_TABLES to a folder, or pass --output",
            file=sys.stderr,
        )
        return 2
    try:
        current = tile_tables.table_for(device)
    except ValueError as error:
        print(f"tune: {error}", file=sys.stderr)
        return 2
    from importlib.metadata import version

    saves = []

    def keep(table: Table) -> None:
        taken = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        measured = {"gpu": name, "taken": taken, "torch": torch.__version__, "triton": version("triton")}
        tile_tables.save(replace(table, measured=measured), path)
        saves.append(path)

    end = time.monotonic() + options.seconds
    common = dict(is_spent=lambda: time.monotonic() >= end, log=lambda line: print(line, flush=True), keep=keep)
    base = replace(
        current,
        architecture=tile_tables.architecture_of(device),
        shared_bytes=tile_tables.shared_bytes_of(device),
    )
    kinds = [
        Choice(*kind, "triton") for kind in itertools.product(options.bits, options.head_dims, (False, True), LENGTHS)
    ]
    if all(dispatch.backend_of(other).missing() for other in tile_tables.gpu_backends if other != "triton"):
        kinds = []  # no other backend can be measured on this machine
    # Backends first: measuring them takes seconds, and measuring tiles takes the rest of the time limit.
    table = with_fastest_backends(base, kinds, seconds_of, **common)
    keys = [key for key in KEYS if key[1] in options.bits and key[2] in options.head_dims]
    tuned(table, keys, seconds, **common, compile_all=compile_all)
    print(f"saved to {path}" if saves else "nothing was measured, so no table is saved")
    return 0


if __name__ == "__main__":
    sys.exit(main())
