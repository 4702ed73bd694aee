"""Compiles calls of the Triton backend for a GPU that is not there, and reads back what the machine code uses.

The backend's own host code runs, on CPU tensors; only the launch is replaced. So what is compiled is what a call
compiles, with the same specialisation of its arguments.
"""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget

from qacg_kernels.backends.triton import launch

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Resources(NamedTuple):
    """Of one kernel: registers a thread, bytes of stack a thread (spilled registers), bytes of shared memory."""

    registers: int
    stack: int
    shared: int


class _AbsentGPU:
    """What Triton's compiler asks of a driver, for one architecture."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> str:
        return str(self._target.arch)  # Triton keeps compiled kernels by device

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def kernels_of(action, capability: int, monkeypatch) -> dict[str, object]:
    """Runs `action` with every launch replaced by compilation; the compiled kernels by name."""
    compiled = {}

    def compile_only(kernel, programs, arguments, constants, options, device):
        if programs:
            name = kernel.fn.__name__ + ("_sums" if constants.get("SUMS_ONLY") else "")
            compiled[name] = kernel.warmup(*arguments, grid=(programs,), **constants, **options)

    triton.runtime.driver.set_active(_AbsentGPU(capability))
    monkeypatch.setattr(launch, "run", compile_only)
    action()
    return compiled


def resources(kernel: object, folder: Path) -> Resources:
    """Registers and stack from the machine code; shared memory as the compiler laid it out."""
    path = folder / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    text = subprocess.run([CUOBJDUMP, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"\b{field}:(\d+)", text)[1]) for field in ("REG", "STACK"))
    return Resources(registers, stack, kernel.metadata.shared)
