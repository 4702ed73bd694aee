"""The Triton kernels with a tiled forward of their own for Hopper GPUs, in Gluon (gluon_forward.py): warps that copy
beside warps that compute. All else, the backward too, is the Triton backend's. Nothing here imports Triton.
"""

import functools
from importlib import metadata

import torch

from qacg_kernels.backends import triton
from qacg_kernels.operators.schema import register_kernels

NAME = "gluon"
NEEDS_SELF_CHECK = True
DEVICE = "cuda"

CAPABILITY = (9, 0)
MOST_HEAD_DIM = 128
_TYPES = (torch.float16, torch.bfloat16)
# What its forward is written for: wgmma's panels of 64 features.
_HEAD_DIMS = (64, 128)
_OLDEST_TRITON = (3, 6)  # as far back as it has been compiled


def _version_of_triton() -> tuple[int, ...]:
    """Its first two numbers; none where it is not installed."""
    try:
        return tuple(int(part) for part in metadata.version("triton").split(".")[:2])
    except metadata.PackageNotFoundError:
        return ()


# Asked once and here, as triton.missing does: a trace cannot look for packages.
_TRITON = _version_of_triton()


def missing() -> list[str]:
    """Why this backend is not on this machine; empty if it is."""
    if why := triton.missing():
        return why
    if triton.interpreted():
        return ["Gluon has no interpreter; unset TRITON_INTERPRET"]
    if _TRITON < _OLDEST_TRITON:
        return [f"Triton is {'.'.join(map(str, _TRITON))}; it takes 3.6 and newer"]
    if not _hopper_is_there():
        return ["torch sees no GPU of compute capability 9.0 (Hopper)"]
    return []


def not_for(device: torch.device) -> list[str]:
    """Why this backend takes no call on a device; empty if it takes some."""
    return list(_of_another_kind(device))


def unsupported(problem) -> list[str]:
    """Reasons why this backend would not take the call."""
    query = problem.query
    if query.device.type != DEVICE:
        return [f"tensors are on {query.device}; it takes those on an NVIDIA GPU"]
    reasons = not_for(query.device)
    if query.dtype not in _TYPES:
        reasons.append(f"dtype is {query.dtype}; it takes float16 and bfloat16")
    if problem.head_dim > MOST_HEAD_DIM:
        reasons.append(f"head size is {problem.head_dim}; it takes 1 to {MOST_HEAD_DIM}")
    return reasons


def without_gluon(dtype: torch.dtype, head_dim: int, masked: bool, dropout_p: float, column_gate: bool) -> str | None:
    """Why a call's forward is the Triton backend's; None if it is the one in Gluon, for rows that go by tiles."""
    if dtype not in _TYPES:
        return f"dtype is {dtype}, wanted float16 or bfloat16"
    if head_dim not in _HEAD_DIMS:
        return f"head size is {head_dim}, wanted 64 or 128"
    if masked:
        return "there is an attn_mask, wanted none"
    if dropout_p > 0:
        return "there is dropout, wanted none"
    if column_gate:
        return "there is a column gate, wanted a row gate or lambda"
    return None


def note(problem) -> str:
    """Which forward a call would take, and what the Triton backend says of its tiles."""
    masked = problem.attn_mask is not None
    why = without_gluon(problem.query.dtype, problem.head_dim, masked, problem.dropout_p, problem.column_gate)
    of_triton = triton.note(problem)
    if why:
        return f"as backend 'triton', without the forward in Gluon: {why} ({of_triton})"
    return f"rows that are not taken whole have their forward in Gluon; all else is that of 'triton' ({of_triton})"


residuals = triton.residuals


@functools.cache
def _hopper_is_there() -> bool:
    return any(torch.cuda.get_device_capability(n) == CAPABILITY for n in range(torch.cuda.device_count()))


@functools.cache
def _of_another_kind(device: torch.device) -> tuple[str, ...]:
    capability = torch.cuda.get_device_capability(device)
    if capability == CAPABILITY:
        return ()
    return (f"the GPU has compute capability {'.'.join(map(str, capability))}; it takes 9.0 alone",)


# Known when torch.compile traces the call: all that torch.compiler.assume_constant_result does, which would import
# the compiler.
_of_another_kind._dynamo_marked_constant = True
_hopper_is_there._dynamo_marked_constant = True


@functools.cache
def _host():
    """The module that launches, which imports Triton and Gluon."""
    from qacg_kernels.backends.triton import gluon_launch

    return gluon_launch


def _forward(*inputs, **options):
    return _host().forward(*inputs, **options)


register_kernels(NAME, _forward, triton.backward)
