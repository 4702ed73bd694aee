"""The compiled CPU kernels: finding the library, and what they take."""

import ctypes
import os

import torch

from qacg_kernels.libraries import library, why_not_built, why_not_loadable
from qacg_kernels.ops import may_exceed

NAME = "cpu"
NEEDS_CERTIFICATE = False
DEVICE = "cpu"

# The backward holds rows of at most this many keys whole (csrc/cpu/forward.h, kSpan) and finds delta on the way, so
# the forward saves no branch output for them.
WHOLE_ROW_KEYS = 512

# What QACG_CPU_CAPABILITY may say: csrc/cpu/attention.cpp knows the same names.
CAPABILITIES = ("plain", "avx2", "avx512", "avx512_bf16", "amx")

_missing: list[str] = []
# The library, for its functions that are no operators; empty without it.
_loaded: list[ctypes.CDLL] = []


def _load() -> None:
    path = library("_cpu")
    if path is None:
        _missing.append(f"the compiled CPU library is not there: {why_not_built('_cpu')}")
        return
    reason = why_not_loadable(path) or _unknown_capability()
    if reason is None:
        try:
            torch.ops.load_library(path)
            functions = ctypes.CDLL(str(path))
            functions.qacg_cpu_instruction_set.restype = ctypes.c_char_p
            _loaded.append(functions)
        except (OSError, AttributeError) as error:
            reason = f"{error}; install the package again"
    if reason is not None:
        _missing.append(f"the compiled CPU library is not used: {reason}")


def _unknown_capability() -> str | None:
    wish = os.environ.get("QACG_CPU_CAPABILITY")
    if not wish or wish in CAPABILITIES:
        return None
    return f"QACG_CPU_CAPABILITY: got {wish!r}, wanted {', '.join(CAPABILITIES[:-1])} or {CAPABILITIES[-1]}"


_load()


def missing() -> list[str]:
    """Why this backend is not on this machine; empty if it is."""
    return _missing


def instruction_sets() -> dict[str, str]:
    """Kernel variant in use for each dtype, e.g. {"float32": "avx512", "bfloat16": "avx512_bf16"}.

    Raises:
        ValueError: QACG_CPU_CAPABILITY names none.
    """
    if reason := _unknown_capability():
        raise ValueError(reason)
    (functions,) = _loaded
    names = ("float32", "bfloat16")  # in the order of Element in csrc/cpu/problem.h
    return {name: functions.qacg_cpu_instruction_set(number).decode() for number, name in enumerate(names)}


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
