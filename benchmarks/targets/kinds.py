"""Kinds of performance targets. A kind defines which cases to measure, and when their records meet a target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from benchmarks import records
from benchmarks.cases import FULL, QUASI_ATTENTION_FLOPS, TILED_FLOPS, Case
from benchmarks.measure.session import MEMORY, OVERHEAD, TIME, Item


@dataclass(frozen=True)
class Result:
    """A target and its measurement, as text, and whether it is met."""

    what: str
    target: str
    measured: str
    met: bool
    stretch: bool = False

    def __str__(self) -> str:
        status = "met   " if self.met else "MISSED"
        return f"{status}  {self.what:<74} {self.target:<15} {self.measured}{' (stretch)' if self.stretch else ''}"


NOT_MEASURED = "not measured"
OTHER_STATE = "not comparable: the AMX tiles ran at other rates"


def _result(what: str, target: str, stretch: bool, compare: Callable, *found: records.Record | None) -> Result:
    """The result of comparing records; None stands for a record that is missing."""
    if None in found:
        return Result(what, target, NOT_MEASURED, False, stretch)
    if not records.of_one_state(getattr(one, "product_gflops", None) for one in found):
        return Result(what, target, OTHER_STATE, False, stretch)
    return Result(what, target, *(compare(*found) or (NOT_MEASURED, False)), stretch)


def _latest(kind: str, case: Case, name: str, measured: Sequence[records.Record]) -> records.Record | None:
    found = [one for one in measured if one.kind == kind and (one.case, one.implementation) == (case, name)]
    return found[-1] if found else None


def time_ratio(one: records.TimeRecord, other: records.TimeRecord) -> float:
    """The time of one case divided by that of another, which ran in other rounds.

    The machine's speed may differ between the rounds, so each time is divided by the time of the matrix product in its
    rounds. If the cases have different dtypes, and so different products, the times are compared directly.
    """
    ratio = one.median_ms / other.median_ms
    if one.matrix_peak_gflops and other.matrix_peak_gflops and one.dtype == other.dtype:
        ratio *= one.matrix_peak_gflops / other.matrix_peak_gflops
    return ratio


@dataclass(frozen=True)
class Target:
    """A performance target for a backend in one case."""

    case: Case
    stretch: bool = False  # whether the target exceeds what a release requires
    kind: ClassVar[str] = TIME  # of the records that the target reads

    def reads(self, backend: str) -> list[tuple[Case, str]]:
        """The pairs (case, implementation) that are compared; the first pair has to meet the target."""
        return [(self.case, backend)]

    def items(self, backend: str) -> list[Item]:
        """The items to measure for this target."""
        return [Item(case, (name,), self.kind) for case, name in reversed(self.reads(backend))]

    def judge(self, backend: str, measured: Sequence[records.Record]) -> Result:
        """Returns the result for a backend: the target, the measured value, and whether the value meets the target."""
        what, target = self.describe(backend)
        found = [_latest(self.kind, case, name, measured) for case, name in self.reads(backend)]
        return _result(what, target, self.stretch, self.compare, *found)

    def describe(self, backend: str) -> tuple[str, str]:
        """Texts for the measured quantity and for the target value."""
        raise NotImplementedError

    def compare(self, *found: records.Record) -> tuple[str, bool] | None:
        """The measured value as text and whether it meets the target; None if the records lack a value."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SpeedUp(Target):
    """A backend is `at_least` times as fast as a baseline in the same rounds."""

    baseline: str
    at_least: float

    def reads(self, backend: str) -> list[tuple[Case, str]]:
        return [(self.case, backend), (self.case, self.baseline)]

    def describe(self, backend: str) -> tuple[str, str]:
        return f"{self.case}, {backend} vs {self.baseline}", f"at least {self.at_least:.3g}x"

    def compare(self, own: records.TimeRecord, other: records.TimeRecord) -> tuple[str, bool]:
        ratio = other.median_ms / own.median_ms
        share = "" if own.share_of_peak is None else f" ({own.share_of_peak:.0%} of the ceiling)"
        return f"{ratio:.2f}x{share}", ratio >= self.at_least


@dataclass(frozen=True, kw_only=True)
class SpeedUpOverCase(Target):
    """A backend is `at_least` times as fast in `case` as in `other`."""

    other: Case
    at_least: float

    def reads(self, backend: str) -> list[tuple[Case, str]]:
        return [(self.case, backend), (self.other, backend)]

    def describe(self, backend: str) -> tuple[str, str]:
        if self.other.lengths != self.case.lengths:
            against = self.other.lengths
        elif self.other.dtype != self.case.dtype:
            against = self.other.dtype
        elif self.other.gate != self.case.gate:
            against = f"gate {self.other.gate}"
        else:
            against = f"dropout {self.other.dropout:g}"
        return f"{self.case}, {backend} vs {against}", f"at least {self.at_least:.3g}x"

    def compare(self, own: records.TimeRecord, other: records.TimeRecord) -> tuple[str, bool]:
        ratio = time_ratio(other, own)
        return f"{ratio:.2f}x", ratio >= self.at_least


