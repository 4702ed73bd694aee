"""Peak memory on the CPU, taken in a process of its own: how it is asked, and what it does."""

import argparse
import subprocess
import sys

import torch
from qacg_models.utils.child_python import module_command

from benchmarks import rows
from benchmarks.cases.case import DTYPES, FORWARD, FORWARD_BACKWARD, FULL, LENGTHS, MEMORY_SHAPE, Case, Shape
from benchmarks.measure.resident_memory import measure
from benchmarks.providers.registry import PROVIDERS


def measure_memory(case: Case, name: str, threads: int) -> rows.MemoryRow:
    """Peak memory, taken by this module in a process of its own.

    Raises:
        RuntimeError: it could not be measured; the message is that of the process.
    """
    arguments = {
        "shape": ",".join(map(str, case.shape)),
        "dtype": case.dtype,
        "mode": case.mode,
        "lengths": case.lengths,
        "dropout": case.dropout,
        "provider": name,
        "threads": threads,
    }
    command = module_command(__name__, *(part for key, value in arguments.items() for part in (f"--{key}", value)))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"the process ended with status {done.returncode}")
    return rows.from_line(done.stdout)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory", description="Peak memory of a forward and its backward, as a row."
    )
    parser.add_argument("--shape", type=Shape.parse, default=MEMORY_SHAPE, metavar="B,H,L,D")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--mode", choices=(FORWARD, FORWARD_BACKWARD), default=FORWARD_BACKWARD)
    parser.add_argument("--lengths", choices=LENGTHS, default=FULL)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--provider", choices=PROVIDERS, required=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    case = Case(options.shape, options.dtype, options.mode, options.dropout, lengths=options.lengths)
    try:
        print(rows.to_line(measure(case, options.provider)))
    except RuntimeError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
