"""Which backend takes a call, and why the others would not."""

import torch

from qacg_kernels.backends import cpu, cuda, reference, triton
from qacg_kernels.backends.cuda import hopper
from qacg_kernels.backends.protocol import Backend
from qacg_kernels.backends.triton import gluon
from qacg_kernels.certificates import policy, standing
from qacg_kernels.certificates.family import kind_of
from qacg_kernels.ops import BACKENDS
from qacg_kernels.problem import Problem

_MODULES: tuple[Backend, ...] = (hopper, gluon, cuda, triton, cpu, reference)
_BY_NAME: dict[str, Backend] = {name: next(m for m in _MODULES if name == m.NAME) for name in BACKENDS}
AUTO = "auto"
NAMES = (AUTO, *BACKENDS)


def available_backends() -> tuple[str, ...]:
    """Names of the backends that can run on this machine, fastest first."""
    return tuple(name for name, module in _BY_NAME.items() if not module.missing())


def needing_certificate(device_type: str) -> tuple[str, ...]:
    """The backends for such devices that "auto" uses only where they have been proven."""
    return tuple(m.NAME for m in _MODULES if m.NEEDS_CERTIFICATE and device_type == m.DEVICE)


def backend_of(name: str) -> Backend:
    """The backend of a name of `ops.BACKENDS`."""
    return _BY_NAME[name]


def reasons_against(problem: Problem) -> dict[str, list[str]]:
    """For each backend name, why it would not take `problem`; an empty list means it would."""
    return {name: module.missing() or module.unsupported(problem) for name, module in _BY_NAME.items()}


def select(problem: Problem, backend: str, differentiable: bool) -> Backend:
    """The backend for a call: the named one, or for "auto" the best that has been proven for it.

    Args:
        differentiable: whether a backward pass may follow, whose kernels must then be proven too.

    Raises:
        ValueError: the name, or the value of QACG_CERTIFY, is unknown.
        RuntimeError: the named backend does not take the call, with its reasons; or QACG_CERTIFY=require and no
            fused kernel is certified for the call.
    """
    if backend == AUTO:
        return _automatic(problem, differentiable)
    if backend not in NAMES:
        raise ValueError(f"backend: got {backend!r}, wanted one of {', '.join(map(repr, NAMES))}")
    module = _BY_NAME[backend]
    why = module.missing() or module.unsupported(problem)
    if why:
        raise RuntimeError(f"backend {backend!r} does not take this call: " + "; ".join(why))
    return module


# Where backends need certificates: what was chosen for calls that differ in nothing that counts.
_remembered: dict[tuple, Backend] = {}
_MOST_REMEMBERED = 4096  # one for each length, among others
_USERS_LINE = 7  # calls up from where a warning is made: to whoever called `quasi_attention`


def _automatic(problem: Problem, differentiable: bool) -> Backend:
    if not needing_certificate(problem.query.device.type) or torch.compiler.is_compiling():
        return _chosen(problem, differentiable)[0]
    key = (problem.query.device, standing.generation(), *kind_of(problem, differentiable))
    backend = _remembered.get(key)
    if backend is None:
        backend, settled = _chosen(problem, differentiable)
        if settled:
            if len(_remembered) >= _MOST_REMEMBERED:
                _remembered.clear()
            # A proof on the way began a new generation.
            key_now = (problem.query.device, standing.generation(), *key[2:])
            _remembered[key_now] = backend
    return backend


def _chosen(problem: Problem, differentiable: bool) -> tuple[Backend, bool]:
    """The backend for a call, and whether the next such call would get the same."""
    certifiable, chosen = _takers(problem)
    passed_by: dict[str, str] = {}
    settled = True
    if certifiable:
        if torch.compiler.is_compiling():
            kind = kind_of(problem, differentiable, traced=True)
            name = standing.name_in_a_trace(problem.query.device, certifiable, *kind)
        else:
            kind = kind_of(problem, differentiable)
            choice = standing.of(problem.query.device).choose(kind, certifiable)
            choice.check_required()
            name, passed_by, settled = choice
        if name is not None:
            return _BY_NAME[name], settled
    if chosen is reference and not torch.compiler.is_compiling():
        _tell_of_the_reference(problem, passed_by)
    return chosen, settled


def _takers(problem: Problem) -> tuple[tuple[str, ...], Backend]:
    """The backends that would take a call if they were certified, and the first that needs no certificate."""
    certifiable: list[str] = []
    for module in _MODULES:
        if module.missing() or module.unsupported(problem):
            continue
        if not module.NEEDS_CERTIFICATE:
            return tuple(certifiable), module
        certifiable.append(module.NAME)
    raise AssertionError("the reference takes every call")


def explained(problem: Problem, backend: str, differentiable: bool) -> tuple[str, dict[str, str]]:
    """What `select` would choose now, and why "auto" passes by other backends that take the call.

    Nothing is proven on the way. Raises what `select` raises for a named backend.
    """
    certifiable, other = _takers(problem)
    passed_by: dict[str, str] = {}
    name = None
    if certifiable:
        kind = kind_of(problem, differentiable)
        name, passed_by, _ = standing.of(problem.query.device).choose(kind, certifiable, may_prove=False)
    if backend != AUTO:
        return select(problem, backend, differentiable).NAME, passed_by
    return name or other.NAME, passed_by


def notes(problem: Problem) -> dict[str, str]:
    """What the backends that take `problem` tell of how they would, by name."""
    takers = (m for m in _MODULES if not (m.missing() or m.unsupported(problem)))
    return {m.NAME: text for m in takers if (text := m.note(problem))}


def chosen_so_far() -> dict[str, dict[str, object]]:
    """Which backends "auto" has taken in this process, by device, and by which certificate: for a record of a run."""
    unproven = (m for m in _MODULES if m.DEVICE in ("cpu", None) and not m.NEEDS_CERTIFICATE)
    cpu_backend = next(m.NAME for m in unproven if not m.missing())
    found: dict[str, dict[str, object]] = {"cpu": {"backends": [cpu_backend], "certificate": None}}
    for device in {key[0] for key in _remembered}:
        names = sorted({backend.NAME for key, backend in _remembered.items() if key[0] == device})
        found[str(device)] = {"backends": names, "certificate": certificate_of(device)}
    return found


def certificate_of(device: torch.device) -> str | None:
    """What has been proven of the kernels for a device, in a line; None where none of them needs a proof."""
    names = needing_certificate(device.type)
    if not names:
        return None
    here = standing.of(device)
    here.load()
    return here.summary(names)


def _tell_of_the_reference(problem: Problem, passed_by: dict[str, str]) -> None:
    reasons = dict(passed_by)
    for module in _MODULES:
        # Of the others only those for tensors that lie there: a GPU's kernels are no cure for a call on the CPU.
        if module.NAME not in reasons and problem.query.device.type == module.DEVICE:
            reasons[module.NAME] = "; ".join(module.missing() or module.unsupported(problem))
    policy.tell_of_the_reference(reasons, stacklevel=_USERS_LINE)
