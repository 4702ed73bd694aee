"""The Gluon backend: a tiled forward for Hopper GPUs (gluon_forward.py) with warps that copy and warps that compute.

Everything else, including the backward, is the Triton backend's. Importing this module does not import Triton.
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
TAKES_PACKED = True
DEVICE = "cuda"
DTYPES = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 128
GATE_FORMS = triton.GATE_FORMS

CAPABILITY = (9, 0)
# Head sizes of the forward in Gluon, whose tiles consist of wgmma panels of 64 features.
_HEAD_DIMS = (64, 128)
_OLDEST_TRITON = (3, 6)  # the oldest version that has compiled the forward


def _version_of_triton() -> tuple[int, ...]:
    """Major and minor version of Triton; () if it is not installed."""
    try:
        return tuple(int(part) for part in metadata.version("triton").split(".")[:2])
    except metadata.PackageNotFoundError:
        return ()


# Evaluated at import: torch.compile cannot trace a search for packages.
_TRITON = _version_of_triton()


def missing() -> list[str]:
    """Why this backend is unavailable on this machine; empty if it is available."""
    if why := triton.missing():
        return why
    if triton.interpreted():
        return ["Gluon has no interpreter; unset TRITON_INTERPRET"]
    if _TRITON < _OLDEST_TRITON:
        return [f"Triton: expected 3.6 or newer, got {'.'.join(map(str, _TRITON))}"]
    if not _hopper_is_there():
        return ["torch sees no GPU of compute capability 9.0 (Hopper)"]
    return []


def not_for(device: torch.device) -> list[str]:
    """Returns the reasons why this backend cannot run on this device; empty if it can."""
    return list(_unsupported_capability(device))


def without_gluon(problem: Problem) -> str | None:
    """Why a call cannot use the forward in Gluon; None if it can, for its tiled rows."""
    if problem.query.dtype not in DTYPES:
        return f"dtype: expected float16 or bfloat16, got {problem.query.dtype}"
    if problem.head_dim not in _HEAD_DIMS:
        return f"head size: expected 64 or 128, got {problem.head_dim}"
    if problem.attn_mask is not None:
        return "attn_mask: expected None, got a mask"
    if problem.dropout_p > 0:
        return f"dropout_p: expected 0, got {problem.dropout_p}"
    if problem.column_gate:
        return "gate.form: expected 'row' or a lambda tensor, got 'column'"
    return None


def note(problem: Problem) -> str:
    """Which forward kernel a call would run, and where its tile sizes come from."""
    why = without_gluon(problem)
    tiles = triton.note(problem)
    if why:
        return f"as backend 'triton', without the forward in Gluon: {why} ({tiles})"
    return f"tiled rows run the forward in Gluon; all else is that of 'triton' ({tiles})"


residuals = triton.residuals


@constant_when_traced
@functools.cache
def _hopper_is_there() -> bool:
    if torch.version.hip:  # AMD's MI200 reports capability 9.0 too
        return False
    return any(torch.cuda.get_device_capability(n) == CAPABILITY for n in range(torch.cuda.device_count()))


@constant_when_traced
@functools.cache
def _unsupported_capability(device: torch.device) -> tuple[str, ...]:
    capability = torch.cuda.get_device_capability(device)
    if capability == CAPABILITY:
        return ()
    return (f"compute capability: expected 9.0, got {'.'.join(map(str, capability))}",)


@functools.cache
def _host():
    """Imports and returns the module `gluon_launch`, which imports Triton and Gluon."""
    from qacg_kernels.backends.triton import gluon_launch

    return gluon_launch


def _forward(problem: Problem, residuals: Residuals) -> ForwardOutputs:
    return _host().forward(problem, residuals)


define_operators(NAME, _forward, triton.backward)
