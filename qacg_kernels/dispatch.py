"""Which backend takes a call, and why the others would not."""

from qacg_kernels.backends import cpu, cuda, reference, triton

# In order of preference; the reference takes everything and comes last.
_BACKENDS = {"cuda": cuda, "triton": triton, "cpu": cpu, "reference": reference}
NAMES = ("auto", "reference", "cpu", "triton", "cuda")


def available_backends() -> tuple[str, ...]:
    """Names of the backends that can run on this machine, fastest first."""
    return tuple(name for name, module in _BACKENDS.items() if not module.missing())


def reasons_against(problem) -> dict[str, list[str]]:
    """For each backend name, why it would not take `problem`; an empty list means it would."""
    return {name: module.missing() or module.unsupported(problem) for name, module in _BACKENDS.items()}


def passed_by(problem) -> list[str]:
    """The backends that take `problem` and that "auto" nevertheless passes by, each with the reason (UNPROVEN)."""
    reasons = reasons_against(problem)
    return [
        f"{name}: {module.UNPROVEN}" for name, module in _BACKENDS.items() if _unproven(module) and not reasons[name]
    ]


def notes(problem) -> list[str]:
    """What the backends that take `problem` tell of how they would."""
    reasons = reasons_against(problem)
    return [f"{n}: {m.note(problem)}" for n, m in _BACKENDS.items() if hasattr(m, "note") and not reasons[n]]


def _unproven(module) -> str | None:
    return getattr(module, "UNPROVEN", None)


def select(problem, backend: str):
    """The backend module for a call: the named one, or for "auto" the first that is proven and takes it.

    Raises:
        ValueError: the name is unknown.
        RuntimeError: the named backend does not take the call; the message lists its reasons.
    """
    if backend == "auto":
        proven = (m for m in _BACKENDS.values() if not _unproven(m))
        return next(m for m in proven if not (m.missing() or m.unsupported(problem)))
    if backend not in NAMES:
        raise ValueError(f"backend: got {backend!r}, wanted one of {', '.join(map(repr, NAMES))}")
    module = _BACKENDS[backend]
    why = module.missing() or module.unsupported(problem)
    if why:
        raise RuntimeError(f"backend {backend!r} does not take this call: " + "; ".join(why))
    return module


def name_of(module) -> str:
    """The backend name of a module that `select` returned."""
    return module.__name__.rpartition(".")[2]
