"""Compares two sets of benchmark records: `python -m benchmarks.compare OLD NEW`.

OLD and NEW are files or folders of records. A change counts as better or worse if it exceeds two kinds of noise:

- Noise within a run: the intervals median +- 1.57 IQR / sqrt(n) of the two runs do not overlap. For equal medians they
  overlap in 95 of 100 cases (McGill, Tukey and Larsen 1978). Memory has to change by more than 4 MB instead.
- Noise between runs: the change is larger than 2%, and larger than the changes of 90% of the controls. Controls are
  implementations that are the same in both sets, such as eager with the same version of torch.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import records
from benchmarks.command import exit_status
from benchmarks.implementations.registry import COMPILED, COMPOSITION, EAGER, ONE_MAP
from benchmarks.model_steps import RELEASED

_CONTROLS = {EAGER, COMPILED, COMPOSITION, ONE_MAP, RELEASED}
_NOTCH = 1.57
_QUANTILE = 0.9
# The smallest noise between runs: no two runs of the same code have agreed better than this.
_LEAST_NOISE = 0.02
# The accuracy of the memory measurement.
_MEMORY_SLACK_MB = 4.0

Timed = records.TimeRecord | records.OverheadRecord | records.StepRecord


@dataclass(frozen=True)
class Change:
    """A measurement that both sets of records have: its old and its new value.

    Attributes:
        what: case and implementation.
        unit: "us", "ms" or "MB".
        old, new: medians, in `unit`; for memory, the values, but at least _MEMORY_SLACK_MB.
        ratio: new over old; below 1 is an improvement.
        low: the new first quartile over the old third quartile; for memory, `ratio`.
        high: the new third quartile over the old first quartile; for memory, `ratio`.
        within: whether the change is within the noise of a run: the medians' intervals overlap, or for memory the
            values differ by at most _MEMORY_SLACK_MB.
        control: whether the implementation is one of _CONTROLS, and the version of torch is equal in both sets.
        contended: whether other processes used more than MOST_CONTENTION of the CPU in either run.
    """

    what: str
    unit: str
    old: float
    new: float
    low: float
    high: float
    within: bool
    control: bool = False
    contended: bool = False

    @property
    def ratio(self) -> float:
        return self.new / self.old

    def verdict(self, noise: float) -> str:
        """Returns "better", "WORSE" or "within noise"; `noise` is the largest |log(ratio)| that counts as noise."""
        if self.within or abs(math.log(self.ratio)) <= noise:
            return "within noise"
        return "better" if self.ratio < 1 else "WORSE"


def _place(record: records.Record) -> str:
    """Describes machine and threads, without the instruction sets that the kernels use.

    Times of records with equal descriptions are comparable.
    """
    return json.dumps({k: v for k, v in record.origin.machine.items() if k != "instruction_sets"}, sort_keys=True)


def _key(record: records.Record) -> tuple:
    if isinstance(record, records.StepRecord):
        what = (record.size, record.mode, record.dtype, record.lengths, record.batches, record.sentences)
    else:
        what = (record.case,)
    return (_place(record), record.kind, *what, record.implementation)


def _latest(measured: Sequence[records.Record]) -> dict[tuple, records.Record]:
    """Returns the last record of each measurement by `_key`; leaves out CeilingRecords."""
    return {_key(record): record for record in measured if not isinstance(record, records.CeilingRecord)}


def _name(record: records.Record) -> str:
    if isinstance(record, records.StepRecord):
        return f"{record.size} {record.mode} {record.dtype}, {record.implementation}"
    kind = {"time": "", "overhead": ", host overhead", "memory": ", memory"}[record.kind]
    return f"{record.case}, {record.implementation}{kind}"


def _quartiles(record: Timed) -> tuple[float, float, float]:
    if isinstance(record, records.OverheadRecord):
        return record.q1_us, record.median_us, record.q3_us
    return record.q1_ms, record.median_ms, record.q3_ms


def _timed(old: Timed, new: Timed, same_torch: bool) -> Change:
    (old_q1, old_median, old_q3), (new_q1, new_median, new_q3) = _quartiles(old), _quartiles(new)
    reach = sum(
        _NOTCH * (q3 - q1) / math.sqrt(record.repeats)
        for record, q1, q3 in ((old, old_q1, old_q3), (new, new_q1, new_q3))
    )
    shares = [getattr(record, "cpu_contention", None) or 0.0 for record in (old, new)]
    return Change(
        what=_name(new),
        unit="us" if isinstance(new, records.OverheadRecord) else "ms",
        old=old_median,
        new=new_median,
        low=new_q1 / old_q3,
        high=new_q3 / old_q1,
        within=abs(new_median - old_median) <= reach,
        control=same_torch and new.implementation in _CONTROLS,
        contended=max(shares) > records.MOST_CONTENTION,
    )


def _memory(old: records.MemoryRecord, new: records.MemoryRecord) -> Change:
    # A ratio of two values near zero is meaningless, so smaller values are replaced by the accuracy of the method.
    values = [max(record.extra_mb, _MEMORY_SLACK_MB) for record in (old, new)]
    ratio = values[1] / values[0]
    within = abs(new.extra_mb - old.extra_mb) <= _MEMORY_SLACK_MB
    return Change(_name(new), "MB", *values, ratio, ratio, within)


def changes(old: Sequence[records.Record], new: Sequence[records.Record]) -> list[Change]:
    """The changes of all measurements that both sets have on the same machine and threads, in the order of `new`.

    Raises:
        ValueError: the sets have no machine and thread count in common.
    """
    if old and new and not {_place(record) for record in old} & {_place(record) for record in new}:
        raise ValueError(
            f"OLD and NEW: expected records of the same machine and threads, got {_differences(old, new)}. Measure both"
            " commits on one machine, with the same --threads."
        )
    before = _latest(old)
    found = []
    for key, record in _latest(new).items():
        if key not in before:
            continue
        earlier = before[key]
        if isinstance(record, records.MemoryRecord):
            found.append(_memory(earlier, record))
        else:
            same_torch = earlier.origin.versions.get("torch") == record.origin.versions.get("torch")
            found.append(_timed(earlier, record, same_torch))
    return found


def _machines(measured: Sequence[records.Record]) -> str:
    machines = (record.origin.machine for record in measured)
    named = (f"{m.get('cpu')} with {m.get('threads')} thread{'' if m.get('threads') == 1 else 's'}" for m in machines)
    return ", ".join(dict.fromkeys(named))


def _differences(old: Sequence[records.Record], new: Sequence[records.Record]) -> str:
    """The facts about machines that are not equal in all records, as "threads 2 in OLD, threads 1 in NEW"."""
    places = {name: [json.loads(_place(one)) for one in part] for name, part in (("OLD", old), ("NEW", new))}
    every = [place for part in places.values() for place in part]
    facts = [fact for fact in {**every[0], **every[-1]} if any(one.get(fact) != every[0].get(fact) for one in every)]
    shown = {
        name: dict.fromkeys(", ".join(f"{fact} {one.get(fact)}" for fact in facts) for one in part)
        for name, part in places.items()
    }
    return ", ".join(f"{' and '.join(part)} in {name}" for name, part in shown.items())


def noise_between_runs(found: Sequence[Change]) -> float:
    """Returns the noise between runs, as the largest |log(ratio)| that counts as noise.

    90% of the controls do not exceed it. It is at least _LEAST_NOISE, and equal to it without controls.
    """
    moved = sorted(abs(math.log(change.ratio)) for change in found if change.control)
    if not moved:
        return _LEAST_NOISE
    return max(_LEAST_NOISE, moved[math.ceil(_QUANTILE * len(moved)) - 1])


def lines(old: Sequence[records.Record], new: Sequence[records.Record]) -> list[str]:
    """Formats the comparison as lines of text.

    The lines have the origins of the records, the noise, each change, and the numbers of changes.

    Raises:
        ValueError: the sets have no measurement, or no machine and thread count, in common.
    """
    found = changes(old, new)
    compared = [(name, list(_latest(part).values())) for name, part in (("OLD", old), ("NEW", new))]
    if not found:
        got = [f"{_name(part[0])} and others in {name}" if part else f"none in {name}" for name, part in compared]
        raise ValueError(
            f"OLD and NEW: expected a measurement in common, got {', '.join(got)}. Measure the same cases in both."
        )
    noise = noise_between_runs(found)
    controls = sum(change.control for change in found)
    counted_controls = f"{controls} control{'' if controls == 1 else 's'}"
    text = [f"old: {_sources(old)}", f"new: {_sources(new)}"]
    text.append(
        f"noise between the runs: {math.expm1(noise):.1%}, "
        + (f"from {counted_controls}" if controls else "assumed, since no implementation is the same in both")
    )
    for change in found:
        mark = " (other processes used the CPU)" if change.contended else ""
        text.append(
            f"{change.what:<70} {change.old:>9.4g} -> {change.new:>9.4g} {change.unit}  {change.ratio:5.2f} "
            f"[{change.low:.2f}, {change.high:.2f}]  {change.verdict(noise)}{mark}"
        )
    verdicts = [change.verdict(noise) for change in found if not change.control]
    counts = ", ".join(f"{verdicts.count(word)} {word.lower()}" for word in ("better", "WORSE", "within noise"))
    text.append(f"{counts}; {counted_controls}")
    for name, here, there in (("OLD", old, new), ("NEW", new, old)):
        alone = [record for key, record in _latest(here).items() if key not in _latest(there)]
        if alone:
            text.append(f"only in {name}: {len(alone)} measurement{'s' if alone[1:] else ''} on {_machines(alone)}")
    return text


def _sources(measured: Sequence[records.Record]) -> str:
    return " | ".join(dict.fromkeys(str(record.origin) for record in measured))


def load(path: str) -> list[records.Record]:
    """Reads the records of a file, or of all .jsonl files in a folder."""
    folder = Path(path)
    return records.load(sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description="Prints what changed between two sets of records."
    )
    parser.add_argument("old", help="records of the old commit: a file, or a folder of such files")
    parser.add_argument("new", help="records of the new commit: a file, or a folder of such files")
    options = parser.parse_args(arguments)

    def compare() -> int:
        print("\n".join(lines(load(options.old), load(options.new))))
        return 0

    return exit_status(compare)


if __name__ == "__main__":
    sys.exit(main())
