"""Which backend takes a call, and why the others would not."""

from qacg_kernels.backends import cpu, reference, triton

# In order of preference; the reference takes everything and comes last.
_BACKENDS = {"cpu": cpu, "triton": triton, "reference": reference}
_PLANNED = {
    "cuda": "this release has no CUDA kernels; use backend='auto'",
}
# Backends that "auto" passes by, and why: no machine has proven them yet. One that is named is used all the same.
_UNPROVEN = {
    "triton": "its kernels have not run on a GPU yet, so 'auto' passes it by; ask for it with backend='triton'",
}
NAMES = ("auto", "reference", "cpu", "triton", "cuda")


def available_backends() -> tuple[str, ...]:
    """Names of the backends that can run on this machine, fastest first."""
    return tuple(name for name, module in _BACKENDS.items() if not module.missing())


def reasons_against(problem) -> dict[str, list[str]]:
    """For each backend name, why "auto" would not take it for `problem`; an empty list means it would."""
    reasons = {name: module.missing() or module.unsupported(problem) for name, module in _BACKENDS.items()}
    reasons |= {name: [why] for name, why in _PLANNED.items()}
    return {name: why or [_UNPROVEN[name]] if name in _UNPROVEN else why for name, why in reasons.items()}


def select(problem, backend: str):
    """The backend module for a call: the named one, or for "auto" the first that takes it.

    Raises:
        ValueError: the name is unknown.
        RuntimeError: the named backend does not take the call; the message lists its reasons.
    """
    if backend == "auto":
        proven = (module for name, module in _BACKENDS.items() if name not in _UNPROVEN)
        return next(m for m in proven if not (m.missing() or m.unsupported(problem)))
    if backend not in NAMES:
        raise ValueError(f"backend: got {backend!r}, wanted one of {', '.join(map(repr, NAMES))}")
    module = _BACKENDS.get(backend)
    why = [_PLANNED[backend]] if module is None else module.missing() or module.unsupported(problem)
    if why:
        raise RuntimeError(f"backend {backend!r} does not take this call: " + "; ".join(why))
    return module


def name_of(module) -> str:
    """The backend name of a module that `select` returned."""
    return module.__name__.rpartition(".")[2]
