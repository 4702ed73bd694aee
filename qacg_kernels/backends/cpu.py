"""The compiled CPU kernels: their library and their limits."""

import ctypes
import os
import platform
import statistics

import torch

from qacg_kernels.call.problem import Problem, Residuals
from qacg_kernels.operators import self_check
from qacg_kernels.operators.autograd import define_first_calls, define_operators
from qacg_kernels.operators.schema import NAMESPACE, may_exceed
from qacg_kernels.utils.native_libraries import library, why_not_built, why_not_loadable

NAME = "cpu"
_IS_AARCH64 = platform.machine().lower() in ("aarch64", "arm64")
# The kernels for ARM have run in an emulator only.
NEEDS_SELF_CHECK = _IS_AARCH64
DEVICE = "cpu"
# In the order of Element in csrc/cpu/problem.h.
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_DIM, HEAD_DIM_STEP = 256, 1

# For rows of at most this many keys (kSpan in csrc/cpu/forward.h) the backward computes delta from the whole row. The
# forward then saves no branch output.
WHOLE_ROW_KEYS = 512

# The values of QACG_CPU_CAPABILITY, as in csrc/cpu/capability.cpp.
CAPABILITIES = ("plain", "avx2", "avx512", "avx512_bf16", "amx")
if _IS_AARCH64:
    CAPABILITIES = ("neon", "neon_bf16")

# Kinds of products whose rate the library measures, in the order of product_rate in csrc/cpu/capability.cpp.
PRODUCTS = ("fma", "vdpbf16ps", "amx")
_BURSTS = 9  # odd, for the median

_missing: list[str] = []


def _load() -> ctypes.CDLL | None:
    """Loads the library and registers its kernels with torch.

    Returns None if this fails, and adds the reason to `_missing`.
    """
    path = library("_cpu")
    if path is None:
        _missing.append(f"the compiled CPU library is missing: {why_not_built('_cpu')}")
        return None
    reason = why_not_loadable() or _unknown_capability()
    if reason is None:
        try:
            loaded = ctypes.CDLL(str(path))
            for name in ("qacg_cpu_instruction_set", "qacg_cpu_why"):
                getattr(loaded, name).restype = ctypes.c_char_p
            loaded.qacg_cpu_check_first_calls.restype = None
            loaded.qacg_cpu_product_rate.restype = ctypes.c_double
            loaded.qacg_cpu_register(NAMESPACE.encode())
            return loaded
        except (OSError, AttributeError) as error:
            reason = f"{error}. Reinstall qacg-kernels"
    _missing.append(f"the compiled CPU library is not used: {reason}")
    return None


def _unknown_capability() -> str | None:
    wish = os.environ.get("QACG_CPU_CAPABILITY")
    if not wish or wish in CAPABILITIES:
        return None
    return f"QACG_CPU_CAPABILITY: expected {', '.join(CAPABILITIES[:-1])} or {CAPABILITIES[-1]}, got {wish!r}"


define_operators(NAME)
_library = _load()


def check_first_calls() -> None:
    """Turns on the self-check, which compares the first call of each kernel variant with the reference."""
    assert _library is not None, "the compiled CPU library is missing"
    kernel = self_check.compiled(NAME, _library.qacg_cpu_check_first_calls)
    define_first_calls(NAME, kernel.first_call)


if NEEDS_SELF_CHECK and _library is not None:
    check_first_calls()


def missing() -> list[str]:
    return _missing


def instruction_sets() -> dict[str, str]:
    """The instruction set of the kernels by dtype, e.g. {"float32": "avx512", ...}; requires the library."""
    return {name: variant for name, (variant, _) in _choices().items()}


def reasons_of_choice() -> dict[str, str]:
    """Why the kernels use the instruction set that `instruction_sets` names, by dtype; requires the library."""
    return {name: why for name, (_, why) in _choices().items()}


def product_rates() -> dict[str, float]:
    """GFLOP/s of one thread now, by the instruction of PRODUCTS, within a few milliseconds; operands are in registers.

    Instructions that the processor lacks are missing, and without AVX-512 BF16 or the library the result is empty.
    """
    if _library is None:
        return {}
    rates = {
        name: statistics.median(_library.qacg_cpu_product_rate(kind) for _ in range(_BURSTS))
        for kind, name in enumerate(PRODUCTS)
    }
    return {name: rate for name, rate in rates.items() if rate}


def _choices() -> dict[str, tuple[str, str]]:
    assert _library is not None, "the compiled CPU library is missing"
    found = {}
    for element, name in enumerate(str(dtype).removeprefix("torch.") for dtype in DTYPES):
        variant, why = _library.qacg_cpu_instruction_set(element), _library.qacg_cpu_why(element).decode()
        if variant is None:
            raise ValueError(why)
        found[name] = variant.decode(), why
    return found


def not_for(device: torch.device) -> list[str]:
    return []


def residuals(problem: Problem) -> Residuals:
    return Residuals(save_softmax_out=may_exceed(problem.longest_row, WHOLE_ROW_KEYS), save_quasi_out=False)


def note(problem: Problem) -> str:
    return "{}: {}".format(*_choices()[str(problem.query.dtype).removeprefix("torch.")])
