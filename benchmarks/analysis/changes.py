"""What changed from one set of rows to another.

A change counts when it is beyond two kinds of noise. Within a run: the intervals median +- 1.57 IQR / sqrt(n), which
for equal medians overlap 95 times in 100 (McGill, Tukey and Larsen 1978), do not overlap. Between runs: it is larger
than nine tenths of what the controls moved by, which are providers that are the same in both, such as eager PyTorch.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import rows
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP
from benchmarks.rows.selection import MOST_DISTURBANCE
from benchmarks.steps.names import RELEASED

_CONTROLS = {EAGER, COMPILED, COMPOSITION, ONE_MAP, RELEASED}
_NOTCH = 1.57
_QUANTILE = 0.9
# Without a control, or with very quiet ones: two runs of the same code were never seen to agree better than this.
_LEAST_NOISE = 0.02
# The memory method's own slack.
_MEMORY_SLACK_MB = 4.0

Timed = rows.TimeRow | rows.HostRow | rows.StepRow


@dataclass(frozen=True)
class Change:
    """One measurement in both sets.

    Attributes:
        what: case and provider.
        old, new: medians, in `unit`.
        ratio: new over old; below 1 is an improvement.
        low, high: the ratio of the quartiles farthest apart.
        within: whether the medians' intervals overlap.
        control: whether the provider is the same in both.
        disturbed: whether other processes were at work in either run.
    """

    what: str
    unit: str
    old: float
    new: float
    low: float
    high: float
    within: bool
    control: bool = False
    disturbed: bool = False

    @property
    def ratio(self) -> float:
        return self.new / self.old

    def verdict(self, noise: float) -> str:
        """In words, with the logarithm of the ratio that counts as noise."""
        if self.within or abs(math.log(self.ratio)) <= noise:
            return "within noise"
        return "better" if self.ratio < 1 else "WORSE"


def _place(row: rows.Row) -> str:
    """Where times may be compared: the machine and threads. Which instructions the kernels took is theirs to change."""
    return json.dumps({k: v for k, v in row.origin.machine.items() if k != "instruction_sets"}, sort_keys=True)


def _key(row: rows.Row) -> tuple:
    if isinstance(row, rows.StepRow):
        what = (row.size, row.mode, row.dtype, row.lengths, row.batches, row.sentences)
    else:
        what = (row.case,)
    return (_place(row), row.kind, *what, row.provider)


def _latest(measured: Sequence[rows.Row]) -> dict[tuple, rows.Row]:
    """By what was measured; of several rows of one thing the latest. Ceilings are no one's to change."""
    return {_key(row): row for row in measured if not isinstance(row, rows.CeilingRow)}


def _name(row: rows.Row) -> str:
    if isinstance(row, rows.StepRow):
        return f"{row.size} {row.mode} {row.dtype}, {row.provider}"
    kind = {"time": "", "host": ", host", "memory": ", memory"}[row.kind]
    return f"{row.case}, {row.provider}{kind}"


def _quartiles(row: Timed) -> tuple[float, float, float]:
    if isinstance(row, rows.HostRow):
        return row.q1_us, row.median_us, row.q3_us
    return row.q1_ms, row.median_ms, row.q3_ms


def _timed(old: Timed, new: Timed, same_torch: bool) -> Change:
    (old_q1, old_median, old_q3), (new_q1, new_median, new_q3) = _quartiles(old), _quartiles(new)
    reach = sum(
        _NOTCH * (q3 - q1) / math.sqrt(row.repeats) for row, q1, q3 in ((old, old_q1, old_q3), (new, new_q1, new_q3))
    )
    shares = [getattr(row, "others_share", None) or 0.0 for row in (old, new)]
    return Change(
        what=_name(new),
        unit="us" if isinstance(new, rows.HostRow) else "ms",
        old=old_median,
        new=new_median,
        low=new_q1 / old_q3,
        high=new_q3 / old_q1,
        within=abs(new_median - old_median) <= reach,
        control=same_torch and new.provider in _CONTROLS,
        disturbed=max(shares) > MOST_DISTURBANCE,
    )


