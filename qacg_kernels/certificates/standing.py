"""What is known of the fused kernels on each device of this process, and which of them "auto" may use for a call."""

import threading
from pathlib import Path
from typing import NamedTuple

import torch

from qacg_kernels import processor
from qacg_kernels.backends import cpu
from qacg_kernels.certificates import agreement, policy, store
from qacg_kernels.certificates.certificate import Certificate
from qacg_kernels.certificates.environment import environment_of
from qacg_kernels.certificates.family import CallKind, Scope, families_in
from qacg_kernels.certificates.lengths import FORWARD, TRAINING, by_speed, is_slower, timed_as
from qacg_kernels.certificates.prover import SECONDS, SECONDS_OF_A_CPU, Task, Tell, prove, to_stderr

REFERENCE = "reference"
COMMAND = "python -m qacg_kernels.certify"


class Choice(NamedTuple):
    """Which of the backends that need a certificate takes a call: its name or None, and why the others do not.

    settled: False where another attempt may end otherwise, since no proof could be begun at this moment.
    """

    name: str | None
    passed_by: dict[str, str]
    settled: bool = True

    def check_required(self) -> None:
        """To be asked where a call is made.

        Raises:
            RuntimeError: none is chosen, and QACG_CERTIFY=require.
        """
        if self.name is None and policy.asked_for() == policy.REQUIRE:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.passed_by.items())
            raise RuntimeError(f"{policy.VARIABLE}=require, and no fused kernel is certified for this call: {reasons}")


