"""The compiled CUDA kernels: finding the library, and what they take."""

import torch

from qacg_kernels.libraries import library, why_not_built
from qacg_kernels.ops import may_exceed

# Read by dispatch: why "auto" passes this backend by. It goes when the whole suite has passed on a GPU
# (pytest --device cuda).
UNPROVEN = "its kernels have run in an emulator but on no GPU yet; choose it by name, backend='cuda'"

# Where the tensors must be. The emulator's tests set it to "cpu".
DEVICE = "cuda"

# Short rows: the backward finds delta by a pass of its own, so the forward saves no branch output for them
# (csrc/cuda/README.md).
WHOLE_ROW_KEYS = 128

_missing: list[str] = []


def _load() -> None:
    path = library("_cuda")
    if path is None:
        _missing.append(f"the compiled CUDA library is not there: {why_not_built('_cuda')}")
    elif torch.version.cuda is None:
        _missing.append(f"torch {torch.__version__} was built without CUDA; install a CUDA build of torch")
    else:
        try:
            torch.ops.load_library(path)
        except OSError as error:
            _missing.append(f"the compiled CUDA library does not load ({error}); torch 2.9 or newer is needed")


_load()


def missing() -> list[str]:
    """Why this backend is not on this machine; empty if it is."""
    if not _missing and DEVICE == "cuda" and not torch.cuda.is_available():
        return ["torch finds no CUDA device or driver on this machine"]
    return _missing


def unsupported(problem) -> list[str]:
    """Reasons why this backend would not take the call."""
    reasons = []
    query = problem.query
    if query.device.type != DEVICE:
        reasons.append(f"tensors are on {query.device}; move them to a CUDA device or choose another backend")
    if query.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        reasons.append(f"dtype is {query.dtype}; it takes float32, float16 and bfloat16")
    if problem.head_dim > 256:
        reasons.append(f"head size is {problem.head_dim}; it takes 1 to 256")
    return reasons


def residuals(problem) -> dict[str, bool]:
    """Which branch outputs the backward wants from the forward."""
    return {"save_softmax_out": may_exceed(problem.longest_row, WHOLE_ROW_KEYS), "save_quasi_out": False}
