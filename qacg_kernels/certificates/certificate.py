"""A certificate: what was proven and timed of the fused kernels in one environment, and how it is kept as JSON."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from qacg_kernels.certificates.family import Family, Scope, families_in
from qacg_kernels.certificates.lengths import Timed

FORMAT = 1


@dataclass(frozen=True)
class Verdict:
    """What the proof of a family found.

    Attributes:
        found: what was wrong, in a line; "" if the family holds.
        case, seed: the call that showed it, by which it can be made again.
    """

    holds: bool
    found: str = ""
    case: str = ""
    seed: int = 0

    def __str__(self) -> str:
        return "holds" if self.holds else f"{self.found} (case {self.case!r}, seed {self.seed})"


@dataclass(frozen=True)
class Certificate:
    """Verdicts and times of one environment.

    Attributes:
        environment: what they hold for; see environment.py.
        made: date and time of the last proof, ISO 8601.
        times: seconds of one call by backend, host included; only of backends that hold, and the reference.
    """

    environment: dict[str, str]
    made: str
    verdicts: dict[Family, Verdict] = field(default_factory=dict)
    times: dict[Timed, dict[str, float]] = field(default_factory=dict)

    def merged(self, later: "Certificate") -> "Certificate":
        """Both together; what `later` says of a family or a measurement replaces what was known."""
        return Certificate(later.environment, later.made, self.verdicts | later.verdicts, self.times | later.times)

    def covers(self, scope: Scope, backends: Iterable[str]) -> bool:
        """Whether every family of the scope has been judged for these backends."""
        return all(family in self.verdicts for name in backends for family in families_in(scope, name))

    def failed(self, families: Iterable[Family]) -> tuple[Family, Verdict] | None:
        """The first of the families that is known not to hold."""
        known = ((f, self.verdicts[f]) for f in families if f in self.verdicts)
        return next(((f, v) for f, v in known if not v.holds), None)

    def holds(self, families: Iterable[Family]) -> bool:
        return all(f in self.verdicts and self.verdicts[f].holds for f in families)

    def dump(self) -> str:
        record = {
            "format": FORMAT,
            "environment": self.environment,
            "made": self.made,
            "verdicts": {str(f): {"holds": True} if v.holds else vars(v) for f, v in sorted(self.verdicts.items())},
            "times": {str(t): by_name for t, by_name in sorted(self.times.items())},
        }
        return json.dumps(record, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Certificate":
        """The certificate that `dump` wrote.

        Raises:
            ValueError: it is damaged or of another format; the message names the field.
        """
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from error
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"format: wanted an object of format {FORMAT}")
        environment, made = record.get("environment"), record.get("made")
        if not isinstance(environment, dict) or not all(isinstance(v, str) for v in environment.values()):
            raise ValueError("environment: wanted an object of strings")
        if not isinstance(made, str):
            raise ValueError("made: wanted a date")
        verdicts = {Family.parse(name): _verdict(name, v) for name, v in _members(record, "verdicts").items()}
        times = {Timed.parse(name): _seconds(name, v) for name, v in _members(record, "times").items()}
        return cls(environment, made, verdicts, times)


def _members(record: dict, name: str) -> dict:
    members = record.get(name)
    if not isinstance(members, dict):
        raise ValueError(f"{name}: wanted an object")
    return members


def _verdict(name: str, value: object) -> Verdict:
    if not isinstance(value, dict) or type(value.get("holds")) is not bool:
        raise ValueError(f"verdicts, {name}: wanted an object with holds true or false")
    texts = [value.get(key, "") for key in ("found", "case")]
    seed = value.get("seed", 0)
    if not all(isinstance(text, str) for text in texts) or type(seed) is not int:
        raise ValueError(f"verdicts, {name}: wanted strings for found and case and an integer for seed")
    return Verdict(value["holds"], *texts, seed)


def _seconds(name: str, value: object) -> dict[str, float]:
    if not isinstance(value, dict) or not all(type(s) in (int, float) and s > 0 for s in value.values()):
        raise ValueError(f"times, {name}: wanted seconds by backend")
    return {backend: float(seconds) for backend, seconds in value.items()}
