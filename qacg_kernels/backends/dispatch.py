"""The interface of a backend; selects the one that runs a call, and explains why the others do not run it."""

import os
import warnings
from dataclasses import dataclass
from typing import Protocol

import torch

from qacg_kernels.backends import cpu, cuda, reference, triton
from qacg_kernels.backends.triton import prepared
from qacg_kernels.call.problem import Problem, Residuals
from qacg_kernels.operators import self_check


class Backend(Protocol):
    """The members that a backend module has to define.

    A backend module also calls `operators.autograd.define_operators(NAME, ...)`. It supports packed sequences and all
    members of `call.problem.FORMS`.

    Attributes:
        NAME: the value of the argument `backend` that selects the backend.
    """

    NAME: str

    # Properties, because type checkers let a module declare a narrower type for read-only members only.
    @property
    def DTYPES(self) -> tuple[torch.dtype, ...]:
        """The supported dtypes of query."""

    @property
    def DEVICE(self) -> str | None:
        """The supported device type, "cpu" or "cuda"; None for all of them."""

    @property
    def MAX_HEAD_DIM(self) -> int | None:
        """The largest supported head size; None if there is no limit."""

    @property
    def HEAD_DIM_STEP(self) -> int:
        """Supported head sizes are multiples of this number."""

    def missing(self) -> list[str]:
        """Returns the reasons why this backend cannot run on this machine; empty if it can."""

    def not_for(self, device: torch.device) -> list[str]:
        """Returns the reasons why this backend cannot run on a device of its type; empty if it can."""

    def residuals(self, problem: Problem) -> Residuals:
        """Returns which branch outputs the forward must save, because the backend's backward reads them."""

    def note(self, problem: Problem) -> str | None:
        """A remark for `explain` on how the backend would compute a call; None if there is none."""


# In order of preference. To add a backend, write a module in `backends` and add it here.
_MODULES: tuple[Backend, ...] = (
    triton,
    cuda,
    cpu,
    reference,
)
_BY_NAME: dict[str, Backend] = {module.NAME: module for module in _MODULES}
AUTO = "auto"
BACKENDS = tuple(_BY_NAME)  # in order of preference
NAMES = (AUTO, *BACKENDS)

VARIABLE = "QACG_BACKEND"
# The meaning of "auto" in this process: QACG_BACKEND at import, or "auto" itself if it is unset or empty.
_ASKED_FOR = os.environ.get(VARIABLE) or AUTO
QUIET = "QACG_QUIET"
# `triton` is the first of _MODULES, so "auto" selects it wherever one of its calls has been prepared.
if triton.INSTALLED and not triton.interpreted() and prepared.why_not() is None:
    prepared.register("CUDA", auto=_ASKED_FOR in (AUTO, triton.NAME))


@dataclass(frozen=True)
class Explanation:
    """Which backend runs a call, and why the others do not; the result of `explain`.

    Attributes:
        selected: the backend that runs the call.
        reasons: for each backend, why it does not support the call; an empty list means that it does.
        notes: for backends that support the call, how they would compute it. Backends without a note are omitted.
        self_check: a line on how many kernel variants this process has compared with the reference on the call's
            device. None if it has compared none, which is normal on CPUs other than ARM.
    """

    selected: str
    reasons: dict[str, list[str]]
    notes: dict[str, str]
    self_check: str | None

    def __str__(self) -> str:
        lines = [f"{self.selected} runs this call"]
        for name, reasons in self.reasons.items():
            if reasons:
                lines.append(f"  {name} does not support it: {'; '.join(reasons)}")
            elif name != self.selected:
                lines.append(f"  {name} supports it")
        lines += [f"  note on {name}: {text}" for name, text in self.notes.items()]
        lines += [f"  self-check: {self.self_check}"] if self.self_check else []
        return "\n".join(lines)


def available_backends() -> tuple[str, ...]:
    """Lists the backends that can run on this machine.

    A listed backend may still not support a certain GPU or call; `explain` gives the reasons.

    Returns:
        The names in order of preference; the reference comes last.

    Example:
        >>> available_backends()[-1]
        'reference'
    """
    return tuple(name for name, module in _BY_NAME.items() if not module.missing())


def backend_of(name: str) -> Backend:
    """The module of the backend with this name, one of BACKENDS."""
    return _BY_NAME[name]


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
    return reasons + wrong_head_dim(backend, query.shape[-1])


def wrong_head_dim(backend: Backend, head_dim: int) -> list[str]:
    """Returns the limit on head sizes that `head_dim` exceeds; empty if the backend supports it."""
    largest, step = backend.MAX_HEAD_DIM, backend.HEAD_DIM_STEP
    if largest is None or (head_dim <= largest and head_dim % step == 0):
        return []
    expected = f"1 to {largest}" if step == 1 else f"a multiple of {step} up to {largest}"
    return [f"head size: expected {expected}, got {head_dim}"]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(names) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _reasons(module: Backend, problem: Problem) -> list[str]:
    return _limits(module, problem) or self_check.why_disabled(module.NAME, problem.query.device)


