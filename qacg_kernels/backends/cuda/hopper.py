"""The Hopper backend: a tiled forward with wgmma for every length (csrc/cuda/hopper_forward.h).

The CUDA backend's other kernels run everything else, the backward included. In training `dispatch` runs Triton's
backward instead if Triton supports the call.
"""

import functools

import torch

from qacg_kernels.backends import cuda
from qacg_kernels.call.problem import Problem
from qacg_kernels.operators.autograd import define_operators
from qacg_kernels.utils.torch_internals import constant_when_traced

NAME = "hopper"
RANK = 10
AUTOMATIC = False
HAS_GPU_KERNELS = True
BACKWARD = "triton"  # with wgmma, unlike that of "cuda"
NEEDS_SELF_CHECK = True
TAKES_PACKED = True
DEVICE = "cuda"  # the emulator's tests set it to "cpu"
DTYPES = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 128
GATE_FORMS = cuda.GATE_FORMS

# The only compute capability that this backend supports.
CAPABILITY, _CODE = (9, 0), "9.0a"


def missing() -> list[str]:
    """Returns the reasons why this backend is unavailable on this machine; empty if it is available.

    Does not check the GPU's compute capability; `not_for` does.
    """
    if why := cuda.missing():
        return why
    if _CODE not in cuda.gpus():
        return [f"the compiled CUDA library has no code for {_CODE}; {cuda.how_to_build_for(_CODE)}"]
    return []


def not_for(device: torch.device) -> list[str]:
    """Returns the reasons why this backend cannot run on this device; empty if it can."""
    return list(_unsupported_capability(device)) if DEVICE == "cuda" else []


@constant_when_traced
@functools.cache
def _unsupported_capability(device: torch.device) -> tuple[str, ...]:
    capability = cuda.capability(device)
    if capability == CAPABILITY:
        return ()
    return (f"compute capability: expected 9.0, got {'.'.join(map(str, capability))}",)


def note(problem: Problem) -> str:
    """Whether the forward of a call uses wgmma, and how the backend 'cuda' would run the other passes of the call."""
    if why := cuda.why_plain(problem):
        return f"as backend 'cuda', without wgmma and the other tensor-core kernels: {why[0]}"
    return f"forward with wgmma, the rest as backend 'cuda' ({cuda.note(problem)})"


residuals = cuda.residuals

define_operators(NAME)
if cuda.is_loaded():
    cuda.check_first_calls(NAME, BACKWARD)
