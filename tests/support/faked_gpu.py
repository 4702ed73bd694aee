"""A GPU that is not there: tensors without values on "cuda", backends that believe in it, certificates at will."""

import itertools

import torch
from torch._subclasses import FakeTensorMode

from qacg_kernels.backends import cuda, triton
from qacg_kernels.backends.triton import gluon
from qacg_kernels.certificates import policy, standing
from qacg_kernels.certificates.certificate import Certificate, Verdict
from qacg_kernels.certificates.family import families_in
from qacg_kernels.certificates.lengths import CLASSES, MODES, Timed

DEVICE = torch.device("cuda", 0)
ENVIRONMENT = {"device": "Faked GPU", "kernels": "1"}


def install(monkeypatch, folder) -> None:
    """For one test: both GPU backends take calls on DEVICE, and certificates are kept in `folder`."""
    monkeypatch.setenv("QACG_CERTIFICATES", str(folder))
    monkeypatch.delenv("QACG_CERTIFY", raising=False)
    for module in (cuda, triton):
        monkeypatch.setattr(module, "missing", list)
        monkeypatch.setattr(module, "unsupported", _unsupported)
        monkeypatch.setattr(module, "not_for", lambda device: [])
        monkeypatch.setattr(module, "note", lambda problem: None)
    monkeypatch.setattr(gluon, "missing", lambda: ["the faked GPU is not a Hopper GPU"])
    monkeypatch.setattr(standing, "environment_of", lambda device: ENVIRONMENT)
    monkeypatch.setattr(policy, "what_is_lacking", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: ENVIRONMENT["device"])
    standing.forget()


def _unsupported(problem) -> list[str]:
    return [] if problem.query.device.type == "cuda" else ["tensors are not on the faked GPU"]


def call(dtype=torch.bfloat16, length=128, head_dim=64, training=False):
    """The arguments of a call with a lambda tensor on DEVICE; nothing can be computed with them."""
    with FakeTensorMode():
        x = torch.empty(2, 3, length, head_dim, dtype=dtype, device=DEVICE, requires_grad=training)
        return x, x, x, x, x, torch.empty(2, 3, length, dtype=dtype, device=DEVICE)


def certificate(scope, times=None, failing=(), names=("cuda", "triton")) -> Certificate:
    """Everything of a scope holds for `names` except the families in `failing`; each class has the same `times`."""
    families = [f for name in names for f in families_in(scope, name)]
    verdicts = {f: Verdict(f not in failing, *(("wrong: out", "a case", 7) if f in failing else ())) for f in families}
    classes = [Timed(*scope, length, mode) for length, mode in itertools.product(CLASSES, MODES)]
    return Certificate(ENVIRONMENT, "2026-01-02T03:04:05+00:00", verdicts, {t: dict(times) for t in classes if times})
