"""Predicts the kernels of csrc/cuda: compiles them with nvcc and traces their instructions.

These are the kernels that use tensor cores, and those that sum the gradients of gate vectors.
"""

import functools
import hashlib
import math
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from qacg_models.utils.atomic_files import staged_file

from benchmarks.cases import BACKWARD, FORWARD, Shape
from benchmarks.static import kernel, sass_trace
from benchmarks.static.calibrate import calibration, rate
from benchmarks.static.compile import CUOBJDUMP, NVDISASM, Resources
from benchmarks.static.hardware import CHIPS, SCHEDULERS
from benchmarks.static.operator import Predicted, predict_kernel
from benchmarks.static.sass import Instruction, loads_in_flight, parse

ROOT = Path(__file__).resolve().parents[2]
HEAD_DIMS = (32, 64, 128)  # head sizes with kernels; other sizes are padded to the next one
_BUILD = ROOT / "build" / "static"
_CALLS = Path(__file__).with_name("cuda_calls.cu")
_SOURCES = ("kernels_mma_bfloat16.cu", "kernels_hopper_bfloat16.cu", "kernels_plain.cu")
ANY_SIZE = 0  # head size of kernels that are compiled once for all head sizes
_CODE = {"sm_80": "sm_80", "sm_90": "sm_90a"}  # code for other chips has jump tables, which `trace_path` cannot read
_PARAMETERS = {"sm_80": 0x160, "sm_90": 0x210}  # offset of a kernel's parameters in its constant bank, in bytes
# Number of matrix products per tile. Those of the backward are for calls that saved the branch output.
PRODUCTS = {
    "forward": 4,
    "forward_short": 3,
    "hopper_forward": 4,
    "backward_rows": 5,
    "backward_keys": 6,
    "narrow_backward_keys": 6,
}
# Stages of tiles in shared memory; other kernels have two.
STAGES = {"forward_short": 1, "hopper_forward": 3, "narrow_backward_keys": 1}
_SHORT = "forward_short"
# Kernels of a call with a lambda tensor, by backend and pass. The backward of `hopper` is Triton's.
CALLS = {
    ("cuda", FORWARD): ("forward",),
    ("cuda", BACKWARD): ("backward_rows", "backward_keys"),
    ("hopper", FORWARD): ("hopper_forward",),
}
# Number of (B, H, L, D) tensors that a kernel reads or writes, in the call's dtype.
_TRAFFIC = {_SHORT: 6, "forward": 6, "hopper_forward": 6, "backward_rows": 9, "backward_keys": 9}
# The same for the kernels that sum the gradients of gate vectors. The second one reads partial sums in the L2 cache.
_GATE_TRAFFIC = {"gate_partial_sums": 4, "gate_sums": 0}
# Keys of a call whose rows fit into one tile, and of two calls with several tiles.
_SHORT_LENGTH, _LENGTHS = 128, (256, 768)


class Code(NamedTuple):
    """The machine code of a kernel, its registers per thread, its stack in bytes per thread, and constant bank 2."""

    program: list[Instruction]
    registers: int
    stack: int
    literals: bytes = b""


class Call(NamedTuple):
    """The parameters of a kernel in a call.

    Attributes:
        threads: threads per block.
        shared: bytes of shared memory per block.
        rows, keys: query rows and keys of a tile.
        parameters: the kernel's parameters as bytes.
    """

    threads: int
    shared: int
    rows: int
    keys: int
    parameters: bytes


class GateCall(NamedTuple):
    """A launch of a kernel that sums gradients of gate vectors; `Call` describes the attributes.

    `blocks` does not count blocks that return at once.
    """

    blocks: int
    threads: int
    shared: int
    parameters: bytes


class EstimatedSums(NamedTuple):
    """The analysis and the time of a kernel that sums the gradients of gate vectors, in a call of this shape."""

    name: str
    shape: Shape
    estimate: kernel.Estimate
    predicted: Predicted


class EstimatedKernel(NamedTuple):
    """The analysis of a kernel, and its executed rate in TFLOP/s in a call with many blocks.

    `busy` states whether the call has dropout.
    """

    name: str
    head_dim: int
    busy: bool
    call: Call
    estimate: kernel.Estimate
    tflops: float


def unsupported_reason(architecture: str) -> str | None:
    """Why the kernels cannot be analysed for a chip; None if they can."""
    if architecture not in _CODE:
        return f"--arch: expected one of {', '.join(_CODE)} with --backend cuda, got {architecture}"
    if _nvcc() is None:
        return "--backend cuda: expected nvcc on the path, in CUDA_HOME or in /usr/local/cuda, got none. Install CUDA."
    return None


