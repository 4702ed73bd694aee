"""The CUDA backend: its library, availability and limits."""

import ctypes
import functools
import re

import torch

from qacg_kernels.call.problem import Problem, Residuals
from qacg_kernels.operators import self_check
from qacg_kernels.operators.autograd import define_first_calls, define_operators
from qacg_kernels.operators.schema import may_exceed
from qacg_kernels.utils.native_libraries import library, why_not_built, why_not_loadable
from qacg_kernels.utils.torch_internals import constant_when_traced

NAME = "cuda"
DEVICE = "cuda"  # the emulator's tests set it to "cpu"
DTYPES = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM, HEAD_DIM_STEP = 128, 8

OLDEST_CAPABILITY = (8, 0)  # the oldest GPUs with the instructions of csrc/cuda/mma.h

# For rows of at most this many keys the backward computes delta itself, and the forward saves no branch output
# (csrc/cuda/README.md).
WHOLE_ROW_KEYS = 128

_BUILD = "QACG_BUILD_CUDA=1 pip install --no-cache-dir ."

_missing: list[str] = []
# The functions of csrc/cuda/library_info.cu, and the GPUs that the library has code for.
_about: ctypes.CDLL | None = None
_gpus: tuple[str, ...] = ()
# Versions of CUDA, as 1000 * major + 10 * minor: the newest that the driver supports (0 without a driver), and the one
# that the library was compiled with.
_versions: tuple[int, int] = (0, 0)


def _load() -> None:
    path = library("_cuda")
    if path is None:
        _missing.append(f"the compiled CUDA library is missing: {why_not_built('_cuda')}")
    elif torch.version.cuda is None:
        _missing.append(f"torch {torch.__version__} was built without CUDA; install a CUDA build of torch")
    else:
        if reason := why_not_loadable():
            _missing.append(f"the compiled CUDA library is not used: {reason}")
            return
        try:
            torch.ops.load_library(path)
            _ask(ctypes.CDLL(str(path)))
            check_first_calls()
        except OSError as error:
            _missing.append(f"the compiled CUDA library does not load ({error}); build it again: {_BUILD}")
        except AttributeError as error:
            _missing.append(
                f"the compiled CUDA library is from another version of the package ({error}); build it again: {_BUILD}"
            )


def _ask(about: ctypes.CDLL) -> None:
    global _about, _gpus, _versions
    about.qacg_cuda_gpus.restype = ctypes.c_char_p
    about.qacg_cuda_check_first_calls.restype = None
    about.qacg_cuda_compiled_version.restype = about.qacg_cuda_driver_version.restype = ctypes.c_int32
    versions = (about.qacg_cuda_driver_version(), about.qacg_cuda_compiled_version())
    _about, _gpus, _versions = about, tuple(about.qacg_cuda_gpus().decode().split(":")), versions


def check_first_calls() -> None:
    """Turns on the self-check, which compares the first call of each kernel variant with the reference."""
    kernel = self_check.compiled(NAME, _about.qacg_cuda_check_first_calls)
    define_first_calls(NAME, kernel.first_call)


define_operators(NAME)
_load()


@functools.cache
def _gpu_is_there() -> bool:
    return torch.cuda.is_available()  # queries the driver


def missing() -> list[str]:
    if _missing or DEVICE != "cuda":
        return _missing
    if not _gpu_is_there():
        return ["torch finds no CUDA device or driver on this machine"]
    driver, compiled = _versions
    if driver // 1000 >= compiled // 1000:
        return []
    return [
        f"driver: expected one for CUDA {compiled // 1000}.0 or newer, since the CUDA library was compiled with "
        f"{_text(compiled)}, got one for {_text(driver)}. Update the driver, or compile the library with nvcc "
        f"{driver // 1000}: {_BUILD} in a checkout"
    ]


def _text(version: int) -> str:
    """A version of CUDA, e.g. "12.8" for 12080."""
    return f"{version // 1000}.{version % 1000 // 10}"


def not_for(device: torch.device) -> list[str]:
    return list(_no_code_on(device)) if DEVICE == "cuda" else []


def runs_on(gpu: str, capability: tuple[int, int]) -> bool:
    """Whether code for `gpu`, an entry of TORCH_CUDA_ARCH_LIST, runs on a GPU of this compute capability.

    Machine code for 8.0 runs on 8.x; code for 8.6 runs on 8.6 and later 8.x. An entry with +PTX also runs on every
    newer GPU, for which the driver translates the PTX. Code for 9.0a runs on 9.0 only, and code for 10.0f on 10.x;
    +PTX does not change this (CUDA C++ Programming Guide, feature sets of compute capabilities).
    """
    major, minor, features, ptx = re.fullmatch(r"(\d+)\.(\d+)([af]?)(\+PTX)?", gpu).groups()
    built = (int(major), int(minor))
    if features == "a":
        return capability == built
    same_family = capability[0] == built[0] and capability[1] >= built[1]
    return same_family or (ptx is not None and not features and capability >= built)


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@constant_when_traced
def _no_code_on(device: torch.device) -> tuple[str, ...]:
    """Returns a tuple with the reason why the library cannot run on a device; empty if it can."""
    return _no_code_for(capability(device), _gpus, *_versions)


@functools.cache
def _no_code_for(capability: tuple[int, int], gpus: tuple[str, ...], driver: int, compiled: int) -> tuple[str, ...]:
    number = ".".join(map(str, capability))
    build = f"to build it for this GPU, run TORCH_CUDA_ARCH_LIST={number} {_BUILD}"
    if capability < OLDEST_CAPABILITY:
        return (f"compute capability: expected 8.0 or newer, got {number}",)
    if any(runs_on(gpu.removesuffix("+PTX"), capability) for gpu in gpus):
        return ()
    if any(runs_on(gpu, capability) for gpu in gpus):
        # A driver runs the machine code of every compiler of its major version, but PTX of no newer compiler.
        if driver >= compiled:
            return ()
        return (
            f"driver: expected one for CUDA {_text(compiled)} or newer, since for compute capability {number} the CUDA "
            f"library has only PTX, which was compiled with {_text(compiled)}, got one for {_text(driver)}. Update the "
            f"driver; {build}",
        )
    return (f"the GPU has compute capability {number} and the library has code for {', '.join(gpus)}; {build}",)


def note(problem: Problem) -> None:
    """No remark: all calls run the same way."""


def residuals(problem: Problem) -> Residuals:
    return Residuals(save_softmax_out=may_exceed(problem.longest_row, WHOLE_ROW_KEYS), save_quasi_out=False)
