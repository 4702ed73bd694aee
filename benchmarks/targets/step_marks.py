"""What whole steps of QACG-BERT are to reach."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import rows
from benchmarks.steps.names import BERT, FOLDED, INFERENCE, PACKED, RELEASED, TRAINING
from benchmarks.targets.verdicts import Verdict, not_measured


@dataclass(frozen=True)
class StepMark:
    """In one run of `size` and `mode`, `provider` in `dtype` is to be `at_least` times as fast as `rival`, which runs
    in float32."""

    size: str
    mode: str
    provider: str
    dtype: str
    rival: str
    at_least: float


MARKS = [
    StepMark("minilm", TRAINING, PACKED, "float32", RELEASED, 5),
    StepMark("minilm", TRAINING, PACKED, "bfloat16", RELEASED, 8),
    StepMark("minilm", INFERENCE, FOLDED, "float32", RELEASED, 5),
]
AIMS = [
    StepMark("base-12", TRAINING, PACKED, "float32", RELEASED, 6),
    StepMark("base-12", TRAINING, PACKED, "float32", BERT, 0.8),  # within 1.25 times its step
]


def judge(marks: Sequence[StepMark], measured: Sequence[rows.Row]) -> list[Verdict]:
    """A verdict for each mark; one that the rows cannot answer is not measured."""
    found = {(row.size, row.mode, row.provider, row.dtype): row for row in measured if isinstance(row, rows.StepRow)}
    verdicts = []
    for mark in marks:
        what = f"{mark.size} {mark.mode}, {mark.provider} in {mark.dtype} vs {mark.rival} in float32"
        target = f"at least {mark.at_least:g}x"
        own = found.get((mark.size, mark.mode, mark.provider, mark.dtype))
        rival = found.get((mark.size, mark.mode, mark.rival, "float32"))
        if own is None or rival is None:
            verdicts.append(not_measured(what, target))
            continue
        ratio = rival.median_ms / own.median_ms
        verdicts.append(Verdict(what, target, f"{ratio:.2f}x", ratio >= mark.at_least))
    return verdicts
