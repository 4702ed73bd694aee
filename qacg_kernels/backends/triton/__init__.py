"""The Triton backend: its availability and limits. README.md in this folder describes the kernels.

Importing this module does not import Triton; the first call does. "Single-tile rows" are rows of attention entries that
are computed as one tile, because all their keys fit into it. Longer rows are "tiled rows".
"""

import functools
import importlib.util
import os

import torch

from qacg_kernels.backends.triton import prepared
from qacg_kernels.backends.triton.tile_tables import (
    HEAD_DIMS,
    MOST_HEAD_DIM,
    is_short,
    kind_of,
    longest_whole_rows,
    source_of,
    table_for,
)
from qacg_kernels.call.problem import ForwardOutputs, Gradients, Problem, Residuals, Saved
from qacg_kernels.operators.autograd import define_operators
from qacg_kernels.utils.torch_internals import constant_when_traced, is_exporting

NAME = "triton"
MAX_HEAD_DIM, HEAD_DIM_STEP = MOST_HEAD_DIM, 1

# Evaluated at import: Dynamo ignores functools.cache, and older versions of Dynamo cannot trace find_spec.
INSTALLED = importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


# The interpreter runs on CPU tensors. In some versions its bfloat16 products are wrong.
DEVICE = "cpu" if interpreted() else "cuda"
DTYPES = (torch.float16, torch.float32) if interpreted() else (torch.float16, torch.bfloat16, torch.float32)


@functools.cache
def _gpu_is_there() -> bool:
    return torch.cuda.is_available()  # also true for AMD GPUs if torch is built for ROCm


@constant_when_traced
@functools.cache
def _without_table(device: torch.device) -> tuple[str, ...]:
    """Returns a tuple with the reason why no tile table fits a GPU; empty if one fits."""
    try:
        table_for(device)
    except ValueError as error:
        return (str(error),)
    return ()


def missing() -> list[str]:
    if not INSTALLED:
        return ["triton is not installed; on Linux, run pip install 'triton>=3.6' (torch for CUDA installs its own)"]
    if not interpreted() and not _gpu_is_there():
        return ["torch sees no NVIDIA or AMD GPU; for tests, TRITON_INTERPRET=1 runs the kernels on CPU tensors"]
    return []


def not_for(device: torch.device) -> list[str]:
    return [] if interpreted() else list(_without_table(device))


def note(problem: Problem) -> str:
    why = None if interpreted() or prepared.in_use(problem.query.device) else prepared.why_not()
    by_python = f"; launched from Python, which takes the host longer: {why}" if why else ""
    return source_of(problem.query.device) + by_python


def residuals(problem: Problem) -> Residuals:
    """Single-tile rows require neither O1 nor O2. Tiled rows require both, or only O1 if the call has a column gate."""
    query = problem.query
    queries = problem.max_seqlen if problem.packed else query.shape[-2]
    kernel, bits = "whole_row_backward", 8 * query.dtype.itemsize
    limits = longest_whole_rows(query.device, kernel, bits, kind_of(problem))
    longest = next(limit for limit, head_dim in zip(limits, HEAD_DIMS) if problem.head_dim <= head_dim)
    # An exported program must support longer sequences than the example's, so it saves what tiled rows need.
    whole = not is_exporting() and is_short(kernel, queries, problem.longest_row, longest)
    return Residuals(save_softmax_out=not whole, save_quasi_out=not whole and not problem.column_gate)


def _forward(problem: Problem, residuals: Residuals) -> ForwardOutputs:
    from qacg_kernels.backends.triton import first_calls  # here, because it imports Triton

    return first_calls.forward(problem, residuals)


def _backward(problem: Problem, saved: Saved) -> Gradients:
    from qacg_kernels.backends.triton import first_calls

    return first_calls.backward(problem, saved)


define_operators(NAME, _forward, _backward)
