"""Timing, cases and inputs."""

from dataclasses import replace

import pytest
import torch
from benchmark_records import SMALL

from benchmarks.cases import FORWARD, FORWARD_BACKWARD, Shape, draw, draw_sets, grid
from benchmarks.measure import timing


def test_interleave_rotates_steps_and_inputs():
    log = []

    def step(name):
        return lambda turn: log.append((name, turn)) or float(len(log))

    effort = timing.Effort(seconds=0, fewest_rounds=2, most_rounds=5, warmup_rounds=1)
    seconds = timing.interleave({"a": step("a"), "b": step("b")}, effort)
    assert log == [("a", 0), ("b", 1), ("a", 0), ("b", 1), ("a", 1), ("b", 2)]
    assert seconds == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_step_computes_gradients_only_with_a_backward():
    seen = []

    def call(query, *_others):
        seen.append((torch.is_grad_enabled(), query.requires_grad))
        return query * 2

    for mode in (FORWARD, FORWARD_BACKWARD):
        case = replace(SMALL, mode=mode)
        assert timing.make_step(call, case, draw_sets(case)[:2])(5) > 0
    assert seen == [(False, False), (True, True)]


def test_cpu_contention_is_a_share_or_unknown(monkeypatch, tmp_path):
    share = timing.CpuContention().share()
    assert share is None or 0 <= share <= 1
    monkeypatch.setattr(timing.CpuContention, "_STAT", tmp_path / "absent")
    assert timing.CpuContention().share() is None


def test_draw_sets_are_random_and_reproducible():
    first, second = draw_sets(SMALL)[:2]
    again = draw(SMALL, torch.Generator().manual_seed(0))
    assert torch.equal(first.query, again.query)
    for index, (one, other) in enumerate(zip(first.tensors, second.tensors)):
        assert one.std() > 0.3, index
        assert not torch.equal(one, other), index
    assert first.gate[0].abs().max() <= 1


def test_grid_has_no_dropout_at_inference():
    cases = grid([SMALL.shape], ["float32"], [FORWARD, FORWARD_BACKWARD], [0.0, 0.1])
    assert [(case.mode, case.dropout) for case in cases] == [
        (FORWARD, 0.0),
        (FORWARD_BACKWARD, 0.0),
        (FORWARD_BACKWARD, 0.1),
    ]


@pytest.mark.parametrize("text", ["1,2,3", "a,1,2,3", "1,2,0,4", "1,2,3,4,5"])
def test_a_wrong_shape_is_refused(text):
    with pytest.raises(ValueError, match="expected B,H,L,D"):
        Shape.parse(text)
