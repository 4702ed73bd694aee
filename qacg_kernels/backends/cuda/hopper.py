"""The CUDA library with a forward of its own for Hopper GPUs (csrc/cuda/hopper_forward.h): the tiled one for every
length, by the instructions that multiply matrices four warps at a time. All else is the CUDA backend's.
"""

import functools

import torch

from qacg_kernels.backends import cuda

NAME = "hopper"
NEEDS_SELF_CHECK = True
# Where the tensors must be. The emulator's tests set it to "cpu".
DEVICE = "cuda"

# Code for it is for this compute capability alone.
CAPABILITY, _CODE = (9, 0), "9.0a"
_TYPES = (torch.float16, torch.bfloat16)
MOST_HEAD_DIM = 128


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


def unsupported(problem) -> list[str]:
    """Reasons why this backend would not take the call."""
    query = problem.query
    if query.device.type != DEVICE:
        return [f"tensors are on {query.device}; move them to a CUDA device or choose another backend"]
    reasons = not_for(query.device)
    if query.dtype not in _TYPES:
        reasons.append(f"dtype is {query.dtype}; it takes float16 and bfloat16")
    if problem.head_dim > MOST_HEAD_DIM:
        reasons.append(f"head size is {problem.head_dim}; it takes 1 to {MOST_HEAD_DIM}")
    return reasons


@functools.cache
def _of_another_kind(device: torch.device) -> tuple[str, ...]:
    capability = cuda.capability(device)
    if capability == CAPABILITY:
        return ()
    return (f"the GPU has compute capability {'.'.join(map(str, capability))}; it takes 9.0 alone",)


# Known when torch.compile traces the call: all that torch.compiler.assume_constant_result does, which would import
# the compiler.
_of_another_kind._dynamo_marked_constant = True


def note(problem) -> str:
    """Which forward a call would take, and what the CUDA backend says of its backward."""
    of_cuda = cuda.note(problem)
    if why := cuda.why_plain(problem):
        return f"as backend 'cuda', without Hopper's instructions, which want what other tensor cores want: {why[0]}"
    return f"forward by Hopper's own instructions; the backward is that of backend 'cuda' ({of_cuda})"


residuals = cuda.residuals
