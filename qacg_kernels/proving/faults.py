"""Faults on purpose: what a kernel, a device or a disk can do to a proof, for the rehearsal of it.

The first eight happen in the process that proves, right after the kernel of one family has run; the others are made
by `rehearsal.py`.
"""

import os
import time

import torch

from qacg_kernels.certificates.family import Family
from qacg_kernels.proving.guards import AfterKernel, GuardedMemory

IN_THE_KERNEL = ("wrong-value", "nan", "out-of-bounds", "nondeterministic")
IN_THE_PROCESS = ("hang", "abort", "device-error", "out-of-memory")
SLOW = "slow"
AROUND = ("read-only-cache", "corrupt-certificate", "two-at-once")
FAULTS = (*IN_THE_KERNEL, *IN_THE_PROCESS, SLOW, *AROUND)


class DeviceError(RuntimeError):
    """Stands for an error after which a GPU's context is of no more use."""


class Injection:
    """One fault in one family, or none.

    Args:
        name: of FAULTS, or None.
        family: the one that it happens in.
    """

    def __init__(self, name: str | None, family: str | None) -> None:
        self._name, self._family = name, family
        self._calls = 0

    def hook(self, family: Family) -> AfterKernel | None:
        """What `GuardedMemory` is to call after each kernel of a family."""
        wanted = str(family) == self._family and self._name in (*IN_THE_KERNEL, *IN_THE_PROCESS)
        return self._after_kernel if wanted else None

    def made_up_seconds(self, names: tuple[str, ...]) -> dict[str, float]:
        """Times in which the first of `names` is the fastest, or with the fault "slow" the slowest."""
        factors = range(len(names), 0, -1) if self._name == SLOW else range(1, len(names) + 1)
        return {name: 1e-3 * factor for name, factor in zip(names, factors)}

    def _after_kernel(self, memory: GuardedMemory, outputs):
        self._calls += 1
        out = outputs[0]
        first = (0,) * out.dim()
        if self._name == "wrong-value":
            out[first] += 0.25
        elif self._name == "nan":
            out[first] = torch.nan
        elif self._name == "out-of-bounds":
            memory.zones[-1][0] = 0
        elif self._name == "nondeterministic":
            # By one unit in the last place, which the error rule allows; a run makes one call or two.
            towards = torch.inf if self._calls // 2 % 2 else -torch.inf
            out[first] = torch.nextafter(out[first], torch.tensor(towards, dtype=out.dtype))
        elif self._name == "hang":
            time.sleep(1e6)
        elif self._name == "abort":
            os.abort()
        elif self._name == "device-error":
            raise DeviceError("CUDA error: an illegal memory access was encountered (injected)")
        elif self._name == "out-of-memory":
            raise torch.OutOfMemoryError("the GPU has no memory left (injected)")
        return outputs
