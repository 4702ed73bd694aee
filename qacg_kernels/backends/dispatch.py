"""The interface of a backend; selects the one that runs a call, and explains why the others do not run it."""

import functools
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from qacg_kernels.backends import cpu, cuda, reference, triton
from qacg_kernels.backends.triton import tile_tables
from qacg_kernels.call.problem import Problem, Residuals
from qacg_kernels.operators import autograd, self_check
from qacg_kernels.utils import torch_internals


class Backend(Protocol):
    """The members that a backend module has to define.

    A backend module also calls `operators.autograd.define_operators(NAME, ...)`.

    Attributes:
        NAME: the value of the argument `backend` that selects the backend.
        RANK: the backend's place in the order of preference. "auto" uses the AUTOMATIC backend with the lowest rank
            that supports the call, unless `python -m qacg_kernels.tune` measured another backend to be the fastest.
        AUTOMATIC: whether "auto" may use the backend without such a measurement.
        HAS_GPU_KERNELS: whether `qacg_kernels.tune` measures the backend on a GPU.
        NEEDS_SELF_CHECK: whether the backend's operators compare the first call of each kernel variant with the
            reference, because the tests lack the hardware for its kernels.
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
    def DTYPES(self) -> tuple[torch.dtype, ...]:
        """The supported dtypes of query."""

    @property
    def GATE_FORMS(self) -> tuple[str, ...]:
        """The supported members of `call.problem.FORMS`."""

    @property
    def DEVICE(self) -> str | None:
        """The supported device type, "cpu" or "cuda"; None for all of them."""

    @property
    def BACKWARD(self) -> str | None:
        """The name of another backend whose backward runs after this backend's forward, if it supports the call.

        It has to be able to read the tensors that the forward saves. None for the backend's own backward.
        """

    @property
    def MAX_HEAD_DIM(self) -> int | None:
        """The largest supported head size; None if there is no limit."""

    def missing(self) -> list[str]:
        """Returns the reasons why this backend cannot run on this machine; empty if it can."""

    def not_for(self, device: torch.device) -> list[str]:
        """Returns the reasons why this backend cannot run on a device of its type; empty if it can."""

    def residuals(self, problem: Problem) -> Residuals:
        """Returns which branch outputs the forward must save, because the backend's backward reads them."""

    def note(self, problem: Problem) -> str | None:
        """A remark for `explain` on how the backend would compute a call; None if there is none."""


# To add a backend, write a module in `backends` and add it here.
_REGISTERED: tuple[Backend, ...] = (
    cpu,
    cuda,
    reference,
    triton,
)
_MODULES = tuple(sorted(_REGISTERED, key=lambda module: module.RANK))
_BY_NAME: dict[str, Backend] = {module.NAME: module for module in _MODULES}
AUTO = "auto"
BACKENDS = tuple(_BY_NAME)  # in order of preference
NAMES = (AUTO, *BACKENDS)
tile_tables.gpu_backends = tuple(module.NAME for module in _MODULES if module.HAS_GPU_KERNELS)

VARIABLE = "QACG_BACKEND"
# The meaning of "auto" in this process: QACG_BACKEND at import, or "auto" itself if it is unset or empty.
_ASKED_FOR = os.environ.get(VARIABLE) or AUTO
QUIET = "QACG_QUIET"


_SELECTED, _PASSED_BY, _NOTES = "selected", "passed by auto", "notes"


@dataclass(frozen=True)
class Explanation(Mapping[str, list[str]]):
    """Which backend runs a call, and why the others do not; the result of `explain`.

    The object is also a mapping from names to lists of text: the name of a backend gives its `reasons`; "selected",
    "passed by auto" and "notes" give `selected`, `passed_by` and `notes`. `self_check` has no key.

    Attributes:
        selected: the backend that runs the call.
        reasons: for each backend, why it does not support the call; an empty list means that it does.
        passed_by: for each GPU backend that supports the call but that "auto" does not prefer, the reason.
        notes: for backends that support the call, how they would compute it. Backends without a note are omitted.
        self_check: a line on how many kernel variants this process has compared with the reference on the call's
            device. None if it has compared none, which is normal on CPUs other than ARM.
    """

    selected: str
    reasons: dict[str, list[str]]
    passed_by: dict[str, str]
    notes: dict[str, str]
    self_check: str | None

    def __getitem__(self, name: str) -> list[str]:
        if name in self.reasons:
            return self.reasons[name]
        others = {
            _SELECTED: [self.selected],
            _PASSED_BY: [f"{backend}: {why}" for backend, why in self.passed_by.items()],
            _NOTES: [f"{backend}: {text}" for backend, text in self.notes.items()],
        }
        return others[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.reasons, _SELECTED, _PASSED_BY, _NOTES))

    def __len__(self) -> int:
        return len(self.reasons) + 3

    def __str__(self) -> str:
        lines = [f"{self.selected} runs this call"]
        for name, reasons in self.reasons.items():
            if reasons:
                lines.append(f"  {name} does not support it: {'; '.join(reasons)}")
            elif name in self.passed_by:
                lines.append(f"  {name} supports it, but auto does not use it: {self.passed_by[name]}")
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


