"""The marks of the CPU path, meant for two threads with AVX-512."""

from benchmarks import rows
from benchmarks.cases.case import DOCUMENTS, FORWARD, FORWARD_BACKWARD, MAIN_SHAPES, PARAGRAPHS, SENTENCES, Case
from benchmarks.providers.names import COMPILED, EAGER, ONE_MAP
from benchmarks.targets.verdicts import Ratio, Verdict

_DROPOUT = 0.1
MOST_EXTRA_MB = 64.0


def _against_eager(dtype: str, mode: str, dropout: float, targets: tuple[float, float, float]) -> list[Ratio]:
    shapes = (SENTENCES, PARAGRAPHS, DOCUMENTS)
    return [Ratio(Case(s, dtype, mode, dropout), EAGER, target) for s, target in zip(shapes, targets)]


MARKS = [
    *_against_eager("float32", FORWARD, 0.0, (7, 8, 14)),
    *(Ratio(Case(shape), COMPILED, 2.5) for shape in MAIN_SHAPES),
    *(Ratio(Case(shape), ONE_MAP, 1.0) for shape in MAIN_SHAPES),
    *_against_eager("float32", FORWARD_BACKWARD, 0.0, (4.5, 6, 5)),
    *_against_eager("float32", FORWARD_BACKWARD, _DROPOUT, (5, 5, 5)),
    *_against_eager("bfloat16", FORWARD, 0.0, (3, 4, 5)),
]


def without_figure(mark: Ratio, backend: str, why: Exception) -> Verdict:
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