@dataclass(frozen=True, kw_only=True)
class CeilingShare(Target):
    """A backend reaches the share `at_least` of the matrix-product ceiling of the same rounds."""

    at_least: float

    def describe(self, backend: str) -> tuple[str, str]:
        return f"{self.case}, {backend} of the ceiling", f"at least {self.at_least:.0%}"

    def compare(self, own: records.TimeRecord) -> tuple[str, bool] | None:
        if own.share_of_peak is None:
            return None
        value = f"{own.share_of_peak:.0%} ({own.gflops:.4g} of {own.matrix_peak_gflops:.4g} GFLOP/s)"
        return value, own.share_of_peak >= self.at_least


@dataclass(frozen=True, kw_only=True)
class RateOverBaseline(Target):
    """A backend reaches at least `at_least` times the FLOP/s of a baseline, both counted by FLOP_CONVENTION.

    The baseline may compute fewer FLOP, as softmax attention alone does.
    """

    baseline: str
    at_least: float = 1.0

    def reads(self, backend: str) -> list[tuple[Case, str]]:
        return [(self.case, backend), (self.case, self.baseline)]

    def describe(self, backend: str) -> tuple[str, str]:
        return f"{self.case}, {backend}'s rate vs {self.baseline}'s", f"at least {self.at_least:.4g}x"

    def compare(self, own: records.TimeRecord, other: records.TimeRecord) -> tuple[str, bool]:
        rates = [own.gflops, other.gflops]
        shares = [one.share_of_peak for one in (own, other)]
        both = "" if None in shares else f" ({shares[0]:.0%} and {shares[1]:.0%} of the ceiling)"
        return f"{rates[0] / rates[1]:.2f}x{both}", rates[0] >= self.at_least * rates[1]


@dataclass(frozen=True, kw_only=True)
class CountedRate(Target):
    """A backend reaches `at_least` TFLOP/s, counted by FLOP_CONVENTION, in a forward or backward of tiled rows.

    The result also has the rate of the FLOP that the tiled kernels execute.
    """

    at_least: float

    def describe(self, backend: str) -> tuple[str, str]:
        count = QUASI_ATTENTION_FLOPS[self.case.mode]
        return f"{self.case}, {backend}, counted {count} L S D", f"at least {self.at_least:.4g} TFLOP/s"

    def compare(self, own: records.TimeRecord) -> tuple[str, bool]:
        mode, share, peak = self.case.mode, own.share_of_peak, own.matrix_peak_gflops
        rate = own.gflops / 1e3
        executed = rate * TILED_FLOPS[mode] / QUASI_ATTENTION_FLOPS[mode]
        shares = f", {share:.0%} of the matrix peak" if share else ""
        beside = f", {executed / peak * 1e3:.0%}" if peak else ""
        return f"{rate:.4g} TFLOP/s{shares} ({executed:.4g} executed{beside})", rate >= self.at_least


@dataclass(frozen=True, kw_only=True)
class PackedCost(Target):
    """Packed sentences that have p % of the tokens of a full batch take at most p % of its time."""

    def reads(self, backend: str) -> list[tuple[Case, str]]:
        return [(self.case, backend), (Case(self.case.shape, self.case.dtype, self.case.mode), backend)]

    def _most(self) -> float:
        batch, _, length, _ = self.case.shape
        return sum(self.case.sequence_lengths) / (batch * length)

    def describe(self, backend: str) -> tuple[str, str]:
        return f"{self.case}, {backend} of {FULL}", f"at most {self._most():.0%}"

    def compare(self, own: records.TimeRecord, other: records.TimeRecord) -> tuple[str, bool]:
        share, entries = time_ratio(own, other), self.case.products / other.case.products
        return f"{share:.0%} (for {entries:.0%} of the attention entries)", share <= self._most()


@dataclass(frozen=True, kw_only=True)
class TemporaryMemory(Target):
    """Temporary memory is at most `most_mb` MB.

    If `most_mb` is None, it is at most the share `most_share` of the size of inputs, output and saved tensors.
    """

    kind: ClassVar[str] = MEMORY
    most_mb: float | None = None
    most_share: float | None = None

    def describe(self, backend: str) -> tuple[str, str]:
        most = f"at most {self.most_share:.0%}" if self.most_mb is None else f"at most {self.most_mb:g} MB"
        return f"{self.case}, {backend}, temporary memory", most

    def compare(self, own: records.MemoryRecord) -> tuple[str, bool]:
        if self.most_mb is None:
            share = own.extra_mb / (own.input_mb + own.output_mb + own.saved_mb)
            return f"{share:.1%} of inputs, output and saved tensors", share <= self.most_share
        parts = f"forward {own.forward_extra_mb:.1f}, backward {own.backward_extra_mb:.1f}"
        return f"{own.extra_mb:.1f} MB ({parts})", own.extra_mb <= self.most_mb


