"""The whole of a certification without a GPU: kernels in Triton's interpreter, on a few families, with a fault or none.

What is rehearsed is the machinery: processes, judging, the certificate, the choice by it, and the call that a user
makes afterwards. It is well when that call gives the right result, whatever went wrong before, and when what went wrong
was noticed for what it is.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from qacg_kernels.certificates import standing, store
from qacg_kernels.certificates.certificate import Certificate
from qacg_kernels.certificates.environment import environment_of
from qacg_kernels.certificates.family import Family, Scope
from qacg_kernels.certificates.prover import Task, Tell, prove
from qacg_kernels.functional import explain
from qacg_kernels.proving import faults
from qacg_kernels.proving.judging import Fault, within_budget
from qacg_kernels.proving.probes import cases
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing_inputs import make_inputs

_Found = tuple[Certificate, Path | None]
_DEVICE = torch.device("cpu")
_SCOPE = Scope("float16", 64)
_SECONDS = 85.0
# The interpreter takes up to some seconds of a slow core for a case.
_SILENCE, _SILENCE_OF_A_HANG = 60.0, 20.0
# One with a fault: the families after it are left to the process that takes the place of the broken one.
_WORKERS, _WORKERS_WITH_A_FAULT = 2, 1


def _family(direction: str, route: str, feature: str) -> Family:
    return Family("triton", direction, *_SCOPE, route, feature)


VICTIM = _family("forward", "whole_row", "plain")
# With a fault: what is quick, and families that the fault must leave alone.
_FEW = (VICTIM, _family("forward", "packed", "plain"), _family("backward", "packed", "plain"))
_ALL = (
    *_FEW,
    _family("forward", "whole_row", "row_gate"),
    _family("forward", "whole_row", "dropout"),
    _family("forward", "whole_row", "lengths"),
    _family("backward", "whole_row", "plain"),
    _family("forward", "tiled", "plain"),
    _family("forward", "packed", "row_gate"),
    _family("backward", "whole_row", "row_gate"),
    _family("backward", "packed", "row_gate"),
)
# What the line about each fault has to say.
_SIGNS = {
    "wrong-value": "wrong: out",
    "nan": "not a number: out",
    "out-of-bounds": "out of bounds",
    "nondeterministic": "not deterministic",
    "hang": "hung",
    "abort": "SIGABRT",
    "device-error": "device error",
    "out-of-memory": "out of memory",
    "slow": "slower than the reference",
}


def rehearse(inject: str | None, tell: Tell) -> bool:
    """Goes through a certification, with the fault `inject` of faults.FAULTS, and says in lines what happened.

    Returns:
        Whether the machinery held: every call gave the right result, and the fault was noticed for its own reason.
    """
    with tempfile.TemporaryDirectory() as folder, _certificates_in(Path(folder), inject):
        standing.forget()
        try:
            return _rehearse(inject, tell)
        finally:
            standing.forget()


@contextlib.contextmanager
def _certificates_in(folder: Path, inject: str | None) -> Iterator[None]:
    if inject == "read-only-cache":
        # A file where a folder would have to be: nobody can write there, not even root.
        (folder / "file").write_text("")
        folder = folder / "file"
    before = os.environ.get(store.OVERRIDE)
    os.environ[store.OVERRIDE] = str(folder / "certificates")
    try:
        yield
    finally:
        os.environ.pop(store.OVERRIDE)
        if before is not None:
            os.environ[store.OVERRIDE] = before


def _rehearse(inject: str | None, tell: Tell) -> bool:
    families = _FEW if inject else _ALL
    where = "" if inject in (None, *faults.AROUND) else f" in {VICTIM}"
    what = f"the fault {inject}{where}" if inject else "no fault"
    tell(f"rehearsing on the CPU, in Triton's interpreter, with {what}")
    found, noticed = _proof(families, inject, tell)
    here = standing.of(_DEVICE)
    here.adopt(*found)
    tell(here.summary(("triton",)))
    well = True
    for family in families:
        taken, why, right = _user_call(family)
        tell(f"{family}: {'right' if right else 'WRONG'}, taken by {taken}{f' ({why})' if why else ''}")
        well &= right
        if family == VICTIM:
            noticed |= inject in _SIGNS and _SIGNS[inject] in why and taken != "triton"
        elif inject != faults.SLOW:
            well &= taken == "triton"
    if inject is None:
        verdicts = here.certificate.verdicts
        noticed = set(verdicts) == set(_ALL) and all(v.holds for v in verdicts.values())
    tell("the machinery held" if well and noticed else "THE MACHINERY DID NOT HOLD")
    return bool(well and noticed)


def _proof(families: tuple[Family, ...], inject: str | None, tell: Tell) -> tuple[_Found, bool]:
    """A certificate with its file, and whether a fault around the proof was noticed."""
    greeting = [("rehearsal", "1")] + ([("fault", inject), ("family", str(VICTIM))] if inject else [])
    silence = _SILENCE_OF_A_HANG if inject == "hang" else _SILENCE
    task = Task(
        _DEVICE,
        ("triton",),
        (_SCOPE,),
        families,
        workers=_WORKERS_WITH_A_FAULT if inject else _WORKERS,
        seconds=_SECONDS,
        silence=silence,
        greeting=tuple(greeting),
    )
    if inject == "two-at-once":
        return _two_at_once(task, tell)
    outcome = prove(task, tell)
    if outcome.unfinished:
        tell(outcome.unfinished)
    certificate, path = outcome.certificate, store.write(outcome.certificate)
    if inject == "read-only-cache":
        return (certificate, path), path is None
    if inject == "corrupt-certificate":
        text = path.read_text(encoding="utf-8")
        path.write_text(text[: len(text) // 2], encoding="utf-8")
        missed = store.read(certificate.environment) is None
        tell("the damaged certificate counts as none" if missed else "THE DAMAGED CERTIFICATE WAS READ")
        certificate = prove(task, tell).certificate
        path = store.write(certificate)
        return (certificate, path), missed and store.read(certificate.environment) == (certificate, path)
    if inject == "out-of-memory":
        return (certificate, path), VICTIM not in certificate.verdicts and "out of memory" in (outcome.unfinished or "")
    return (certificate, path), False


def _two_at_once(task: Task, tell: Tell) -> tuple[_Found, bool]:
    written: list[Path | None] = []

    def one() -> None:
        written.append(store.write(prove(task, tell).certificate))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.read(environment_of(_DEVICE))
    whole = found is not None and set(found[0].verdicts) == set(task.families)
    alone = found is not None and [p.name for p in found[1].parent.iterdir()] == [found[1].name]
    tell("two proofs at once left one whole certificate" if whole and alone else "TWO PROOFS AT ONCE LEFT A MESS")
    if found is None:
        raise Fault(f"no certificate after two proofs, which wrote {written}")
    return found, whole and alone


def _user_call(family: Family) -> tuple[str, str, bool]:
    """The call that a user makes with backend="auto": who took it, why not Triton, and whether it is right."""
    case = cases(family, small=True)[0]
    inputs = make_inputs(case, getattr(torch, family.dtype), _DEVICE)
    with torch.set_grad_enabled(family.direction == "backward"):
        leaves = {name: t.detach().requires_grad_(torch.is_grad_enabled()) for name, t in inputs.tensors.items()}
        explanation = explain(*inputs.arguments(leaves), **inputs.options)
        if family.direction == "backward":
            results = evaluate(inputs, through_backend("auto"))
        else:
            out, _ = through_backend("auto")(inputs, inputs.tensors)
            results = {"out": out}
    try:
        within_budget(results, inputs)
    except Fault:
        return explanation.selected, explanation.passed_by.get("triton", ""), False
    return explanation.selected, explanation.passed_by.get("triton", ""), True
