"""Times of the operators under pytest-benchmark: `pytest benchmarks`.

With --benchmark-disable each case runs once, untimed. Providers of one case are a group, but run one after another;
`benchmarks.run` interleaves them, and its ratios are the ones to quote.
"""

import itertools

import pytest
import torch

from benchmarks import rows
from benchmarks.cases.case import FORWARD, FORWARD_BACKWARD, PARAGRAPHS, QUICK_SHAPES, SENTENCES, grid
from benchmarks.cases.inputs import draw_sets
from benchmarks.measure import verify
from benchmarks.measure.timing import make_step
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP
from benchmarks.providers.registry import BACKENDS, PROVIDERS

_ROUNDS = 7
_MODES = (FORWARD, FORWARD_BACKWARD)
_CASES = [
    *grid((SENTENCES, PARAGRAPHS), ["float32"], _MODES, [0.0, 0.1]),
    *grid((SENTENCES, PARAGRAPHS), ["bfloat16"], _MODES, [0.0]),
]
_UNTIMED_CASES = [
    *grid(QUICK_SHAPES, ["float32"], _MODES, [0.0, 0.1]),
    *grid(QUICK_SHAPES, ["bfloat16"], _MODES, [0.0]),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    timed = not metafunc.config.getoption("benchmark_disable")
    metafunc.parametrize("case", _CASES if timed else _UNTIMED_CASES, ids=str)
    metafunc.parametrize("name", [EAGER, COMPILED, COMPOSITION, ONE_MAP, *BACKENDS])


@pytest.fixture(scope="session")
def parity() -> None:
    verify.require_parity()


def test_attention(benchmark, parity, case, name):
    provider = PROVIDERS[name]
    why = provider.reasons_against(case)
    if why:
        pytest.skip("; ".join(why))
    call = provider.build(case)
    sets = draw_sets(case)
    if provider.computes_quasi:
        verify.require_agreement({EAGER: PROVIDERS[EAGER].build(case), name: call}, case, sets[0])
    step = make_step(call, case, sets)
    turns = itertools.count()

    def next_turn():
        return (next(turns),), {}

    benchmark.group = str(case)
    benchmark.extra_info.update(rows.case_fields(case), provider=name, threads=torch.get_num_threads())
    benchmark.pedantic(step, setup=next_turn, rounds=_ROUNDS, warmup_rounds=2)
