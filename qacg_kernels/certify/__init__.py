"""Proving kernels on this machine: `certify()`, and `python -m qacg_kernels.certify`."""

import torch

from qacg_kernels import dispatch
from qacg_kernels.certificates import standing
from qacg_kernels.certificates.certificate import Certificate
from qacg_kernels.certificates.family import DTYPES, HEAD_DIMS, Scope
from qacg_kernels.certificates.prover import Tell

ALL_SCOPES = tuple(Scope(dtype, head_dim) for dtype in DTYPES for head_dim in HEAD_DIMS)
# All types and head sizes are nine times what the first call proves.
SECONDS = 600.0


def certify(
    device: torch.device | str | int | None = None,
    *,
    again: bool = False,
    seconds: float = SECONDS,
    tell: Tell | None = None,
) -> Certificate:
    """Holds the fused kernels for a device to float64 on this machine and keeps the certificate.

    A GPU's that hold are timed too.

    After it `backend="auto"` chooses by the certificate. What an earlier certificate of this environment says stays,
    unless `again`.

    Args:
        device: a CUDA device, the current one when None; or the CPU of an ARM machine.
        again: prove also what has a verdict already.
        seconds: after which the proof ends; what it did not come to stays unproven.
        tell: gets lines of progress; they go to stderr when None.

    Returns:
        The certificate: a verdict for each family of calls, and times.

    Raises:
        ValueError: the kernels for the device need no certificate, or seconds is not positive.
        RuntimeError: there is no GPU, or no fused kernel for the device; the message has the reasons.
    """
    if not seconds > 0:
        raise ValueError(f"seconds: got {seconds}, wanted more than 0")
    device = _device(device)
    backends = {name: dispatch.backend_of(name) for name in dispatch.needing_certificate(device.type)}
    missing = {name: backend.missing() or backend.not_for(device) for name, backend in backends.items()}
    names = tuple(name for name, why in missing.items() if not why)
    if not names:
        reasons = "; ".join(f"{name}: {' '.join(why)}" for name, why in missing.items())
        raise RuntimeError(f"no fused kernel for {device.type} can run here: {reasons}")
    here = standing.of(device)
    here.prove(ALL_SCOPES, names, seconds=seconds, again=again, tell=tell)
    return here.certificate


def _device(device: torch.device | str | int | None) -> torch.device:
    given = torch.device("cuda" if device is None else device)
    if not dispatch.needing_certificate(given.type):
        raise ValueError(f"device: got {device!r}, wanted a CUDA device; only GPU kernels need a certificate here")
    if given.type == "cpu":
        return given
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device or driver on this machine; --rehearse needs none")
    return torch.device("cuda", torch.cuda.current_device() if given.index is None else given.index)
