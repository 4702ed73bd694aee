"""What one call costs the host, on a machine without a GPU: `python -m benchmarks.host_cost`.

Of the Triton backend all of the host's Python runs, up to the driver's launch, which is replaced by nothing. Of a
compiled backend's operator the arguments are taken apart, checked and allocated for, in a call of no sequences: its
kernels then have nothing to do. The CPU's stands for the CUDA one here, whose schema and checks are the same. A call by
"auto" beside one by name shows what the choice costs. Tensors are those of the CPU, and small, so that torch's own work
on them does not count. A figure is the processor time of a call in the quickest of some rows of such calls: what else a
core does only adds to it. Torch's own attention on no sequences tells how fast the core is.
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
from benchmarks.static.compile import SilentGPU, take_the_drivers_place
from qacg_kernels import self_check
from qacg_kernels.backends.triton import tile_tables

CAPABILITY = 90
HEADS, LENGTH, HEAD_DIM = 2, 16, 64
CALLS, ROWS = 100, 30
_BEHIND_THE_CHECK = "operator in C++ that checked itself"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_cost", description="What a call costs the host.")
    parser.add_argument("--quick", action="store_true", help="few calls: enough to see that everything runs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    take_the_drivers_place(SilentGPU(CAPABILITY))
    rows = 3 if options.quick else ROWS
    print("| one call, bfloat16, head size 64, short rows | inference | forward of training | with its backward |")
    print("|---|---:|---:|---:|")
    with tile_tables.trial(tile_tables.shipped(f"sm_{CAPABILITY}")):
        for name, call, leaves in _calls():
            taken = [_microseconds(call, leaves, mode, rows) for mode in ("inference", "forward", "training")]
            print(f"| {name} | " + " | ".join(f"{us:.0f} us" for us in taken) + " |", flush=True)
    return 0


def _calls() -> Iterator[tuple[str, Callable[[], torch.Tensor], list[torch.Tensor]]]:
    """Of each: what it is, the call, and what it is differentiated by."""
    vectors = [_tensor(HEAD_DIM) for _ in range(4)]
    gate = qk.GateParameters(*vectors)
    for name, backend_name, batch in (
        ("Triton", "triton", 1),
        ("auto, which takes Triton", "auto", 1),
        ("operator in C++", "cpu", 0),
        (_BEHIND_THE_CHECK, "cpu", 0),
    ):
        if name == _BEHIND_THE_CHECK:
            self_check.guard_compiled("cpu", row_max_of_empty=float("-inf"))
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


def _microseconds(call: Callable[[], torch.Tensor], leaves: list[torch.Tensor], mode: str, rows: int) -> float:
    upstream = torch.ones_like(call())

    def once() -> None:
        out = call()
        if mode == "training":
            torch.autograd.grad(out, leaves, upstream)

    taken = []
    with torch.no_grad() if mode == "inference" else nullcontext():
        for _ in range(rows):
            start = time.thread_time()
            for _ in range(CALLS):
                once()
            taken.append(1e6 * (time.thread_time() - start) / CALLS)
    return min(taken)


if __name__ == "__main__":
    sys.exit(main())
