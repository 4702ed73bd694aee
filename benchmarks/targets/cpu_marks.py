"""The marks of the CPU path, meant for any instruction set: shares of what the machine multiplies at its best.

Multiples of eager are none of them: its time, which it spends on fresh memory, moves by half from run to run.
"""

from benchmarks import rows
from benchmarks.cases.case import DOCUMENTS, FORWARD, FORWARD_BACKWARD, MAIN_SHAPES, PARAGRAPHS, SENTENCES, Case
from benchmarks.providers.names import COMPILED, ONE_MAP
from benchmarks.targets.verdicts import (
    Rate,
    Ratio,
    Share,
    Times,
    Verdict,
    judge_rate,
    judge_ratio,
    judge_share,
)

_DROPOUT = 0.1
# Dropout costs at most a quarter more.
MOST_DROPOUT = 1.25
MOST_EXTRA_MB = 64.0
# Short rows have as much packing and writing for fewer products.
_LEAST_SHARE = {
    FORWARD: {SENTENCES: 0.65, PARAGRAPHS: 0.75, DOCUMENTS: 0.75},
    FORWARD_BACKWARD: {SENTENCES: 0.6, PARAGRAPHS: 0.7, DOCUMENTS: 0.7},
}

Mark = Share | Rate | Ratio
MARKS: list[Mark] = [
    *(Share(Case(shape, mode=mode), least) for mode, shares in _LEAST_SHARE.items() for shape, least in shares.items()),
    *(Rate(Case(shape, mode=mode), ONE_MAP) for mode in _LEAST_SHARE for shape in MAIN_SHAPES),
    *(
        Share(Case(shape, mode=FORWARD_BACKWARD, dropout=_DROPOUT), least / MOST_DROPOUT)
        for shape, least in _LEAST_SHARE[FORWARD_BACKWARD].items()
    ),
    *(Ratio(Case(shape), COMPILED, 2.5) for shape in MAIN_SHAPES),
    # bfloat16 is never slower than float32. These come last: they compare with cases above.
    *(
        Ratio(Case(shape, "bfloat16", mode), "", 1.0, other=Case(shape, mode=mode))
        for mode in _LEAST_SHARE
        for shape in MAIN_SHAPES
    ),
]


def rivals_of(mark: Mark) -> tuple[str, ...]:
    """Who runs in the rounds of a mark beside the backend."""
    return () if isinstance(mark, Share) or not mark.rival else (mark.rival,)


def judge(mark: Mark, backend: str, times: Times) -> Verdict:
    """Compares a mark with what was measured."""
    if isinstance(mark, Share):
        return judge_share(mark, backend, times)
    return judge_rate(mark, backend, times) if isinstance(mark, Rate) else judge_ratio(mark, backend, times)


def without_figure(mark: Mark, backend: str, why: Exception) -> Verdict:
    """A mark is missed when an answer is wrong; how fast it came is not told."""
    return Verdict(*mark.question(backend), measured=f"no figure: {why}", met=False, right=False)


def judge_memory(row: rows.MemoryRow) -> Verdict:
    """Compares the memory beyond inputs, output, saved tensors and gradients."""
    parts = f"forward {row.forward_extra_mb:.1f}, backward {row.backward_extra_mb:.1f}"
    return Verdict(
        what=f"{row.case}, {row.provider}, memory",
        target=f"at most {MOST_EXTRA_MB:g} MB",
        measured=f"{row.extra_mb:.1f} MB ({parts})",
        met=row.extra_mb <= MOST_EXTRA_MB,
    )
