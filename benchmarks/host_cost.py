"""Host overhead of a call on a machine without a GPU: `python -m benchmarks.host_cost`.

- For the Triton backend, the Python code runs up to the launch, which goes to a driver that does nothing.
- For an operator in C++, a call with 0 sequences runs parsing, checks and allocation, but no kernel. The CPU operator
  represents the CUDA operator, whose schema and checks are the same.
- A call with backend "auto" and one with a named backend show the cost of the selection.
- PyTorch's own attention on 0 sequences shows the speed of the CPU core.

Tensors are small and on the CPU. A value is the CPU time of a call in the fastest of several repeats, since other work
on the core can only increase this time.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

import qacg_kernels as qk
from benchmarks.absent_gpu import SilentGPU, replace_driver
from qacg_kernels.backends import cpu
from qacg_kernels.backends.triton import tile_tables

ARCHITECTURE = "sm_90"
HEADS, LENGTH, HEAD_DIM = 2, 16, 64
CALLS, REPEATS = 100, 30
_SELF_CHECKED = "operator in C++ after its self-check"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_cost", description="Host overhead of a call.")
    parser.add_argument("--quick", action="store_true", help="few calls, to check that everything runs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    replace_driver(SilentGPU(ARCHITECTURE))
    repeats = 3 if options.quick else REPEATS
    print("| one call, bfloat16, head size 64, short sequences | inference | training forward | forward and backward |")
    print("|---|---:|---:|---:|")
    with tile_tables.trial(tile_tables.shipped(ARCHITECTURE)):
        for name, call, leaves in _calls():
            times = [_microseconds(call, leaves, mode, repeats) for mode in ("inference", "forward", "training")]
            print(f"| {name} | " + " | ".join(f"{us:.1f} us" for us in times) + " |", flush=True)
    return 0


def _calls() -> Iterator[tuple[str, Callable[[], torch.Tensor], list[torch.Tensor]]]:
    """Yields the name of each call, the call, and the tensors to differentiate it by."""
    vectors = [_tensor(HEAD_DIM) for _ in range(4)]
    gate = qk.GateParameters(*vectors)
    for name, backend_name, batch in (
        ("Triton", "triton", 1),
        ("auto, which selects Triton", "auto", 1),
        ("operator in C++", "cpu", 0),
        (_SELF_CHECKED, "cpu", 0),
    ):
        if name == _SELF_CHECKED:
            cpu.check_first_calls()
        *wide, gate_lambda = _operands(batch)
        by_lambda = partial(qk.quasi_attention, *wide, gate_lambda, backend=backend_name)
        yield f"{name}, lambda tensor", by_lambda, [*wide, gate_lambda]
        yield f"{name}, gate vectors", partial(qk.quasi_attention, *wide, gate, backend=backend_name), [*wide, *vectors]
    tensors = _operands(batch=0)[:3]
    yield "torch's scaled_dot_product_attention", partial(scaled_dot_product_attention, *tensors), tensors


def _operands(batch: int) -> list[torch.Tensor]:
    return [*(_tensor(batch, HEADS, LENGTH, HEAD_DIM) for _ in range(5)), _tensor(batch, HEADS, LENGTH)]


def _tensor(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True)


def _microseconds(call: Callable[[], torch.Tensor], leaves: list[torch.Tensor], mode: str, repeats: int) -> float:
    upstream = torch.ones_like(call())

    def once() -> None:
        out = call()
        if mode == "training":
            torch.autograd.grad(out, leaves, upstream)

    times = []
    with torch.no_grad() if mode == "inference" else nullcontext():
        for _ in range(repeats):
            start = time.thread_time()
            for _ in range(CALLS):
                once()
            times.append(1e6 * (time.thread_time() - start) / CALLS)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