def reasons_against(problem: Problem) -> dict[str, list[str]]:
    """For each backend name, why it does not support `problem`; an empty list means that it does."""
    return {name: _reasons(module, problem) for name, module in _BY_NAME.items()}


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


def _reasons(module: Backend, problem: Problem) -> list[str]:
    return _limits(module, problem) or self_check.why_disabled(module.NAME, problem.query.device)


def _limits(module: Backend, problem: Problem) -> list[str]:
    # Without a failed self-check: a call that names a disabled backend runs its operators, which return the reference's
    # results, and a backward follows the forward's backend.
    return module.missing() or outside_limits(module, problem)


# Pairs (N, the backend for calls with rows of at most N keys), by rising N. The last pair has no limit.
_Selection = tuple[tuple[int, Backend], ...]
_selections: dict[tuple, _Selection] = {}  # a cache, because making a selection takes several microseconds
_chosen: set[tuple[torch.device, str]] = set()  # devices, and backends that "auto" has selected for them


def select(problem: Problem, backend: str, differentiable: bool) -> Backend:
    """Selects the backend for a call: the named one, or with "auto" the preferred one that supports the call.

    If "auto" selects the reference for an eager call, warns once per process, unless QACG_QUIET is "1" or the tensors
    are on the meta device.

    Args:
        problem: the call.
        backend: the name of a backend, or "auto", which QACG_BACKEND can replace by a name.
        differentiable: whether a backward pass may follow; `tune` measures such calls and other calls separately.

    Returns:
        The backend's module.

    Raises:
        TypeError: `backend` is not hashable, and so not a str.
        ValueError: the name, or the value of QACG_BACKEND or QACG_SELF_CHECK, is unknown.
        RuntimeError: the named backend does not support the call; the message has the reasons. Or "auto" would select
            the reference on a GPU, and QACG_SELF_CHECK is "strict".
    """
    name = _ASKED_FOR if backend == AUTO else backend
    if torch.compiler.is_compiling():  # without the cache: torch.compile would trace the dictionary
        return _of_length(_selection(problem, backend, name, differentiable), problem)
    query = problem.tensors.query
    kind = problem.tensors.cu_seqlens is None, problem.options.gate_form, differentiable
    key = name, query.device, query.dtype, query.shape[-1], *kind
    try:
        selection = _selections.get(key)
    except TypeError:  # a part of the key is not hashable
        if not isinstance(name, str):
            raise TypeError(f"backend: expected a str, got {backend!r}") from None
        return _of_length(_selection(problem, backend, name, differentiable), problem)  # the head size is symbolic
    if selection is None:
        selection = _selections[key] = _selection(problem, backend, name, differentiable)
    module = _of_length(selection, problem)
    if name == AUTO:
        _chosen.add((key[1], module.NAME))
        if module is reference and not query.is_meta:
            _report_reference(problem)
    return module


def backward_of(module: Backend, problem: Problem) -> Backend:
    """Returns the backend that runs the backward after a forward of `module`.

    The forward saves what the `residuals` of that backend request.
    """
    if module.BACKWARD is None:
        return module
    other = _BY_NAME[module.BACKWARD]
    return module if _limits(other, problem) else other


def residuals(module: Backend, problem: Problem) -> Residuals:
    """Which branch outputs a forward of `module` saves for the backward that follows it."""
    return backward_of(module, problem).residuals(problem)


def _name_of_backward(module: Backend, problem: Problem) -> str:
    return backward_of(module, problem).NAME


for _module in _MODULES:
    if _module.BACKWARD is not None:
        autograd.choose_backward[_module.NAME] = functools.partial(_name_of_backward, _module)


def forget() -> None:
    """Clears the cache of selections, when the self-check disables a backend and when a test changes one."""
    _selections.clear()


self_check.restarts["dispatch"] = forget


