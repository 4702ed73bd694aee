"""The interface that the backend modules in this folder implement."""

from typing import Protocol

import torch

from qacg_kernels.call.problem import Problem, Residuals


class Backend(Protocol):
    """The members that a backend module has to define.

    A backend module also calls `operators.registry.define_operators(NAME, ...)`.

    Attributes:
        NAME: the value of the argument `backend` that selects the backend.
        RANK: the backend's place in the order of preference. "auto" uses the AUTOMATIC backend with the lowest rank
            that supports the call, unless `python -m qacg_kernels.tune` measured another backend to be the fastest.
        AUTOMATIC: whether "auto" may use the backend without such a measurement.
        HAS_GPU_KERNELS: whether `qacg_kernels.tune` measures the backend on a GPU.
        BACKWARD: the name of another backend whose backward runs after this backend's forward, if that backend supports
            the call. It has to be able to read the tensors that the forward saves. None for the backend's own backward.
        NEEDS_SELF_CHECK: whether the backend's operators compare the first call of each kernel variant with the
            reference, because the tests lack the hardware for its kernels.
        DTYPES: the supported dtypes of query.
        MAX_HEAD_DIM: the largest supported head size; None if there is no limit.
        GATE_FORMS: the supported members of `call.problem.FORMS`.
        TAKES_PACKED: whether the backend supports packed sequences.
    """

    NAME: str
    RANK: int
    AUTOMATIC: bool
    HAS_GPU_KERNELS: bool
    NEEDS_SELF_CHECK: bool
    TAKES_PACKED: bool

    # Properties, because type checkers let a module declare a narrower type for read-only members only.
    @property
    def DTYPES(self) -> tuple[torch.dtype, ...]: ...

    @property
    def GATE_FORMS(self) -> tuple[str, ...]: ...

    @property
    def DEVICE(self) -> str | None:
        """The supported device type, "cpu" or "cuda"; None for all of them."""

    @property
    def BACKWARD(self) -> str | None: ...

    @property
    def MAX_HEAD_DIM(self) -> int | None: ...

    def missing(self) -> list[str]:
        """Returns the reasons why this backend cannot run on this machine; empty if it can."""

    def not_for(self, device: torch.device) -> list[str]:
        """Returns the reasons why this backend cannot run on a device of its type; empty if it can."""

    def residuals(self, problem: Problem) -> Residuals:
        """Returns which branch outputs the forward must save, because the backend's backward reads them."""

    def note(self, problem: Problem) -> str | None:
        """A remark for `explain` on how the backend would compute a call; None if there is none."""


def outside_limits(backend: Backend, problem: Problem) -> list[str]:
    """Returns the limits of a backend that a call exceeds, one line each; empty if the backend supports the call.

    `dispatch.select` caches its selections, so limits may depend only on values that are in its cache key.
    """
    query, reasons = problem.query, []
    if backend.DEVICE is not None and query.device.type != backend.DEVICE:
        reasons.append(f"device: expected {backend.DEVICE}, got {query.device}")
    else:
        reasons += backend.not_for(query.device)
    if query.dtype not in backend.DTYPES:
        reasons.append(f"dtype: expected {_listed(map(_name, backend.DTYPES))}, got {_name(query.dtype)}")
    if backend.MAX_HEAD_DIM is not None and query.shape[-1] > backend.MAX_HEAD_DIM:
        reasons.append(f"head size: expected 1 to {backend.MAX_HEAD_DIM}, got {query.shape[-1]}")
    if problem.gate_form not in backend.GATE_FORMS:
        reasons.append(f"gate.form: expected {_listed(map(repr, backend.GATE_FORMS))}, got {problem.gate_form!r}")
    if problem.packed and not backend.TAKES_PACKED:
        reasons.append("cu_seqlens: expected None, got packed sequences")
    return reasons


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(names) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