class Standing:
    """What one device has been proven to do."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.certificate: Certificate | None = None
        self.path: Path | None = None
        self._loaded = False
        self._tried: dict[Scope, str | None] = {}  # with what kept a proof from being begun
        self._agreed: set[Scope] = set()
        self._lock = threading.RLock()

    def adopt(self, certificate: Certificate | None, path: Path | None = None) -> None:
        """Takes a certificate in place of what was known."""
        with self._lock:
            self.certificate, self.path, self._loaded = certificate, path, True
            self._agreed.clear()
            _changed()

    def load(self) -> None:
        """Reads the certificate of this device's environment, once."""
        with self._lock:
            if not self._loaded:
                self.adopt(*(self._stored() or (None, None)))

    def _stored(self) -> tuple[Certificate, Path] | None:
        kept = self.device.type == "cuda" or cpu.NEEDS_CERTIFICATE
        return store.read(environment_of(self.device)) if kept else None

    def prove(
        self,
        scopes: tuple[Scope, ...],
        backends: tuple[str, ...],
        *,
        seconds: float = SECONDS,
        again: bool = False,
        tell: Tell | None = None,
    ) -> str | None:
        """Proves scopes now and keeps the certificate.

        Args:
            again: also what has a verdict already.
            tell: gets lines for a person; they go to stderr when None, and nowhere with QACG_QUIET=1.

        Returns:
            What was left undone, in a line, or None.
        """
        tell = tell or ((lambda line: None) if policy.is_quiet() else to_stderr)
        with self._lock:
            self.load()
            known = self.certificate
            wanted = [f for scope in scopes for backend in backends for f in families_in(scope, backend)]
            if not again and known is not None:
                wanted = [f for f in wanted if f not in known.verdicts]
            name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else processor.model()
            tell(
                f"proving the fused kernels on {name} for {'; '.join(map(str, scopes))}: once on this machine, at most "
                f"{seconds:.0f} s ({policy.VARIABLE}=off goes without)"
            )
            # One kernel for a CPU, which the reference never outruns: there is nothing to choose by time.
            timed = self.device.type == "cuda"
            outcome = prove(Task(self.device, backends, scopes, tuple(wanted), timed=timed, seconds=seconds), tell)
            certificate = known.merged(outcome.certificate) if known is not None else outcome.certificate
            self.adopt(certificate, store.write(certificate))
            tell(self.summary(backends) + (f"; {outcome.unfinished}" if outcome.unfinished else ""))
            return outcome.unfinished

    def summary(self, backends: tuple[str, ...]) -> str:
        """What the certificate says, in a line."""
        if self.certificate is None:
            return "no certificate"
        parts = []
        for name in backends:
            verdicts = [v.holds for f, v in self.certificate.verdicts.items() if f.backend == name]
            if verdicts:
                parts.append(f"{name}: {sum(verdicts)} of {len(verdicts)} families hold")
        where = f"kept in {self.path}" if self.path else "kept in memory alone: no folder could be written"
        return f"{', '.join(parts) or 'nothing was judged'}; of {self.certificate.made}, {where}"

    def choose(self, kind: CallKind, takers: tuple[str, ...], may_prove: bool = True) -> Choice:
        """Which of `takers`, backends that would take a call of this kind, may serve it here.

        Args:
            may_prove: whether a proof may be begun now if QACG_CERTIFY allows it.

        Raises:
            ValueError: QACG_CERTIFY has an unknown value.
        """
        asked, scope = policy.asked_for(), kind.scope
        if scope is None:
            return Choice(None, dict.fromkeys(takers, "no family of the certificate covers a call of this kind"))
        if asked == policy.OFF:
            why = f"{policy.VARIABLE}=off: auto uses no kernel that needs a certificate"
            return Choice(None, dict.fromkeys(takers, why))
        self.load()
        hindrance, settled = self._tried.get(scope), True
        if not self._covers(scope, takers) and scope not in self._tried:
            hindrance, settled = self._why_unproven(asked, may_prove)
            if hindrance is None:
                seconds = SECONDS if self.device.type == "cuda" else SECONDS_OF_A_CPU
                self.prove((scope,), takers, seconds=seconds)
            if settled:
                self._tried[scope] = hindrance
        if agreement.is_wanted() and self._covers(scope, takers) and scope not in self._agreed:
            # What was agreed on other scopes stays: else two of them would take turns asking the other ranks.
            agreed = self._agreed | {scope}
            try:
                self.adopt(agreement.agreed(self.certificate, scope), self.path)
            except (RuntimeError, ValueError) as error:  # a store without comparison, a rank that is gone
                if not policy.is_quiet():
                    to_stderr(f"the ranks could not agree on kernels ({error}); this one goes by its own certificate")
            self._agreed = agreed
        return self._judge(kind, takers, hindrance)._replace(settled=settled)

    def _covers(self, scope: Scope, backends: tuple[str, ...]) -> bool:
        return self.certificate is not None and self.certificate.covers(scope, backends)

    def _why_unproven(self, asked: str, may_prove: bool) -> tuple[str | None, bool]:
        """Why no proof is begun, None if one is; and whether that stays so in this process."""
        if asked == policy.CACHED:
            return f"{policy.VARIABLE}=cached, and there is no certificate: {COMMAND} makes one", True
        if not may_prove:
            return f"not proven on this device yet: the next call outside a graph does that, or {COMMAND}", False
        moment = policy.why_not_at_this_moment(self.device)
        if moment is not None:
            return f"not proven on this device: {moment}; a later call does that, or {COMMAND}", False
        lack = policy.what_is_lacking(self.device)
        return lack and f"not proven on this device: {lack}; {COMMAND} makes a certificate", True

    def _judge(self, kind: CallKind, takers: tuple[str, ...], hindrance: str | None) -> Choice:
        passed_by, holding = {}, []
        for name in takers:
            why = self._against(kind, name, hindrance)
            if why is None:
                holding.append(name)
            else:
                passed_by[name] = why
        ranked = self._ranked(kind, tuple(holding), passed_by)
        for name in ranked[1:]:
            passed_by[name] = f"{ranked[0]} is preferred: it is as fast or faster for calls of this kind"
        return Choice(ranked[0] if ranked else None, passed_by)

    def _against(self, kind: CallKind, name: str, hindrance: str | None) -> str | None:
        families = kind.families(name)
        if self.certificate is not None:
            failed = self.certificate.failed(families)
            if failed is not None:
                return f"failed its proof here, {self.certificate.made}: {failed[0]}: {failed[1]}"
            if self.certificate.holds(families):
                return None
        return hindrance or f"not proven on this device: the proof did not come to it; {COMMAND} goes on with it"

    def _ranked(self, kind: CallKind, holding: tuple[str, ...], passed_by: dict[str, str]) -> list[str]:
        """Those that hold and are not slower than the reference, fastest first; unmeasured ones after them."""
        if self.certificate is None or not holding:
            return []
        timed = timed_as(kind)
        if timed is None:
            mode = TRAINING if kind.differentiable else FORWARD
            tables = [t for key, t in self.certificate.times.items() if key[:2] == kind.scope and key.mode == mode]
        else:
            tables = [self.certificate.times.get(timed, {})]
        for name in holding:
            slower = next((t for t in tables if is_slower(t, name, REFERENCE)), None)
            if slower is not None:
                times = f"{1e3 * slower[name]:.3g} ms against {1e3 * slower[REFERENCE]:.3g}"
                passed_by[name] = f"slower than the reference for calls of this length: {times}"
        left = tuple(name for name in holding if name not in passed_by)
        ranked = by_speed(tables[0], left) if timed is not None else []
        return ranked + [name for name in left if name not in ranked]


_standings: dict[torch.device, Standing] = {}
_generation = 0


def _changed() -> None:
    global _generation  # noqa: PLW0603
    _generation += 1


def generation() -> tuple[int, bool]:
    """Changes whenever a choice may come out otherwise than before; for those who remember choices."""
    return _generation, agreement.is_wanted()


def of(device: torch.device) -> Standing:
    """The standing of a device in this process."""
    standing = _standings.get(device)
    if standing is None:
        standing = _standings.setdefault(device, Standing(device))
    return standing


def known() -> list[Standing]:
    """Of every device that this process has asked about."""
    return list(_standings.values())


def forget() -> None:
    """Forgets all that was read, proven and chosen in this process."""
    _standings.clear()
    _changed()


def name_in_a_trace(device: torch.device, takers: tuple[str, ...], *kind: object) -> str | None:
    """The backend for a graph that is being made: by what is known already, good for every length.

    `kind` is a CallKind, field by field: a trace passes on tuples of other types in pieces.
    """
    choice = of(device).choose(CallKind(*kind), takers, may_prove=False)
    choice.check_required()
    if choice.name is None:
        policy.tell_of_the_reference(choice.passed_by, stacklevel=2)  # the user's line is not known in a trace
    return choice.name


# A trace takes the result and does not enter, where files are read: all that torch.compiler.assume_constant_result
# does, which would import the compiler.
name_in_a_trace._dynamo_marked_constant = True