def _limits(module: Backend, problem: Problem) -> list[str]:
    # Without a failed self-check: a call that names a disabled backend runs its operators, which return the reference's
    # results, and a backward follows the forward's backend.
    return module.missing() or outside_limits(module, problem)


_selections: dict[tuple, Backend] = {}  # a cache, because making a selection takes several microseconds
_chosen: set[tuple[torch.device, str]] = set()  # devices, and backends that "auto" has selected for them


def select(problem: Problem, backend: str) -> Backend:
    """Selects the backend for a call: the named one, or with "auto" the preferred one that supports the call.

    If "auto" selects the reference for an eager call, warns once per process, unless QACG_QUIET is "1" or the tensors
    are on the meta device.

    Returns:
        The backend's module.

    Raises:
        TypeError: `backend` is not hashable, and so not a str.
        ValueError: the name is unknown.
        RuntimeError: the named backend does not support the call; the message has the reasons.
    """
    name = _ASKED_FOR if backend == AUTO else backend
    if torch.compiler.is_compiling():  # without the cache: torch.compile would trace the dictionary
        return _selection(problem, backend)
    query = problem.tensors.query
    key = name, query.device, query.dtype, query.shape[-1]
    try:
        module = _selections.get(key)
    except TypeError:  # a part of the key is not hashable
        if not isinstance(name, str):
            raise TypeError(f"backend: expected a str, got {backend!r}") from None
        return _selection(problem, backend)  # the head size is symbolic
    if module is None:
        module = _selections[key] = _selection(problem, backend)
    if name == AUTO:
        _chosen.add((key[1], module.NAME))
        if module is reference and not query.is_meta:
            _report_reference(problem)
    return module


def _selection(problem: Problem, backend: str) -> Backend:
    name = _ASKED_FOR if backend == AUTO else backend
    if name == AUTO:
        for module in _MODULES:
            if problem.query.device.type == module.DEVICE and not _reasons(module, problem):
                return module
        return reference
    source = VARIABLE if backend == AUTO else "backend"
    if name not in NAMES:
        raise ValueError(f"{source}: expected one of {', '.join(map(repr, NAMES))}, got {name!r}")
    why = _limits(_BY_NAME[name], problem)
    if why:
        raise RuntimeError(
            f"{source}: expected a backend that supports this call, got {name!r} ({'; '.join(why)}). "
            "Use 'auto', which selects one"
        )
    return _BY_NAME[name]


def explained(problem: Problem, backend: str) -> Explanation:
    """Returns the Explanation of a call; raises the errors of `select`, except for QACG_SELF_CHECK."""
    reasons = {name: _reasons(module, problem) for name, module in _BY_NAME.items()}
    supporting = (module for module in _MODULES if not reasons[module.NAME])
    notes = {module.NAME: text for module in supporting if (text := module.note(problem))}
    summary = self_check.summary(problem.query.device)
    return Explanation(_selection(problem, backend).NAME, reasons, notes, summary)


def forget() -> None:
    """Clears the cache of selections, when the self-check disables a backend and when a test changes one."""
    _selections.clear()


self_check.restarts["dispatch"] = forget


def chosen_so_far() -> dict[str, dict[str, object]]:
    """Returns, by device, the backends that "auto" has selected for eager calls, and the summary of self-checks."""
    return {
        str(device): {
            "backends": sorted(name for on, name in _chosen if on == device),
            "self_check": self_check.summary(device),
        }
        for device in sorted({device for device, _ in _chosen}, key=str)
    }


def _reasons_on(problem: Problem) -> str:
    # Only backends for the call's device: for a call on the CPU, the reasons of GPU backends are irrelevant.
    reasons = (
        f"{m.NAME}: {'; '.join(_reasons(m, problem))}" for m in _MODULES if problem.query.device.type == m.DEVICE
    )
    return "; ".join(reasons) or "no backend has fused kernels for this device"


_warned_of_reference = False
_USERS_LINE = 5  # frames from the warning up to the caller of `quasi_attention`


def _report_reference(problem: Problem) -> None:
    """Warns, once per process, that a call materialises its maps; on a GPU, raises if QACG_SELF_CHECK is "strict"."""
    global _warned_of_reference  # noqa: PLW0603
    if not _warned_of_reference and os.environ.get(QUIET) != "1":
        _warned_of_reference = True
        warnings.warn(
            "this call of quasi-attention runs in the PyTorch reference, which is slow and stores maps of size L x S "
            f"({_reasons_on(problem)}). This warning is printed once per process; {QUIET}=1 silences it",
            stacklevel=_USERS_LINE,
        )
    if problem.query.device.type == "cuda" and self_check.requested_mode() == self_check.STRICT:
        raise RuntimeError(
            f"{self_check.VARIABLE}=strict: expected a fused kernel for this call, got none "
            f'({_reasons_on(problem)}). Pass backend="reference", or set {self_check.VARIABLE}=first'
        )