def _of_length(selection: _Selection, problem: Problem) -> Backend:
    *shorter, (_, last) = selection
    for longest, module in shorter:
        if problem.longest_row <= longest:
            return module
    return last


def _selection(problem: Problem, backend: str, name: str, differentiable: bool) -> _Selection:
    """Selects the backends for all calls that share the entry of `problem` in the cache `_selections`.

    Args:
        problem: the call.
        backend: the call's argument `backend`. If it is "auto", errors name QACG_BACKEND instead of `backend`.
        name: `backend`, or the value of QACG_BACKEND in place of "auto".
        differentiable: whether a backward pass may follow.

    Returns:
        Pairs (N, the backend for calls with rows of at most N keys), by rising N. The last pair has no limit.

    Raises:
        ValueError: the name is unknown.
        RuntimeError: the named backend does not support the call.
    """
    source = VARIABLE if backend == AUTO else "backend"
    if name == AUTO:
        return _preferred(problem, differentiable)
    if name not in NAMES:
        raise ValueError(f"{source}: expected one of {', '.join(map(repr, NAMES))}, got {name!r}")
    module = _BY_NAME[name]
    why = _limits(module, problem)
    if why:
        raise RuntimeError(
            f"{source}: expected a backend that supports this call, got {name!r} ({'; '.join(why)}). "
            "Use 'auto', which selects one"
        )
    return ((tile_tables.ANY_LENGTH, module),)


def _preferred(problem: Problem, differentiable: bool) -> _Selection:
    """Selects, by number of keys, the backend that `tune` measured to be the fastest.

    Without a measurement, or if the fastest backend does not support the call, selects another: the first AUTOMATIC
    backend for the call's device that supports the call, or the reference if no backend does.

    Returns:
        Pairs (N, the backend for calls with rows of at most N keys), by rising N. The last pair has no limit.
    """
    query = problem.query
    first: Backend = reference
    for module in _MODULES:
        if module.AUTOMATIC and query.device.type == module.DEVICE and not _reasons(module, problem):
            first = module
            break
    measured: tuple[tuple[int, str], ...] = ()
    # Not while exporting: the program must support any length, and these choices depend on the length.
    if query.device.type == "cuda" and not torch_internals.is_exporting():
        bits = 8 * query.dtype.itemsize
        measured = tile_tables.tuned_backends(query.device, bits, problem.head_dim, differentiable)
    found = [(longest, _BY_NAME[name]) for longest, name in measured or ((tile_tables.ANY_LENGTH, first.NAME),)]
    return tuple([(longest, first if _reasons(module, problem) else module) for longest, module in found])


def explained(problem: Problem, backend: str, differentiable: bool) -> tuple[str, dict[str, str]]:
    """Returns what `select` chooses, and why "auto" does not use other GPU backends that support the call.

    Args:
        problem: the call.
        backend: the name of a backend, or "auto", which QACG_BACKEND can replace by a name.
        differentiable: whether a backward pass may follow.

    Returns:
        The name of the selected backend, and a dictionary of reasons. Its keys are the names of the GPU backends that
        support the call, but that "auto" does not prefer.

    Raises:
        ValueError: the name, or the value of QACG_BACKEND, is unknown.
        RuntimeError: the named backend does not support the call.
    """
    preferred = _of_length(_preferred(problem, differentiable), problem)
    name = _ASKED_FOR if backend == AUTO else backend
    selected = _of_length(_selection(problem, backend, name, differentiable), problem)
    advice = f"{preferred.NAME} is preferred; python -m qacg_kernels.tune measures which is faster on this GPU"
    passed_by = {m.NAME: advice for m in _MODULES if m.HAS_GPU_KERNELS and m is not preferred}
    return selected.NAME, {n: why for n, why in passed_by.items() if not reasons_against(problem)[n]}


def notes(problem: Problem) -> dict[str, str]:
    """Returns, by backend name, the notes of the backends that support `problem`; omits backends without a note."""
    takers = (m for m in _MODULES if not _reasons(m, problem))
    return {m.NAME: text for m in takers if (text := _note(m, problem))}


def _note(module: Backend, problem: Problem) -> str | None:
    text, other = module.note(problem), backward_of(module, problem)
    return text if other is module else f"{text}; the backward is that of {other.NAME!r} ({other.note(problem)})"


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
    """Warns, once per process, that a call materialises its maps, unless QACG_QUIET is "1".

    Raises:
        ValueError: the call is on a GPU, and QACG_SELF_CHECK has an unknown value.
        RuntimeError: the call is on a GPU, and QACG_SELF_CHECK is "strict".
    """
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
