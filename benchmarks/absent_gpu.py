"""Drivers of Triton that stand for a GPU that is not present, so that calls compile or run up to the launch."""

import os
from collections.abc import Callable

import torch
import triton
from triton.backends.compiler import GPUTarget

from qacg_kernels.backends import triton as backend
from qacg_kernels.backends.triton.tile_tables import has_wide_waves, is_amd


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


class SilentGPU(AbsentGPU):
    """A driver that accepts every kernel and launches nothing."""

    class utils:
        load_binary = staticmethod(lambda *_: (1, 1, 0, 0, 1024))
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": 227 * 1024})

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *_: None


def replace_driver(gpu: AbsentGPU) -> None:
    """Makes the Triton backend accept CPU tensors and use the driver `gpu`, for the rest of the process.

    Also turns the self-check off.
    """
    os.environ["QACG_SELF_CHECK"] = "off"  # there are no results to check
    triton.runtime.driver.set_active(gpu)
    backend.missing, backend.not_for, backend.DEVICE = list, lambda device: [], "cpu"
