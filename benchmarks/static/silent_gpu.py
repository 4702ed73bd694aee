"""A GPU that is not there and takes every launch: the Triton backend's host code runs whole, on tensors of the CPU."""

import os
from collections.abc import Callable

import triton

from benchmarks.static.compile import AbsentGPU
from qacg_kernels.backends import triton as backend


class SilentGPU(AbsentGPU):
    """Takes every kernel, and does nothing at its launch."""

    class utils:
        load_binary = staticmethod(lambda *_: (1, 1, 0, 0, 1024))
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": 227 * 1024})

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *_: None


def take_the_drivers_place(gpu: AbsentGPU) -> None:
    """From here on, and for good: the Triton backend takes tensors of the CPU, and launches go to `gpu`."""
    os.environ["QACG_SELF_CHECK"] = "off"  # nothing is computed
    triton.runtime.driver.set_active(gpu)
    backend.missing, backend.not_for, backend.DEVICE = list, lambda device: [], "cpu"
