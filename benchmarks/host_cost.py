"""Host overhead of a call on a machine without a GPU: `python -m benchmarks.host_cost`.

Triton's launcher runs on a stub of libcuda, which launches nothing. An operator in C++ runs parsing, checks and
allocation on 0 sequences; the CPU operator represents the CUDA operator, whose schema and checks are the same.
PyTorch's own attention, also on 0 sequences, is the baseline.

A value is the CPU time of a call in the fastest of several repeats, since other work on the core can only increase this
time. With `--count` it is the number of instructions by callgrind, which repeats within 1 % on a busy machine. The
garbage collector is off.
"""

import argparse
import ctypes
import gc
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import qacg_kernels as qk
from benchmarks import absent_gpu
from qacg_kernels.attention_layers import GATE_ROLES
from qacg_kernels.backends import triton as backend
from qacg_kernels.backends.triton import prepared, tile_tables
from qacg_kernels.functional import problem_of
from qacg_kernels.nn import FusedQuasiAttention
from qacg_kernels.operators.schema import backward_op, forward_op

ARCHITECTURE = "sm_90"
HEADS, LENGTH, HEAD_DIM = 2, 16, 64
CALLS, REPEATS = 16, 200  # 16 numbers of tokens have every alignment
_COUNTS = "counts"
_NO_VALGRIND = "--count: expected valgrind and its headers, got none. Install the package valgrind"
_SEQUENCES, _FEWEST_TOKENS, _MOST_TOKENS = 64, 1025, 2049  # of packed calls

Calls = Iterator[Callable[[], object]]


class Row(NamedTuple):
    """Calls of one kind. Most rows repeat the same call."""

    name: str
    inference: Calls
    step: Calls  # forward and backward


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_cost", description="Host overhead of a call.")
    parser.add_argument("--quick", action="store_true", help="few calls, to check that everything runs")
    parser.add_argument("--count", action="store_true", help="instructions instead of time; requires valgrind")
    options = parser.parse_args(arguments)
    stub = absent_gpu.loaded_stub()
    if stub is None:
        try:
            return _run_on_stub(options.quick, options.count)
        except FileNotFoundError as error:
            print(error, file=sys.stderr)
            return 2
    measure = partial(_instructions, stub) if options.count else partial(_microseconds, 3 if options.quick else REPEATS)
    torch.set_num_threads(1)
    gc.disable()
    absent_gpu.replace_driver(absent_gpu.StubGPU(ARCHITECTURE))
    prepared.register("CPU")
    unit = "thousands of instructions" if options.count else "microseconds"
    print(f"| one call, {unit} | inference | to SDPA | forward and backward | to SDPA |\n|---|---:|---:|---:|---:|")
    baseline = None
    with tile_tables.trial(tile_tables.shipped(ARCHITECTURE)):
        for row in _rows():
            with torch.no_grad():
                inference = measure(row.inference)
            values = inference, measure(row.step)
            baseline = baseline or values
            cells = [f"{value:,.1f} | {value / base:.2f}x" for value, base in zip(values, baseline)]
            print(f"| {row.name} | {cells[0]} | {cells[1]} |", flush=True)
    return 0


def _run_on_stub(quick: bool, count: bool) -> int:
    """Runs this module in a process that loads the stub; returns the exit status."""
    command = [sys.executable, "-m", "benchmarks.host_cost", *(["--quick"] if quick or count else [])]
    with tempfile.TemporaryDirectory() as folder:
        valgrind = shutil.which("valgrind") if count else None
        if count and not valgrind:
            raise FileNotFoundError(_NO_VALGRIND)
        environment = os.environ | absent_gpu.stub_environment(Path(folder)) | {"PYTHONHASHSEED": "0"}
        if valgrind:
            if not hasattr(ctypes.CDLL(f"{folder}/libcuda.so.1"), "stub_start_count"):
                raise FileNotFoundError(_NO_VALGRIND)
            # Compiles the kernels for the second run: compilers are slow under valgrind.
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
            tool = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/{_COUNTS}", "--quiet"]
            command = [valgrind, *tool, *command, "--count"]
        return subprocess.run(command, env=environment, check=False).returncode