def estimate_kernels(architecture: str, head_dims: list[int]) -> Iterator[EstimatedKernel]:
    """Predicts every kernel for these head sizes, without and with dropout."""
    for busy in (False, True):
        short, few, more = (_calls(length, busy) for length in (_SHORT_LENGTH, *_LENGTHS))
        for name, head_dim in (*short, *few):
            if head_dim in head_dims and (name, head_dim) in code(architecture):
                own = {n: calls.get((name, head_dim)) for n, calls in zip((1, *_LENGTHS), (short, few, more))}
                yield _estimate_uncached(name, head_dim, busy, architecture, own)


def _estimate_uncached(
    name: str, head_dim: int, busy: bool, architecture: str, calls: dict[int, Call | None]
) -> EstimatedKernel:
    found, iterates = code(architecture)[name, head_dim], name != _SHORT
    program = [*found.program, sass_trace.SKIPPED]
    call = calls[_LENGTHS[0]] if iterates else calls[1]
    warps, work = call.threads // 32, kernel.Work(call.rows * call.keys, head_dim, PRODUCTS[name], iterates)
    walked = call.rows if name.endswith("backward_keys") else call.keys  # query rows or keys per iteration
    iterations = tuple(length // walked for length in _LENGTHS)
    lengths = dict(zip(iterations, _LENGTHS))

    def ways(count: int) -> list[list[int]]:
        constants = bytes(_PARAMETERS[architecture]) + calls[lengths[count] if iterates else 1].parameters
        trace = functools.partial(sass_trace.trace_path, found.program, constants, literals=found.literals)
        return [trace(32 * n) for n in range(0, max(1, warps), SCHEDULERS)]

    issued = ways(iterations[0])[0]  # by the first warp
    # The instructions that a call with more iterations repeats; the waits before and after the loop are not among them.
    repeated = Counter(ways(iterations[1])[0]) - Counter(issued) if iterates else Counter()
    used = Resources(
        registers=found.registers,
        stack=found.stack,
        shared=call.shared,
        tensor_columns=0,
        wgmma=any(program[index].stem == "HGMMA" for index in issued),
        loads_in_flight=loads_in_flight(program[index] for index in repeated),
        spills=sum(program[index].stem in ("LDL", "STL") for index in issued),
    )
    estimate = kernel.estimate_program(program, used, CHIPS[architecture], warps, work, ways, iterations)
    clocks = estimate.iteration if iterates else estimate.outside
    tflops = calibration().factor * rate(architecture, work.flops * estimate.resident, clocks)
    return EstimatedKernel(name, head_dim, busy, call, estimate, tflops)


def estimate_gate_sums(architecture: str, shape: Shape) -> Iterator[EstimatedSums]:
    """Predicts the kernels that sum the gradients of gate vectors, in a backward in a 16-bit type.

    All heads share the vectors, and there are no biases. The paths are those of the call's first block.
    """
    for name, call in _gate_calls(shape).items():
        estimate = _estimate_gate_call(architecture, code(architecture)[name, ANY_SIZE], call)
        moved = 2 * _GATE_TRAFFIC[name] * math.prod(shape)
        predicted = predict_kernel(architecture, estimate, call.blocks, iterations=0, moved=moved, products=0)
        yield EstimatedSums(name, shape, estimate, predicted)


def _estimate_gate_call(architecture: str, found: Code, call: GateCall) -> kernel.Estimate:
    program, warps, chip = [*found.program, sass_trace.SKIPPED], call.threads // 32, CHIPS[architecture]
    constants = bytes(_PARAMETERS[architecture]) + call.parameters
    trace = functools.partial(sass_trace.trace_path, found.program, constants, literals=found.literals)
    ways = [trace(32 * n) for n in range(0, warps, SCHEDULERS)]
    spills = sum(program[index].stem in ("LDL", "STL") for index in ways[0])
    used = Resources(found.registers, found.stack, call.shared, 0, wgmma=False, loads_in_flight=0, spills=spills)
    work = kernel.Work(cells=0, head_dim=0, products=0, iterates=False)
    most = math.ceil(call.blocks / chip.multiprocessors)
    return kernel.estimate_program(program, used, chip, warps, work, lambda iterations: ways, most_blocks=most)


def predict_call(
    architecture: str, kernels: dict[tuple[str, int], EstimatedKernel], backend: str, shape: Shape, pass_: str
) -> Predicted | None:
    """Predicts a call with a lambda tensor and without dropout in a 16-bit type; None without a kernel for it.

    Args:
        architecture: the chip.
        kernels: the kernels of calls without dropout, by name and head size.
        backend: "cuda" or "hopper".
        shape: the sizes of the call.
        pass_: FORWARD or BACKWARD.
    """
    names = CALLS.get((backend, pass_), ())
    if names == ("forward",) and shape.length <= _SHORT_LENGTH and (_SHORT, shape.head_dim) in kernels:
        names = (_SHORT,)
    found = [kernels.get((name, shape.head_dim)) for name in names]
    if not found or None in found:
        return None
    parts = [_predict_in_call(architecture, one, shape) for one in found]
    return Predicted(sum(p.seconds for p in parts), max(parts).bound, sum(p.products for p in parts))


def _predict_in_call(architecture: str, one: EstimatedKernel, shape: Shape) -> Predicted:
    # A block of backward_keys has a tile of keys and loops over the queries; the other kernels do the opposite.
    of_block, walked = one.call.rows, one.call.keys
    if one.name == "backward_keys":
        of_block, walked = walked, of_block
    heads = shape.batch * shape.heads
    blocks, iterations = heads * math.ceil(shape.length / of_block), math.ceil(shape.length / walked)
    moved = 2 * _TRAFFIC[one.name] * heads * shape.length * shape.head_dim
    return predict_kernel(architecture, one.estimate, blocks, iterations, moved, PRODUCTS[one.name])


@functools.cache
def code(architecture: str) -> dict[tuple[str, int], Code]:
    """The machine code of all kernels by name and head size; compiled once per version of the sources."""
    found = {}
    for source in _SOURCES:
        if "hopper" in source and architecture != "sm_90":
            continue
        path = ROOT / "csrc" / "cuda" / source
        flags = ("-std=c++17", "-O3", "-DNDEBUG", "-cubin", f"-arch={_CODE[architecture]}")
        found |= kernels_of(_built(path, flags, ".cubin"))
    return found


def kernels_of(cubin: Path) -> dict[tuple[str, int], Code]:
    """The machine code of the kernels in a cubin by name and head size."""
    text = subprocess.run([NVDISASM, cubin], capture_output=True, text=True, check=True).stdout
    usage = subprocess.run([CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    sections = dict(re.findall(r"\n\s*\.section\s+(\.[\w.]+)(.*?)(?=\n\s*\.section\s|\Z)", text, re.S))
    found = {}
    for mangled in (name.removeprefix(".text.") for name in sections if name.startswith(".text.")):
        own = re.search(rf"Function {mangled}:\s+REG:(\d+) STACK:(\d+)", usage)
        lines = re.findall(r"\.byte(.*)", sections.get(f".nv.constant2.{mangled}", ""))
        literals = bytes(int(byte, 16) for byte in re.findall("0x[0-9a-f]+", "".join(lines)))
        found[_name_of(mangled)] = Code(parse(sections[f".text.{mangled}"]), int(own[1]), int(own[2]), literals)
    return found


def _name_of(mangled: str) -> tuple[str, int]:
    """The name and the head size of a kernel: a template in qacg::cuda::mma, or a function in qacg::cuda."""
    if template := re.match(r"_ZN4qacg4cuda3mma\d+(\w+?)I.*?Li(\d+)E", mangled):
        return template[1], int(template[2])
    return re.match(r"_ZN4qacg4cuda(?:5plain)?\d+(\w+?)ENS", mangled)[1], ANY_SIZE


def _gate_calls(shape: Shape) -> dict[str, GateCall]:
    found = {}
    for line in _printed(*shape):
        name, *numbers, parameters = line.split()
        found[name] = GateCall(*map(int, numbers), bytes.fromhex(parameters))
    return found


def _calls(length: int, busy: bool) -> dict[tuple[str, int], Call]:
    found = {}
    for line in _printed(length, int(busy)):
        name, head_dim, *numbers, parameters = line.split()
        found[name, int(head_dim)] = Call(*map(int, numbers), bytes.fromhex(parameters))
    return found


def _printed(*arguments: int) -> list[str]:
    """The lines that cuda_calls.cu prints."""
    # The code of the default architecture would have no conversions of bfloat16. The program runs no kernel.
    program = _built(_CALLS, ("-std=c++17", "-arch=sm_80", f"-I{ROOT / 'csrc' / 'cuda'}"), "")
    command = [program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _built(source: Path, flags: tuple[str, ...], suffix: str) -> Path:
    """Compiles a source with nvcc, unless its output exists for the same text and flags; returns the output's path."""
    headers = sorted((ROOT / "csrc").glob("c*/*.h"))
    digest = hashlib.sha256(repr((flags, _version())).encode())
    for path in (source, *headers):
        digest.update(path.read_bytes())
    built = _BUILD / f"{source.stem}-{digest.hexdigest()[:16]}{suffix}"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        with staged_file(built) as made:
            subprocess.run([_nvcc(), *flags, str(source), "-o", str(made.path)], check=True)
            made.publish()
    return built


def _nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("nvcc", path=f"{home}/bin" if home else None) or shutil.which(
        "nvcc", path="/usr/local/cuda/bin"
    )


def nvcc_release() -> str:
    """The release of nvcc, such as "13.0"."""
    return re.search(r"release ([\d.]+)", _version())[1]


@functools.cache
def _version() -> str:
    return subprocess.run([_nvcc(), "--version"], capture_output=True, text=True, check=True).stdout
