"""The CUDA library with a forward of its own for Hopper GPUs (csrc/cuda/hopper_forward.h): the tiled one for every
length, by the instructions that multiply matrices four warps at a time. All else is the CUDA backend's.
"""

import functools

import torch

from qacg_kernels import self_check
from qacg_kernels.backends import cuda
from qacg_kernels.call.problem import Problem
from qacg_kernels.operators.registry import define_operators
from qacg_kernels.utils.torch_internals import constant_when_traced

NAME = "hopper"
RANK = 10
AUTOMATIC = False
NEEDS_SELF_CHECK = True
DEVICE = "cuda"  # the emulator's tests set it to "cpu"
DTYPES = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 128
GATE_FORMS = cuda.GATE_FORMS

# Code for it is for this compute capability alone.
CAPABILITY, _CODE = (9, 0), "9.0a"


def missing() -> list[str]:
    """Why this backend is not on this machine; empty if it is."""
    if why := cuda.missing():
        return why
    if _CODE not in cuda.gpus():
        return [f"the compiled CUDA library has no code for {_CODE}; {cuda.how_to_build_for(_CODE)}"]
    return []


def not_for(device: torch.device) -> list[str]:
    """Why this backend takes no call on a device; empty if it takes some."""
    return list(_of_another_kind(device)) if DEVICE == "cuda" else []


def unsupported(problem: Problem) -> list[str]:
    return []


@constant_when_traced
@functools.cache
def _of_another_kind(device: torch.device) -> tuple[str, ...]:
    capability = cuda.capability(device)
    if capability == CAPABILITY:
        return ()
    return (f"the GPU has compute capability {'.'.join(map(str, capability))}; it takes 9.0 alone",)


def note(problem: Problem) -> str:
    """Which forward a call would take, and what the CUDA backend says of its backward."""
    of_cuda = cuda.note(problem)
    if why := cuda.why_plain(problem):
        return f"as backend 'cuda', without Hopper's instructions, which want what other tensor cores want: {why[0]}"
    return f"forward by Hopper's own instructions; the backward is that of backend 'cuda' ({of_cuda})"


residuals = cuda.residuals

define_operators(NAME)
if cuda.is_loaded():
    self_check.guard_compiled(NAME, row_max_of_empty=float("-inf"))
