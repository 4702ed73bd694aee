"""Compiles calls of the Triton backend without a GPU, and reads the resources of the machine code.

The backend's own host code runs on CPU tensors; only the launch is replaced. So what is compiled is what a call
compiles, with the same specialisation of its arguments (`tests/kernels/test_triton_launch.py`). Triton caches
compiled kernels by content (TRITON_CACHE_DIR).
"""

import contextlib
import os
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from benchmarks.static.launches import Launch
from benchmarks.static.sass import disassembled, loops_of, main_loop, pending
from qacg_kernels.backends import triton as backend
from qacg_kernels.backends.triton import launch
from qacg_kernels.backends.triton.arguments import KernelConfig
from qacg_kernels.backends.triton.tile_tables import Table, has_wide_waves, is_amd, trial

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
CUOBJDUMP, NVDISASM = _TOOLS / "cuobjdump", _TOOLS / "nvdisasm"


class Resources(NamedTuple):
    """The resources of one kernel.

    Attributes:
        registers, stack, shared: of a thread, in bytes of a thread (spilled registers), in bytes of a block.
        tensor_columns: of tensor memory, which sm_100 has.
        wgmma: whether products of 16 bits are those of a warp group or of a block (wgmma, tcgen05); on AMD's GPUs
            whether there are matrix instructions (MFMA, WMMA) for the element type of the call.
        loads_in_flight: groups of copies that the loop with the work leaves running when it waits for others.
        spills: instructions within loops that move registers to the stack or back.
    """

    registers: int
    stack: int
    shared: int
    tensor_columns: int
    wgmma: bool
    loads_in_flight: int
    spills: int


class AbsentGPU:
    """A driver for Triton's compiler, of one architecture."""

    def __init__(self, architecture: str) -> None:
        if is_amd(architecture):
            self._target = GPUTarget("hip", architecture, 64 if has_wide_waves(architecture) else 32)
        else:
            self._target = GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> str:
        return str(self._target.arch)  # Triton caches compiled kernels by device

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def kernels_of(
    action: Callable[[], object], table: Table, architecture: str, is_chosen: Callable[[str], bool]
) -> dict[str, object]:
    """Runs `action` with the tiles of `table` and all launches replaced; returns the chosen kernels, compiled."""
    compiled = {}

    def compile_only(kernel, programs, arguments, constants, options, device):
        name = kernel.fn.__name__
        if programs and is_chosen(name):
            compiled[name] = kernel.warmup(*arguments, grid=(programs,), **constants, **options)

    triton.runtime.driver.set_active(AbsentGPU(architecture))
    with trial(table), launch.through(compile_only):
        action()
    return compiled


def compiled_for(launch: Launch, architecture: str) -> object:
    """One launch, compiled for a chip."""
    triton.runtime.driver.set_active(AbsentGPU(architecture))
    grid = (launch.programs,)
    return launch.kernel.warmup(*launch.arguments, grid=grid, **launch.constants, **launch.options)


class Description(NamedTuple):
    """The inputs of Triton's compiler beside a kernel's source, in its own terms.

    Arguments go by path: (0, 5, 1) is the second member of the sixth of the first argument.
    """

    signature: dict[str, object]  # types; "constexpr" is one known when the kernel is compiled
    constants: dict[tuple[int, ...], object]  # of these: None, 1, and the kernel's own constants
    attributes: dict[tuple[int, ...], object]  # numbers and addresses that are multiples of 16
    options: dict[str, object]


@contextlib.contextmanager
def describing() -> Iterator[dict[str, list[Description]]]:
    """Replaces compilation and launches of Triton inside the context.

    Yields:
        What each launched function would be compiled from, by the names of `kernels_of`, in the order of the launches.
    """
    found: dict[str, list[Description]] = defaultdict(list)

    def describe(kernel, key, signature, device, constants, options, attributes, warmup):
        values = {path: asdict(v) if isinstance(v, KernelConfig) else v for path, v in constants.items()}
        found[kernel.fn.__name__].append(Description(signature, values, attributes, dict(options.__dict__)))

    compile_it = JITFunction._do_compile
    JITFunction._do_compile = describe
    try:
        yield found
    finally:
        JITFunction._do_compile = compile_it


def resources(kernel: object) -> Resources:
    """Registers, stack and instructions from the machine code; memory as the compiler laid it out."""
    if "amdgcn" in kernel.asm:
        return _amd_resources(kernel)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [CUOBJDUMP, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"\b{field}:(\d+)", text)[1]) for field in ("REG", "STACK"))
    program = disassembled(kernel.asm["cubin"], NVDISASM)
    loop = main_loop(program)
    body = program[loop.start : loop.stop + 1] if loop else []
    waits = [pending(i) for i in body if i.stem == "DEPBAR" and "SB" in i.operands]
    looped = {index for loop in loops_of(program) for index in range(loop.start, loop.stop + 1)}
    spills = sum(program[index].stem in ("LDL", "STL") for index in looped)
    wgmma = any(i.stem in ("HGMMA", "UTCHMMA") for i in program)
    columns = getattr(kernel.metadata, "tmem_size", 0)
    return Resources(registers, stack, kernel.metadata.shared, columns, wgmma, min(waits, default=0), spills)


def _amd_resources(kernel: object) -> Resources:
    text = kernel.asm["amdgcn"]
    registers, stack = (int(re.search(rf"\.{name}: +(\d+)", text)[1]) for name in _AMD_FIELDS)
    matrix = bool(re.search(r"\bv_(mfma|smfmac|wmma)_", text))
    spills = len(re.findall(r"\bscratch_(?:load|store)_", text))
    return Resources(registers, stack, kernel.metadata.shared, 0, matrix, 0, spills)


_AMD_FIELDS = ("vgpr_count", "private_segment_fixed_size")  # the former includes accumulation registers


class SilentGPU(AbsentGPU):
    """A driver that loads every kernel and does nothing at its launch."""

    class utils:
        load_binary = staticmethod(lambda *_: (1, 1, 0, 0, 1024))
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": 227 * 1024})

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *_: None


def replace_driver(gpu: AbsentGPU) -> None:
    """Makes the Triton backend accept CPU tensors and launch on `gpu`, for the rest of the process."""
    os.environ["QACG_SELF_CHECK"] = "off"  # nothing is computed
    triton.runtime.driver.set_active(gpu)
    backend.missing, backend.not_for, backend.DEVICE = list, lambda device: [], "cpu"
