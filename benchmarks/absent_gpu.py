"""Drivers of Triton that stand for a GPU that is not present, so that calls compile or run up to the launch."""

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget

from qacg_kernels.backends import triton as backend
from qacg_kernels.backends.triton.tile_tables import has_wide_waves, is_amd
from qacg_kernels.call import validation

STUB_FOLDER = "TRITON_LIBCUDA_PATH"  # where Triton finds the library to link with
_STUB = Path(__file__).with_name("stub_driver.c")
_CONFIG = "6IIPPI"  # CUlaunchConfig: grid, block, shared bytes, stream, attributes, their number
_ON_LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))


class AbsentGPU:
    """A driver with which Triton compiles for an architecture whose GPU is not present."""

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


class StubGPU(AbsentGPU):
    """A driver with Triton's own launcher, on the stub of libcuda that launches nothing.

    Requires the environment of `stub_environment`.
    """

    def __init__(self, architecture: str) -> None:
        from triton.backends.nvidia import driver  # here, because other architectures do not require it

        super().__init__(architecture)
        self.utils = driver.CudaUtils()
        self.launcher_cls = driver.CudaLauncher

    def get_current_device(self) -> int:
        return 0


class Launch(NamedTuple):
    """The arguments of one cuLaunchKernelEx. `parameters` has the bytes of each parameter of the machine code."""

    kernel: str
    function: int  # the handle, which differs for each machine code
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    attributes: int  # their number
    parameters: tuple[bytes, ...]


def stub_environment(folder: Path) -> dict[str, str]:
    """Compiles the stub of libcuda into a folder; returns the environment variables with which a process loads it.

    Raises:
        FileNotFoundError: there is no C compiler, which Triton requires too.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("C compiler: expected gcc, clang or the variable CC, got none. Install gcc")
    options = ["-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *options, _STUB, "-o", folder / "libcuda.so.1"], check=True)
    paths = filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])
    return {STUB_FOLDER: str(folder), "LD_LIBRARY_PATH": os.pathsep.join(paths)}


def loaded_stub() -> ctypes.CDLL | None:
    """The stub of libcuda; None in a process without the environment of `stub_environment`."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return library if hasattr(library, "stub_on_launch") else None


@contextlib.contextmanager
def captured_launches(stub: ctypes.CDLL) -> Iterator[list[Launch]]:
    """Records every launch that reaches the stub, by whichever launcher."""
    launches: list[Launch] = []

    def record(config: int, function: int, parameters: object) -> None:
        handle, name, offset, size = ctypes.c_void_p(function), ctypes.c_char_p(), ctypes.c_size_t(), ctypes.c_size_t()
        values: list[bytes] = []
        while not stub.cuFuncGetParamInfo(
            handle, ctypes.c_size_t(len(values)), ctypes.byref(offset), ctypes.byref(size)
        ):
            values.append(ctypes.string_at(parameters[len(values)], size.value))
        stub.cuFuncGetName(ctypes.byref(name), handle)
        fields = struct.unpack(_CONFIG, ctypes.string_at(config, struct.calcsize(_CONFIG)))
        launches.append(
            Launch(name.value.decode(), function, fields[:3], fields[3:6], *fields[6:8], fields[9], tuple(values))
        )

    callback = _ON_LAUNCH(record)
    stub.stub_on_launch(callback)
    try:
        yield launches
    finally:
        stub.stub_on_launch(None)


def replace_driver(gpu: AbsentGPU) -> None:
    """Makes the Triton backend accept CPU tensors and use the driver `gpu`, for the rest of the process.

    Also turns the self-check off.
    """
    os.environ["QACG_SELF_CHECK"] = "off"  # there are no results to check
    triton.runtime.driver.set_active(gpu)
    backend.missing, backend.not_for, backend.DEVICE = list, lambda device: [], "cpu"
    validation.values_readable = lambda tensor: False  # as on a GPU
