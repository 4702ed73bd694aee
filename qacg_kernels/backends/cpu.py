"""The compiled CPU kernels: finding the library, and what they take."""

import torch

from qacg_kernels.libraries import library, why_not_built
from qacg_kernels.ops import may_exceed

NAME = "cpu"
NEEDS_CERTIFICATE = False
DEVICE = "cpu"

# The backward holds rows of at most this many keys whole (csrc/cpu/forward.h, kSpan) and finds delta on the way, so
# the forward saves no branch output for them.
WHOLE_ROW_KEYS = 512

_missing: list[str] = []


def _load() -> None:
    path = library("_cpu")
    if path is None:
        _missing.append(f"the compiled CPU library is not there: {why_not_built('_cpu')}")
        return
    try:
        torch.ops.load_library(path)
    except OSError as error:
        built_for = f"rebuild it against torch {torch.__version__}: pip install --no-build-isolation -e ."
        _missing.append(f"the compiled CPU library does not load ({error}); {built_for}")


_load()


def missing() -> list[str]:
    """Why this backend is not on this machine; empty if it is."""
    return _missing


def instruction_sets() -> dict[str, str]:
    """Kernel variant in use for each dtype, e.g. {"float32": "avx512", "bfloat16": "avx512_bf16"}."""
    return {
        name: torch.ops.qacg.cpu_instruction_set(dtype)
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
    }


def unsupported(problem) -> list[str]:
    """Reasons why this backend would not take the call."""
    reasons = []
    query = problem.query
    if query.device.type != "cpu":
        reasons.append(f"tensors are on {query.device}; move them to the CPU or choose another backend")
    if query.dtype not in (torch.float32, torch.bfloat16):
        reasons.append(f"dtype is {query.dtype}; it takes float32 and bfloat16")
    if problem.head_dim > 256:
        reasons.append(f"head size is {problem.head_dim}; it takes 1 to 256")
    return reasons


def residuals(problem) -> dict[str, bool]:
    """Which branch outputs the backward wants from the forward."""
    return {"save_softmax_out": may_exceed(problem.longest_row, WHOLE_ROW_KEYS), "save_quasi_out": False}


def note(problem) -> str | None:
    """Nothing that a user would have to know."""
    return None
