"""What torch raises when a device has no memory left."""

from __future__ import annotations


def ran_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says so: a GPU's has a class of its own, that of the CPU a text."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