@dataclass(frozen=True, kw_only=True)
class HostOverhead(Target):
    """A call returns to the host in less than `below_us`."""

    kind: ClassVar[str] = OVERHEAD
    below_us: float

    def describe(self, backend: str) -> tuple[str, str]:
        return f"{self.case}, {backend}, host overhead", f"below {self.below_us:g} us"

    def compare(self, own: records.OverheadRecord) -> tuple[str, bool]:
        return f"{own.median_us:.1f} us", own.median_us < self.below_us


@dataclass(frozen=True)
class StepSpeedUp:
    """Model steps in `dtype` (bfloat16: autocast) are `at_least` times as fast as those of `baseline` in float32."""

    size: str
    mode: str
    implementation: str
    dtype: str
    baseline: str
    at_least: float
    stretch: bool = False

    def items(self, backend: str) -> list[Item]:
        """Returns no items, since `benchmarks.end_to_end` measures whole steps."""
        return []

    def judge(self, backend: str, measured: Sequence[records.Record]) -> Result:
        """Returns the result: the target, the measured value, and whether the value meets the target."""
        found = {
            (one.size, one.mode, one.implementation, one.dtype): one
            for one in measured
            if isinstance(one, records.StepRecord)
        }
        what = f"{self.size} {self.mode}, {self.implementation} in {self.dtype} vs {self.baseline} in float32"
        target = f"at least {self.at_least:g}x"
        own = found.get((self.size, self.mode, self.implementation, self.dtype))
        other = found.get((self.size, self.mode, self.baseline, "float32"))
        return _result(what, target, self.stretch, self.compare, own, other)

    def compare(self, own: records.StepRecord, other: records.StepRecord) -> tuple[str, bool]:
        """The measured value as text and whether it meets the target."""
        ratio = other.median_ms / own.median_ms
        return f"{ratio:.2f}x", ratio >= self.at_least


@dataclass(frozen=True)
class ApplicationSpeedUp:
    """The fastest precision of this package predicts `at_least` times as many rows as the fastest of some baselines."""

    baselines: tuple[str, ...]  # prefixes of their names
    at_least: float
    stretch: bool = False

    def items(self, backend: str) -> list[Item]:
        """Returns no items, since `benchmarks.applications` measures applications."""
        return []

    def judge(self, backend: str, measured: Sequence[records.Record]) -> Result:
        """Returns the result: the target, the measured value, and whether the value meets the target."""
        found = sorted(
            (one for one in measured if isinstance(one, records.ApplicationRecord)),
            key=lambda one: -one.rows_per_second,
        )
        fastest = (
            next((one for one in found if one.implementation.startswith(names)), None)
            for names in (records.OWN, self.baselines)
        )
        what, target = f"rows predicted vs {' or '.join(self.baselines)}", f"at least {self.at_least:.3g}x"
        return _result(what, target, self.stretch, self.compare, *fastest)

    def compare(self, own: records.ApplicationRecord, other: records.ApplicationRecord) -> tuple[str, bool]:
        """The measured value as text and whether it meets the target."""
        ratio = own.rows_per_second / other.rows_per_second
        return f"{ratio:.2f}x ({own.implementation}, {other.implementation})", ratio >= self.at_least


def merged_items(targets: Sequence[Target | StepSpeedUp | ApplicationSpeedUp], backend: str) -> list[Item]:
    """The items to measure for a list of targets: one item per case and kind, those of kind TIME first.

    In each item, the baselines come before `backend`.
    """
    merged: dict[tuple[Case, str], dict[str, None]] = {}
    for target in targets:
        for item in target.items(backend):
            merged.setdefault((item.case, item.kind), {}).update(dict.fromkeys(item.implementations))
    return [
        Item(case, (*(name for name in names if name != backend), backend), kind)
        for (case, kind), names in sorted(merged.items(), key=lambda pair: pair[0][1] != TIME)
    ]


def print_results(results: Sequence[Result], measured: Sequence[records.Record]) -> None:
    """Prints the results, the ceilings that they refer to, and how many targets are met."""
    best = records.fastest_products(measured)
    lines = [*map(str, results), *(f"ceiling: {product}" for product in best.values())]
    if any(one.origin.has_amx for one in best.values()) and "bfloat16" in best:
        lines.append(
            f"On AMX the kernels compute a float32 product as six bfloat16 products: "
            f"{best['bfloat16'].gflops / 6:.4g} GFLOP/s at the bfloat16 ceiling. A share of the float32 ceiling may "
            "exceed 1."
        )
    lines += [*records.state_note(measured), *records.contention_note(measured)]
    for title, chosen in (
        ("targets", [one for one in results if not one.stretch]),
        ("stretch targets", [one for one in results if one.stretch]),
    ):
        if chosen:
            lines.append(f"{sum(one.met for one in chosen)} of {len(chosen)} {title} met")
    print("\n".join(lines), flush=True)
