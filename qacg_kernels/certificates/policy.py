"""When kernels are proven: what the user asked for, and moments at which no process may be started."""

import os
import sys
import warnings

import torch

from qacg_kernels.backends import cpu

VARIABLE = "QACG_CERTIFY"
FIRST_USE, CACHED, OFF, REQUIRE = "first-use", "cached", "off", "require"
CHOICES = (FIRST_USE, CACHED, OFF, REQUIRE)
QUIET = "QACG_QUIET"

# A proof's processes take their own contexts and small tensors, about a gigabyte each.
LEAST_FREE_BYTES = 2 << 30


def asked_for() -> str:
    """The value of QACG_CERTIFY.

    Raises:
        ValueError: it is not one of CHOICES.
    """
    value = os.environ.get(VARIABLE, FIRST_USE)
    if value not in CHOICES:
        raise ValueError(f"{VARIABLE}: got {value!r}, wanted one of {', '.join(map(repr, CHOICES))}")
    return value


def is_quiet() -> bool:
    return os.environ.get(QUIET) == "1"


_told = False


def tell_of_the_reference(reasons: dict[str, str], stacklevel: int) -> None:
    """Warns, once in a process, that a call stores its maps where a fused kernel could have taken it.

    Args:
        reasons: why each of the fused kernels did not.
        stacklevel: how many callers up the user's line is, as for warnings.warn.
    """
    global _told  # noqa: PLW0603
    if _told or is_quiet():
        return
    _told = True
    told = "; ".join(f"{name}: {why}" for name, why in reasons.items()) or "no fused kernel is for such a device"
    warnings.warn(
        f"this call of quasi-attention runs through the PyTorch reference, which is slow and stores maps of size L x S "
        f"({told}). Said once; {QUIET}=1 silences it",
        stacklevel=stacklevel + 1,
    )


def why_not_at_this_moment(device: torch.device) -> str | None:
    """What passes by itself and keeps a proof from being begun; None where nothing does."""
    if device.type == "cuda" and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return None


def free_bytes(device: torch.device) -> int:
    """Memory of a GPU that is free, as far as can be told without taking a context there.

    On a GPU in exclusive mode this process's context would keep out those that prove.
    """
    if torch.cuda.memory_reserved(device):
        return torch.cuda.mem_get_info(device)[0]
    return torch.cuda.get_device_properties(device).total_memory


def what_is_lacking(device: torch.device) -> str | None:
    """What a proof on a device would need and does not have; None where it has all."""
    on_cpu = device.type == "cpu" and cpu.NEEDS_CERTIFICATE
    if not on_cpu and (device.type != "cuda" or not torch.cuda.is_available()):
        return "torch finds no GPU for it"
    if not sys.executable:
        return "this Python is embedded and cannot start another"
    if on_cpu:
        return None
    free = free_bytes(device)
    if free < LEAST_FREE_BYTES:
        return f"{free / 2**30:.1f} GiB of the GPU's memory are free, and a proof takes {LEAST_FREE_BYTES >> 30}"
    return None
