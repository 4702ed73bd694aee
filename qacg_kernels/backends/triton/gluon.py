"""The Triton kernels with a tiled forward of their own for Hopper GPUs, in Gluon (gluon_forward.py): warps that copy
beside warps that compute. All else, the backward too, is the Triton backend's. Nothing here imports Triton.
"""

import functools
from importlib import metadata

import torch

from qacg_kernels.backends import triton
from qacg_kernels.call.problem import ForwardOutputs, Problem, Residuals
from qacg_kernels.operators.registry import define_operators
from qacg_kernels.utils.torch_internals import constant_when_traced

NAME = "gluon"
RANK = 20
AUTOMATIC = False
NEEDS_SELF_CHECK = True
DEVICE = "cuda"
DTYPES = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 128
GATE_FORMS = triton.GATE_FORMS

CAPABILITY = (9, 0)
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


def unsupported(problem: Problem) -> list[str]:
    return []


def without_gluon(problem: Problem) -> str | None:
    """Why a call's forward is the Triton backend's; None if it is the one in Gluon, for tiled rows."""
    if problem.query.dtype not in DTYPES:
        return f"dtype: expected float16 or bfloat16, got {problem.query.dtype}"
    if problem.head_dim not in _HEAD_DIMS:
        return f"head size: expected 64 or 128, got {problem.head_dim}"
    if problem.attn_mask is not None:
        return "attn_mask: expected none, got one"
    if problem.dropout_p > 0:
        return f"dropout_p: expected 0, got {problem.dropout_p}"
    if problem.column_gate:
        return "gate.form: expected 'row' or lambda, got 'column'"
    return None


def note(problem: Problem) -> str:
    """Which forward a call would take, and what the Triton backend says of its tiles."""
    why = without_gluon(problem)
    of_triton = triton.note(problem)
    if why:
        return f"as backend 'triton', without the forward in Gluon: {why} ({of_triton})"
    return f"rows that are not taken whole have their forward in Gluon; all else is that of 'triton' ({of_triton})"


residuals = triton.residuals


@constant_when_traced
@functools.cache
def _hopper_is_there() -> bool:
    return any(torch.cuda.get_device_capability(n) == CAPABILITY for n in range(torch.cuda.device_count()))


@constant_when_traced
@functools.cache
def _of_another_kind(device: torch.device) -> tuple[str, ...]:
    capability = torch.cuda.get_device_capability(device)
    if capability == CAPABILITY:
        return ()
    return (f"the GPU has compute capability {'.'.join(map(str, capability))}; it takes 9.0 alone",)


@functools.cache
def _host():
    """The module that launches, which imports Triton and Gluon."""
    from qacg_kernels.backends.triton import gluon_launch

    return gluon_launch


def _forward(problem: Problem, residuals: Residuals) -> ForwardOutputs:
    return _host().forward(problem, residuals)


define_operators(NAME, _forward, triton.backward)
