"""How time is taken, on which cases and inputs."""

from dataclasses import replace

import pytest
import torch
from benchmark_rows import SMALL

from benchmarks.cases.case import FORWARD, FORWARD_BACKWARD, Shape, grid
from benchmarks.cases.inputs import draw, draw_sets
from benchmarks.measure import disturbance, timing


def test_steps_take_turns_on_different_inputs():
    log = []

    def step(name):
        return lambda turn: log.append((name, turn)) or float(len(log))

    effort = timing.Effort(seconds=0, fewest_rounds=2, most_rounds=5, warmup_rounds=1)
    taken = timing.interleave({"a": step("a"), "b": step("b")}, effort)
    assert log == [("a", 0), ("b", 1), ("a", 0), ("b", 1), ("a", 1), ("b", 2)]
    assert taken == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_a_step_takes_gradients_only_when_asked():
    seen = []

    def call(query, *_others):
        seen.append((torch.is_grad_enabled(), query.requires_grad))
        return query * 2

    for mode in (FORWARD, FORWARD_BACKWARD):
        case = replace(SMALL, mode=mode)
        assert timing.make_step(call, case, draw_sets(case)[:2])(5) > 0
    assert seen == [(False, False), (True, True)]


def test_disturbance_is_a_share_or_unknown(monkeypatch, tmp_path):
    share = disturbance.Disturbance().share()
    assert share is None or 0 <= share <= 1
    monkeypatch.setattr(disturbance.Disturbance, "_STAT", tmp_path / "absent")
    assert disturbance.Disturbance().share() is None


def test_inputs_are_random_different_and_the_same_for_a_seed():
    first, second = draw_sets(SMALL)[:2]
    again = draw(SMALL, torch.Generator().manual_seed(0))
    assert torch.equal(first.query, again.query)
    for name, one, other in zip(first._fields, first, second):
        assert one.std() > 0.3, name
        assert not torch.equal(one, other), name
    assert first.gate_lambda.abs().max() <= 1


def test_grid_has_no_dropout_at_inference():
    cases = grid([SMALL.shape], ["float32"], [FORWARD, FORWARD_BACKWARD], [0.0, 0.1])
    assert [(case.mode, case.dropout) for case in cases] == [
        (FORWARD, 0.0),
        (FORWARD_BACKWARD, 0.0),
        (FORWARD_BACKWARD, 0.1),
    ]


@pytest.mark.parametrize("text", ["1,2,3", "a,1,2,3", "1,2,0,4", "1,2,3,4,5"])
def test_a_wrong_shape_is_refused(text):
    with pytest.raises(ValueError, match="wanted B,H,L,D"):
        Shape.parse(text)
