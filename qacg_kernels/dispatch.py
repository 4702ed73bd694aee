"""The choice of a backend for a call, and the reasons against the others."""

import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from qacg_kernels import self_check
from qacg_kernels.backends import cpu, cuda, reference, triton
from qacg_kernels.backends.cuda import hopper
from qacg_kernels.backends.protocol import Backend, outside_limits
from qacg_kernels.backends.triton import gluon, tile_tables
from qacg_kernels.call.problem import Problem

# A new backend is a module of `backends` and a line here.
_REGISTERED: tuple[Backend, ...] = (
    cpu,
    cuda,
    gluon,
    hopper,
    reference,
    triton,
)
_MODULES = tuple(sorted(_REGISTERED, key=lambda module: module.RANK))
_BY_NAME: dict[str, Backend] = {module.NAME: module for module in _MODULES}
AUTO = "auto"
BACKENDS = tuple(_BY_NAME)  # in order of preference
NAMES = (AUTO, *BACKENDS)

VARIABLE = "QACG_BACKEND"
# What "auto" stands for in this process.
_ASKED_FOR = os.environ.get(VARIABLE, AUTO)
QUIET = "QACG_QUIET"


_SELECTED, _PASSED_BY, _NOTES = "selected", "passed by auto", "notes"


@dataclass(frozen=True)
class Explanation(Mapping[str, list[str]]):
    """Which backend takes a call, and why the others do not; the result of `explain`.

    Also a mapping: a backend's name gives its reasons against the call; "selected", "passed by auto" and "notes" give
    the other fields as lists of text.

    Attributes:
        selected: the backend that takes the call.
        reasons: for each backend, why it does not support the call; an empty list means that it does.
        passed_by: backends that support the call and that "auto" does not use for it, each with the reason.
        notes: how each backend that supports the call would compute it.
        self_check: how many kernel variants this process has compared with the reference on the call's device, in a
            line; None for none, as on CPUs on which the tests have run.
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
        lines = [f"{self.selected} takes this call"]
        for name, reasons in self.reasons.items():
            if reasons:
                lines.append(f"  {name} does not: {'; '.join(reasons)}")
            elif name in self.passed_by:
                lines.append(f"  {name} could, and is passed by: {self.passed_by[name]}")
            elif name != self.selected:
                lines.append(f"  {name} could")
        lines += [f"  note on {name}: {text}" for name, text in self.notes.items()]
        lines += [f"  self-check: {self.self_check}"] if self.self_check else []
        return "\n".join(lines)


def available_backends() -> tuple[str, ...]:
    """Lists the backends that can run on this machine.

    Returns:
        Their names in order of preference; the reference comes last.

    Example:
        >>> available_backends()[-1]
        'reference'
    """
    return tuple(name for name, module in _BY_NAME.items() if not module.missing())


def backend_of(name: str) -> Backend:
    """The backend of a name in BACKENDS."""
    return _BY_NAME[name]


def reasons_against(problem: Problem) -> dict[str, list[str]]:
    """For each backend name, why it does not support `problem`; an empty list means that it does."""
    return {name: _reasons(module, problem) for name, module in _BY_NAME.items()}


def _reasons(module: Backend, problem: Problem) -> list[str]:
    return module.missing() or outside_limits(module, problem) or module.unsupported(problem)


def select(problem: Problem, backend: str, differentiable: bool) -> Backend:
    """The backend for a call: the named one, or for "auto" the preferred one of those that take it.

    Args:
        problem: the call.
        backend: "auto" or the name of a backend.
        differentiable: whether a backward pass may follow, for which backends are measured on their own.

    Returns:
        The backend's module.

    Raises:
        ValueError: the name, or the value of QACG_BACKEND, is unknown.
        RuntimeError: the named backend does not take the call, with its reasons; or no fused kernel takes a call on a
            GPU and QACG_SELF_CHECK is "strict".
    """
    source = "backend"
    if backend == AUTO:
        if _ASKED_FOR == AUTO:
            return _automatic(problem, differentiable)
        backend, source = _ASKED_FOR, VARIABLE
    if backend not in NAMES:
        raise ValueError(f"{source}: expected one of {', '.join(map(repr, NAMES))}, got {backend!r}")
    module = _BY_NAME[backend]
    why = _reasons(module, problem)
    if why:
        raise RuntimeError(f"backend {backend!r} does not take this call: " + "; ".join(why))
    return module


_chosen: dict[torch.device, set[str]] = defaultdict(set)  # by "auto", for the record of a run
_warned_of_reference = False
_USERS_LINE = 6  # frames from the warning up to the caller of `quasi_attention`


def _automatic(problem: Problem, differentiable: bool) -> Backend:
    chosen = _preferred(problem, differentiable)
    if torch.compiler.is_compiling():
        return chosen
    device = problem.query.device
    _chosen[device].add(chosen.NAME)
    if chosen is reference:
        _warn_of_reference(problem)
        if device.type == "cuda" and self_check.requested_mode() == self_check.STRICT:
            raise RuntimeError(
                f"{self_check.VARIABLE}=strict: expected a fused kernel for this call, got none "
                f'({_reasons_on(problem)}). Pass backend="reference", or set {self_check.VARIABLE}=first'
            )
    return chosen


def _preferred(problem: Problem, differentiable: bool) -> Backend:
    """The backend that was measured to be the fastest for such calls, else the first automatic one."""
    query = problem.query
    device = query.device.type
    # An exported program may meet any length: it is bound to none.
    if device == "cuda" and not torch.compiler.is_exporting():
        for longest, name in tile_tables.tuned_backends(
            query.device, 8 * query.dtype.itemsize, problem.head_dim, differentiable
        ):
            if problem.longest_row <= longest:
                module = _BY_NAME[name]
                if not _reasons(module, problem):
                    return module
                break
    for module in _MODULES:
        if module.AUTOMATIC and device == module.DEVICE and not _reasons(module, problem):
            return module
    return reference


def explained(problem: Problem, backend: str, differentiable: bool) -> tuple[str, dict[str, str]]:
    """What `select` chooses, and why "auto" passes by other backends that take the call.

    Args:
        problem: the call.
        backend: "auto" or the name of a backend.
        differentiable: whether a backward pass may follow.

    Returns:
        The name of the selected backend, and reasons by the names of the others. Raises what `select` raises.
    """
    preferred = _preferred(problem, differentiable)
    selected = preferred if backend == AUTO and _ASKED_FOR == AUTO else select(problem, backend, differentiable)
    advice = f"{preferred.NAME} is preferred; python -m qacg_kernels.tune measures which is faster on this GPU"
    passed_by = {m.NAME: advice for m in (hopper, gluon, cuda, triton) if m is not preferred}
    return selected.NAME, {n: why for n, why in passed_by.items() if not reasons_against(problem)[n]}


def notes(problem: Problem) -> dict[str, str]:
    """How each backend that supports `problem` would compute it, by name."""
    takers = (m for m in _MODULES if not _reasons(m, problem))
    return {m.NAME: text for m in takers if (text := m.note(problem))}


def chosen_so_far() -> dict[str, dict[str, object]]:
    """Which backends "auto" has taken in this process, by device, and how their self-checks went."""
    return {
        str(device): {"backends": sorted(names), "self_check": self_check.summary(device)}
        for device, names in _chosen.items()
    }


def _reasons_on(problem: Problem) -> str:
    # Of backends for the call's device only: a GPU's kernels cannot run a call on the CPU.
    reasons = (
        f"{m.NAME}: {'; '.join(_reasons(m, problem))}" for m in _MODULES if problem.query.device.type == m.DEVICE
    )
    return "; ".join(reasons) or "no backend has fused kernels for this device"


def _warn_of_reference(problem: Problem) -> None:
    """Warns, once per process, that a call materialises its maps."""
    global _warned_of_reference  # noqa: PLW0603
    if _warned_of_reference or os.environ.get(QUIET) == "1":
        return
    _warned_of_reference = True
    warnings.warn(
        f"this call of quasi-attention runs through the PyTorch reference, which is slow and stores maps of size L x S "
        f"({_reasons_on(problem)}). Printed once; {QUIET}=1 silences it",
        stacklevel=_USERS_LINE,
    )
