"""What the CPU path is to reach beside its marks; meant for two threads with AVX-512."""

from collections.abc import Sequence

from benchmarks import rows
from benchmarks.cases.case import (
    BACKWARD,
    DOCUMENTS,
    FORWARD,
    FORWARD_BACKWARD,
    MAIN_SHAPES,
    PACKED,
    PARAGRAPHS,
    SENTENCES,
    Case,
)
from benchmarks.providers.names import EAGER, ONE_MAP
from benchmarks.targets.cpu_marks import MARKS, MOST_DROPOUT
from benchmarks.targets.verdicts import (
    Ratio,
    Share,
    Times,
    Verdict,
    judge_ratio,
    judge_share,
    not_measured,
    time_across,
    times_of,
)

DROPOUT = 0.1
# Both maps take at most these shares of the time of one.
_MOST_OF_ONE_MAP = {SENTENCES: 0.75, PARAGRAPHS: 0.75, DOCUMENTS: 0.8}


SHARES = [
    # The suite has rows for these marks too.
    *(mark for mark in MARKS if isinstance(mark, Share) and mark.case.mode == FORWARD),
    *(Share(Case(shape, mode=BACKWARD), 0.65) for shape in MAIN_SHAPES),
    *(Share(Case(shape, "bfloat16"), 0.5) for shape in MAIN_SHAPES),
    *(Share(Case(shape, "bfloat16", BACKWARD), 0.4) for shape in MAIN_SHAPES),
]
RATIOS = [
    Ratio(Case(SENTENCES), EAGER, 9),
    Ratio(Case(DOCUMENTS), EAGER, 18),
    Ratio(Case(SENTENCES, mode=FORWARD_BACKWARD), EAGER, 6),
    Ratio(Case(DOCUMENTS, mode=FORWARD_BACKWARD), EAGER, 6.5),
    *(Ratio(Case(shape), ONE_MAP, 1 / most) for shape, most in _MOST_OF_ONE_MAP.items()),
    *(
        Ratio(
            Case(shape, mode=FORWARD_BACKWARD, dropout=DROPOUT),
            "",
            1 / MOST_DROPOUT,
            other=Case(shape, mode=FORWARD_BACKWARD),
        )
        for shape in MAIN_SHAPES
    ),
]
PACKED_CASES = [Case(SENTENCES, mode=mode, lengths=PACKED) for mode in (FORWARD, FORWARD_BACKWARD)]


def _judge_packed(case: Case, backend: str, times: Times) -> Verdict:
    """Cost in proportion to the tokens that exist: packed sequences are shorter, so their pairs are fewer still."""
    batch, _, length, _ = case.shape
    most = sum(case.sequence_lengths) / (batch * length)
    full = Case(case.shape, case.dtype, case.mode)
    what, target = f"{case}, {backend} of {full.lengths}", f"at most {most:.0%}"
    own, of_full = times(case, backend), times(full, backend)
    if own is None or of_full is None:
        return not_measured(what, target)
    share = time_across(own, of_full)
    pairs = case.products / full.products
    return Verdict(what, target, f"{share:.0%} ({pairs:.0%} of the pairs are there)", share <= most)


def judge_operators(measured: Sequence[rows.Row], backend: str) -> list[Verdict]:
    """Every aim of the operators for a backend: met, missed or not measured."""
    times = times_of(measured)
    return [
        *(judge_share(aim, backend, times) for aim in SHARES),
        *(judge_ratio(aim, backend, times) for aim in RATIOS),
        *(_judge_packed(case, backend, times) for case in PACKED_CASES),
    ]


def notes(measured: Sequence[rows.Row]) -> list[str]:
    """What a reader of the shares has to know of the ceilings."""
    best: dict[str, rows.CeilingRow] = {}
    for row in measured:
        if isinstance(row, rows.CeilingRow) and (row.dtype not in best or row.gflops > best[row.dtype].gflops):
            best[row.dtype] = row
    lines = [f"ceiling: {row}" for row in best.values()]
    on_amx = any((row.origin.machine.get("instruction_sets") or {}).get("float32") == "amx" for row in best.values())
    if on_amx and "bfloat16" in best:
        sixth = best["bfloat16"].gflops / 6
        lines.append(
            f"On AMX the kernels make a float32 product of six in bfloat16: {sixth:.4g} GFLOP/s at the bfloat16 "
            "ceiling, so that a share of the float32 ceiling may be above 1."
        )
    return lines
