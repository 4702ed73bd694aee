"""Times of the operators with pytest-benchmark: `pytest benchmarks`.

With --benchmark-disable smaller cases run once each and are not timed. The implementations of a case form a group, but
run one after another. For ratios to quote, use `benchmarks.run`, which interleaves them.
"""

import itertools

import pytest
import torch

from benchmarks import records
from benchmarks.cases import FORWARD, FORWARD_BACKWARD, PARAGRAPHS, QUICK_SHAPES, SENTENCES, draw_sets, grid
from benchmarks.implementations.registry import BACKENDS, COMPILED, COMPOSITION, EAGER, IMPLEMENTATIONS, ONE_MAP
from benchmarks.measure import agreement
from benchmarks.measure.timing import make_step
from qacg_kernels.backends import cpu

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
    agreement.require_parity()


def test_attention(benchmark, parity, case, name):
    implementation = IMPLEMENTATIONS[name]
    reasons = implementation.unsupported(case)
    if reasons:
        pytest.skip("; ".join(reasons))
    call = implementation.build(case)
    sets = draw_sets(case)
    if implementation.computes_quasi:
        agreement.require_agreement({EAGER: IMPLEMENTATIONS[EAGER].build(case), name: call}, case, sets[0])
    step = make_step(call, case, sets)
    turns = itertools.count()

    def next_turn():
        return (next(turns),), {}

    benchmark.group = str(case)
    benchmark.extra_info.update(records.case_fields(case), implementation=name, threads=torch.get_num_threads())
    benchmark.extra_info.update(product_gflops=cpu.product_rates())  # the state of AMX tiles
    benchmark.pedantic(step, setup=next_turn, rounds=_ROUNDS, warmup_rounds=2)
