"""The Triton kernels: finding Triton and a GPU for them, and what they take. README.md in this folder has the rules.

Nothing here imports Triton: the first call that is run does.
"""

import functools
import importlib.util
import os

import torch

from qacg_kernels.backends.triton.tile_tables import (
    HEAD_DIMS,
    MOST_HEAD_DIM,
    is_busy,
    is_short,
    longest_whole_rows,
    source_of,
)
from qacg_kernels.operators.schema import register_kernels

NAME = "triton"
NEEDS_SELF_CHECK = True
DEVICE = "cuda"  # the interpreter works on the CPU's tensors

_OLDEST_CAPABILITY = (8, 0)
# Asked once and here: Dynamo passes a function's cache by, and older ones cannot trace what looks for a package.
_INSTALLED = importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _gpu_is_there() -> bool:
    return torch.cuda.is_available() and torch.version.hip is None


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def missing() -> list[str]:
    """Why this backend is not on this machine; empty if it is."""
    if not _INSTALLED:
        return ["triton is not installed: on Linux, pip install 'triton>=3.5' (torch for CUDA brings its own)"]
    if not interpreted() and not _gpu_is_there():
        return ["torch sees no NVIDIA GPU; for tests, TRITON_INTERPRET=1 runs the kernels on CPU tensors"]
    return []


def not_for(device: torch.device) -> list[str]:
    """Why this backend takes no call on a device; empty if it takes some."""
    if interpreted() or _capability(device) >= _OLDEST_CAPABILITY:
        return []
    major, minor = _capability(device)
    return [f"the GPU has compute capability {major}.{minor}; it takes 8.0 and newer"]


def unsupported(problem) -> list[str]:
    """Reasons why this backend would not take the call."""
    reasons = []
    query = problem.query
    wanted = "cpu" if interpreted() else "cuda"
    if query.device.type != wanted:
        where = "the CPU, where the interpreter works" if interpreted() else "an NVIDIA GPU"
        reasons.append(f"tensors are on {query.device}; it takes those on {where}")
    else:
        reasons += not_for(query.device)
    if query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        reasons.append(f"dtype is {query.dtype}; it takes float16, bfloat16 and float32")
    elif interpreted() and query.dtype == torch.bfloat16:
        reasons.append("dtype is bfloat16, whose products some interpreters get wrong; it takes float16 and float32")
    if problem.head_dim > MOST_HEAD_DIM:
        reasons.append(f"head size is {problem.head_dim}; it takes 1 to {MOST_HEAD_DIM}")
    return reasons


def note(problem) -> str:
    """Which tiles a call would take."""
    return source_of(problem.query.device)


def residuals(problem) -> dict[str, bool]:
    """Which branch outputs the backward wants from the forward: none for rows that it takes whole."""
    query = problem.query
    queries = problem.max_seqlen if problem.packed else query.shape[-2]
    kernel, bits = "whole_row_backward", 8 * query.dtype.itemsize
    # Literals: torch.compile may trace dropout_p as a symbol, and what it marks as constant takes no symbolic bool.
    if is_busy(problem.attn_mask is not None, problem.dropout_p, problem.column_gate):
        limits = longest_whole_rows(query.device, kernel, bits, True)
    else:
        limits = longest_whole_rows(query.device, kernel, bits, False)
    longest = next(limit for limit, head_dim in zip(limits, HEAD_DIMS) if problem.head_dim <= head_dim)
    # An exported program must not be bound to the lengths of its example: it may meet any, and saves for the longest.
    whole = not torch.compiler.is_exporting() and is_short(kernel, queries, problem.longest_row, longest)
    return {"save_softmax_out": not whole, "save_quasi_out": not whole and not problem.column_gate}


@functools.cache
def _host():
    """The module that launches, which imports Triton."""
    from qacg_kernels.backends.triton import launch

    return launch


def _forward(*inputs, **options):
    return _host().forward(*inputs, **options)


def backward(*inputs, **options):
    """Kernel of qacg::triton_attention_backward."""
    return _host().backward(*inputs, **options)


register_kernels("triton", _forward, backward)
