"""Performance targets of the corner cases: no call is slower than eager, and what is clearly faster stays so."""

from benchmarks.cases.case import FORWARD, Case
from benchmarks.plans.corner_plan import CASES
from benchmarks.providers.names import EAGER
from benchmarks.targets.verdicts import Ratio

NEVER_SLOWER, CLEARLY_FASTER = 1.0, 1.2


def _at_least(case: Case) -> float:
    """1.2 where the bound is arithmetic or the host: several queries, or many tiny heads in inference."""
    tiny_heads = case.mode == FORWARD and case.shape.batch * case.shape.heads >= 10_000
    return CLEARLY_FASTER if tiny_heads else NEVER_SLOWER


MARKS = [Ratio(case, EAGER, _at_least(case)) for case in CASES]
