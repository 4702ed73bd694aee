"""Measurement of time and memory, and the inputs of the measured calls."""

from dataclasses import replace

import pytest
import torch
from benchmark_records import SMALL
from processes import run_python

from benchmarks.cases import FORWARD, FORWARD_BACKWARD, PACKED, TRAINING_FORWARD, Case, Shape, draw, draw_sets
from benchmarks.implementations.registry import EAGER, IMPLEMENTATIONS
from benchmarks.measure import memory, timing

needs_peak = pytest.mark.skipif(not memory._CLEAR_REFS.exists(), reason="this system cannot reset the peak")


@needs_peak
def test_peak_meter_includes_freed_memory():
    # In a new process, like the benchmark: the heap of this one may have free pages of earlier tests.
    script = (
        "import torch; from benchmarks.measure.memory import PeakOnCpu, control;"
        "torch.ones(40 * 2**18).sum();"  # starts threads and loads code, whose pages would count, as in the benchmark
        "meter = PeakOnCpu();"
        "print(meter.run(lambda: torch.ones(40 * 2**18).sum())[1], meter.run(lambda: None)[1], control())"
    )
    peak, quiet, control = map(float, run_python("-c", script).stdout.split())
    # An empty run gives up to 4 MiB, because the kernel counts some pages late.
    assert quiet < 4 * 2**20
    assert peak - quiet == pytest.approx(40 * 2**20, abs=2 * 2**20)
    assert control == pytest.approx(64e6, abs=4e6)


@needs_peak
@pytest.mark.full
def test_memory_of_inference_and_of_packed_sentences():
    inference = memory.measure_in_process(Case(Shape(1, 4, 1024, 16)), "eager", threads=1)
    packed = Case(Shape(8, 2, 64, 16), mode=FORWARD_BACKWARD, lengths=PACKED)
    packed = memory.measure_in_process(packed, "reference", threads=1)
    one_map = 4 * 1024 * 1024 * 4 / 1e6
    assert (inference.saved_mb, inference.gradient_mb, inference.backward_extra_mb) == (0, 0, 0)
    assert inference.output_mb == pytest.approx(4 * 1024 * 16 * 4 / 1e6, rel=0.01)
    # Both scores, both maps, their sum and its dropout exist at the same time; the method is accurate to 4 MB.
    assert 6 * one_map - 4 < inference.extra_mb < 7 * one_map + 4
    tokens = sum(packed.case.sequence_lengths)
    assert packed.output_mb == pytest.approx(tokens * 2 * 16 * 4 / 1e6, rel=0.01)
    assert packed.gradient_mb == pytest.approx(5 * packed.output_mb + tokens * 2 * 4 / 1e6, rel=0.01)


def test_saved_bytes_count_each_map_of_eager_once():
    case = Case(Shape(1, 2, 32, 8), mode=FORWARD_BACKWARD)
    inputs = draw(case, torch.Generator().manual_seed(0))
    one_map = 2 * 32 * 32 * 4
    # softmax, sigmoid and their gated sum; the unscaled scores are not saved
    assert memory.saved_bytes(IMPLEMENTATIONS[EAGER].build(case), inputs) == 3 * one_map


def test_interleave_gives_each_call_the_next_inputs():
    log = []

    def step(name):
        return lambda turn: log.append((name, turn)) or float(len(log))

    effort = timing.Effort(seconds=0, fewest_rounds=2, most_rounds=5, warmup_rounds=1)
    seconds = timing.interleave({"a": step("a"), "b": step("b")}, effort)
    assert log == [("a", 0), ("b", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5)]
    assert seconds == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_rounds_of_another_tile_state_are_left_out(monkeypatch):
    fast, slow = {"fma": 100.0, "amx": 850.0}, {"fma": 110.0, "amx": 400.0}
    found = iter([fast, slow, slow, fast, slow | {"amx": 440.0}])  # the first is of the warm-up
    monkeypatch.setattr(timing.cpu, "product_rates", lambda: next(found))
    effort = timing.Effort(seconds=0, fewest_rounds=4, most_rounds=4, warmup_rounds=1)
    seconds, rates = timing.interleave_in_one_state({"a": float}, effort)
    assert seconds == {"a": [2.0, 4.0, 8.0]}
    assert rates == {"fma": 110, "amx": 400}


def test_step_has_gradients_only_for_training():
    seen = []

    def call(query, *_others):
        seen.append((torch.is_grad_enabled(), query.requires_grad))
        return query * 2

    for mode in (FORWARD, FORWARD_BACKWARD, TRAINING_FORWARD):
        case = replace(SMALL, mode=mode)
        assert timing.make_step(call, case, draw_sets(case)[:2])(5) > 0
    assert seen == [(False, False), (True, True), (True, True)]


@pytest.mark.parametrize("text", ["1,2,3", "1,2,0,4"])
def test_invalid_shape_raises(text):
    with pytest.raises(ValueError, match="expected B,H,L,D"):
        Shape.parse(text)