def _memory(old: rows.MemoryRow, new: rows.MemoryRow) -> Change:
    # Counted from a floor of the method's slack: a ratio of two readings near zero says nothing.
    floors = [max(row.extra_mb, _MEMORY_SLACK_MB) for row in (old, new)]
    ratio = floors[1] / floors[0]
    within = abs(new.extra_mb - old.extra_mb) <= _MEMORY_SLACK_MB
    return Change(_name(new), "MB", *floors, ratio, ratio, within)


def changes(old: Sequence[rows.Row], new: Sequence[rows.Row]) -> list[Change]:
    """What both sets measured on the same machine and threads, in the order of the new one.

    Raises:
        ValueError: the sets have no machine and thread number in common.
    """
    if old and new and not {_place(row) for row in old} & {_place(row) for row in new}:
        raise ValueError(
            "OLD and NEW are of different machines or threads, and times compare on one alone: "
            f"{_machines(old)}; {_machines(new)}"
        )
    before = _latest(old)
    found = []
    for key, row in _latest(new).items():
        if key not in before:
            continue
        earlier = before[key]
        if isinstance(row, rows.MemoryRow):
            found.append(_memory(earlier, row))
        else:
            same_torch = earlier.origin.versions.get("torch") == row.origin.versions.get("torch")
            found.append(_timed(earlier, row, same_torch))
    return found


def _machines(measured: Sequence[rows.Row]) -> str:
    machines = (row.origin.machine for row in measured)
    return ", ".join(dict.fromkeys(f"{m.get('cpu')} with {m.get('threads')} threads" for m in machines))


def noise_between_runs(found: Sequence[Change]) -> float:
    """The logarithm that nine tenths of the controls' times stayed within, at least a stated least."""
    moved = sorted(abs(math.log(change.ratio)) for change in found if change.control)
    if not moved:
        return _LEAST_NOISE
    return max(_LEAST_NOISE, moved[math.ceil(_QUANTILE * len(moved)) - 1])


def lines(old: Sequence[rows.Row], new: Sequence[rows.Row]) -> list[str]:
    """The comparison as text: where the rows are from, the noise, each change, and how many there are.

    Raises:
        ValueError: nothing was measured in both, or not on the same machine and threads.
    """
    found = changes(old, new)
    if not found:
        raise ValueError("OLD and NEW have no measurement in common")
    noise = noise_between_runs(found)
    controls = sum(change.control for change in found)
    told = [f"old: {_sources(old)}", f"new: {_sources(new)}"]
    told.append(
        f"noise between the runs: {math.expm1(noise):.1%}, "
        + (f"from {controls} controls" if controls else "assumed: the rows hold no provider that is the same in both")
    )
    for change in found:
        mark = " (disturbed)" if change.disturbed else ""
        told.append(
            f"{change.what:<70} {change.old:>9.4g} -> {change.new:>9.4g} {change.unit}  {change.ratio:5.2f} "
            f"[{change.low:.2f}, {change.high:.2f}]  {change.verdict(noise)}{mark}"
        )
    verdicts = [change.verdict(noise) for change in found if not change.control]
    counts = ", ".join(f"{verdicts.count(word)} {word.lower()}" for word in ("better", "WORSE", "within noise"))
    told.append(f"{counts}; {controls} controls beside them")
    for name, here, there in (("OLD", old, new), ("NEW", new, old)):
        alone = [row for key, row in _latest(here).items() if key not in _latest(there)]
        if alone:
            told.append(f"in {name} alone: {len(alone)} measurements on {_machines(alone)}")
    return told


def _sources(measured: Sequence[rows.Row]) -> str:
    return " | ".join(dict.fromkeys(rows.source_line(row.origin) for row in measured))
