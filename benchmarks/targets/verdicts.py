"""Targets beside what was measured. The other files of this room set them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import rows
from benchmarks.cases.case import Case

Times = Callable[[Case, str], rows.TimeRow | None]


@dataclass(frozen=True)
class Verdict:
    """A target beside what was measured."""

    what: str
    target: str
    measured: str
    met: bool
    right: bool = True  # False: a provider's answer was wrong

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'MISSED'}  {self.what:<74} {self.target:<15} {self.measured}"


def not_measured(what: str, target: str) -> Verdict:
    """A target without its rows is not met."""
    return Verdict(what, target, "not measured", met=False)


@dataclass(frozen=True)
class Ratio:
    """A backend's speed in `case` over a rival's, or over its own in another case, where the rival has no name."""

    case: Case
    rival: str
    at_least: float
    other: Case | None = None

    def question(self, backend: str) -> tuple[str, str]:
        """What is judged, and the target."""
        against = self.rival or _difference(self.other, self.case)
        return f"{self.case}, {backend} vs {against}", f"at least {self.at_least:.3g}x"


@dataclass(frozen=True)
class Share:
    """In `case` a backend is to reach this share of the matrix-product ceiling."""

    case: Case
    at_least: float

    def question(self, backend: str) -> tuple[str, str]:
        """What is judged, and the target."""
        return f"{self.case}, {backend} of the ceiling", f"at least {self.at_least:.0%}"


@dataclass(frozen=True)
class Rate:
    """In `case` a backend is to use the machine as well as a rival, which may do less work: in FLOP a second."""

    case: Case
    rival: str

    def question(self, backend: str) -> tuple[str, str]:
        """What is judged, and the target."""
        return f"{self.case}, {backend}'s share of the ceiling", f"at least {self.rival}'s"


def times_of(measured: Sequence[rows.Row]) -> Times:
    """Looks up the time of a case and provider; of several the latest."""
    found = {(row.case, row.provider): row for row in measured if isinstance(row, rows.TimeRow)}
    return lambda case, provider: found.get((case, provider))


def time_across(one: rows.TimeRow, other: rows.TimeRow) -> float:
    """The time of one case over that of another, which ran before or after it.

    A machine may run slower by then: each time is taken in units of the matrix product that ran in its own rounds.
    (Two types have two products: the times are then taken as they are.)
    """
    ratio = one.median_ms / other.median_ms
    if one.matrix_peak_gflops and other.matrix_peak_gflops and one.dtype == other.dtype:
        ratio *= one.matrix_peak_gflops / other.matrix_peak_gflops
    return ratio


def judge_ratio(mark: Ratio, backend: str, times: Times) -> Verdict:
    """Compares two medians."""
    own, other = times(mark.case, backend), times(mark.other or mark.case, mark.rival or backend)
    what, target = mark.question(backend)
    if own is None or other is None:
        return not_measured(what, target)
    ratio = other.median_ms / own.median_ms if mark.other is None else time_across(other, own)
    beside = "" if own.share_of_peak is None else f" ({own.share_of_peak:.0%} of the ceiling)"
    return Verdict(what, target, f"{ratio:.2f}x{beside}", ratio >= mark.at_least)


def judge_share(mark: Share, backend: str, times: Times) -> Verdict:
    """Compares a rate with the ceiling's of the same rounds."""
    what, target = mark.question(backend)
    row = times(mark.case, backend)
    if row is None or row.share_of_peak is None:
        return not_measured(what, target)
    measured = f"{row.share_of_peak:.0%} ({row.gflops:.4g} of {row.matrix_peak_gflops:.4g} GFLOP/s)"
    return Verdict(what, target, measured, row.share_of_peak >= mark.at_least)


def judge_rate(mark: Rate, backend: str, times: Times) -> Verdict:
    """Compares two rates from the same rounds."""
    what, target = mark.question(backend)
    own, other = times(mark.case, backend), times(mark.case, mark.rival)
    if own is None or other is None:
        return not_measured(what, target)
    shares = [row.share_of_peak for row in (own, other)]
    beside = "" if None in shares else f" ({shares[0]:.0%} and {shares[1]:.0%})"
    return Verdict(what, target, f"{own.gflops / other.gflops:.2f}x{beside}", own.gflops >= other.gflops)


def _difference(other: Case, case: Case) -> str:
    """What tells the other case from this one."""
    if other.lengths != case.lengths:
        return other.lengths
    if other.dtype != case.dtype:
        return other.dtype
    return f"dropout {other.dropout:g}"