def _rows() -> Iterator[Row]:
    """Yields the baseline first."""
    tensors = _operands(batch=0)[:3]
    yield _row("SDPA on 0 sequences", partial(scaled_dot_product_attention, *tensors), tensors)

    vectors, biases = [_tensor(HEAD_DIM) for _ in range(4)], [_tensor() for _ in range(2)]
    gate, biased = qk.GateParameters(*vectors), qk.GateParameters(*vectors, *biases)
    for name, backend_name, batch in (("Triton", "triton", 1), ("operator in C++ on 0 sequences", "cpu", 0)):
        *wide, gate_lambda = _operands(batch)
        attend = partial(qk.quasi_attention, *wide, backend=backend_name)
        yield _row(f"{name}: lambda tensor", partial(attend, gate=gate_lambda), [*wide, gate_lambda])
        yield _row(f"{name}: gate vectors", partial(attend, gate=gate), [*wide, *vectors])

    wide = _operands(length=128)[:5]
    masked = dict(attn_mask=torch.ones(1, 1, 1, 128, dtype=torch.bool), dropout_p=0.1, backend="triton")
    training = partial(qk.quasi_attention, *wide, biased, **masked)
    yield _row("Triton: vectors, biases, key mask, dropout, 128 keys", training, [*wide, *vectors, *biases])

    packed = _packed(gate)
    steps = (partial(_differentiate, call, [*wide, *vectors], upstream) for call, wide, upstream in packed)
    yield Row("Triton: gate vectors, packed, a new number of tokens", (call for call, *_ in packed), steps)

    wide = _operands()[:5]
    module = FusedQuasiAttention(HEADS * HEAD_DIM, HEADS)
    weights = [parameter for role in GATE_ROLES for parameter in module.layer(role).parameters()]
    yield _row(
        "Triton: module without projections",
        lambda: qk.quasi_attention(*wide, module.gate(wide), backend="triton"),
        [*wide, *weights],
    )
    for name, given in (("lambda tensor", _operands()[5]), ("gate vectors", gate)):
        yield _graph_row(f"Triton: operators of a compiled graph, {name}", wide, given)


def _row(name: str, call: Callable[[], Tensor], leaves: list[Tensor]) -> Row:
    step = partial(_differentiate, call, leaves, torch.ones_like(call()))
    return Row(name, itertools.repeat(call), itertools.repeat(step))


def _differentiate(call: Callable[[], Tensor], leaves: list[Tensor], upstream: Tensor) -> None:
    torch.autograd.grad(call(), leaves, upstream)


def _packed(gate: qk.GateParameters) -> Iterator[tuple[Callable[[], Tensor], list[Tensor], Tensor]]:
    """Yields calls with their inputs and an upstream gradient; each has another number of tokens."""
    rows = torch.zeros(_MOST_TOKENS, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    for tokens in range(_FEWEST_TOKENS, _MOST_TOKENS):
        wide = [rows[:tokens].requires_grad_() for _ in range(5)]
        offsets = (torch.arange(_SEQUENCES + 1) * tokens // _SEQUENCES).int()
        options = dict(cu_seqlens=offsets, max_seqlen=128, backend="triton")
        yield partial(qk.quasi_attention_varlen, *wide, gate, **options), wide, rows[:tokens]


def _graph_row(name: str, wide: list[Tensor], gate: qk.GateParameters | Tensor) -> Row:
    """The operators without autograd, which a compiled graph calls in its forward and its backward."""
    problem = problem_of(*wide, gate)
    tensors = [None if t is None else t.detach() for t in problem.tensors]
    forward = partial(forward_op("triton").default, *tensors, *problem.options)
    save = partial(forward, *backend.residuals(problem))
    out, *saved = save()
    backward = backward_op("triton").default
    differentiate = partial(backward, torch.ones_like(out), None, None, *tensors, *saved, *problem.options)

    def step() -> None:
        save()
        differentiate()

    return Row(name, itertools.repeat(partial(forward, False, False)), itertools.repeat(step))


def _operands(batch: int = 1, length: int = LENGTH) -> list[Tensor]:
    return [*(_tensor(batch, HEADS, length, HEAD_DIM) for _ in range(5)), _tensor(batch, HEADS, length)]


def _tensor(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True)


def _microseconds(repeats: int, calls: Calls) -> float:
    times = []
    for _ in range(repeats):
        batch = list(itertools.islice(calls, CALLS))
        start = time.thread_time()
        for call in batch:
            call()
        times.append(1e6 * (time.thread_time() - start) / CALLS)
    return min(times)


def _instructions(stub: ctypes.CDLL, calls: Calls) -> float:
    """Thousands of instructions per call."""
    for call in itertools.islice(calls, 2 * CALLS):
        call()
    batch = list(itertools.islice(calls, CALLS))
    stub.stub_start_count()
    for call in batch:
        call()
    stub.stub_dump_count()
    (dump,) = Path(os.environ[absent_gpu.STUB_FOLDER]).glob(f"{_COUNTS}.*")
    total = re.search(rb"^(?:summary|totals): (\d+)", dump.read_bytes(), re.MULTILINE)
    dump.unlink()
    return int(total[1]) / CALLS / 1000


if __name__ == "__main__":
    sys.exit(main())
