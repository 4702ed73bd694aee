"""The cost model and the scaling plot."""

from dataclasses import replace

import pytest
import torch
from benchmark_records import ORIGIN

from benchmarks import cost_model, records, scaling
from benchmarks.cases import BACKWARD, FORWARD, PACKED, SENTENCES, Case, Shape
from benchmarks.implementations.registry import IMPLEMENTATIONS
from benchmarks.measure import session

CALL, ELEMENT, ENTRY, RATE = 20e-6, 2e-10, 5e-10, 300e9
SHAPES = [Shape(4, 12, length, head_dim) for length in (16, 128, 1024, 4096) for head_dim in (32, 64, 128)]
SHAPES += [Shape(batch, 12, 128, 64) for batch in (1, 16)] + [Shape(4, heads, 128, 64) for heads in (1, 3, 24)]


def seconds(case, flops):
    """The formula of the cost model, independent of the tested code."""
    _, heads, _, head_dim = case.shape
    tokens, pairs = sum(case.sequence_lengths), sum(n * n for n in case.sequence_lengths)
    return CALL + ELEMENT * heads * tokens * head_dim + (ENTRY + flops * head_dim / RATE) * heads * pairs


FLOPS = {FORWARD: 6, BACKWARD: 16}


def measured_times(cases, origin=ORIGIN, factor=1.0):
    cpu = {"cpu": IMPLEMENTATIONS["cpu"]}
    durations = [factor * seconds(case, FLOPS[case.mode]) for case in cases]
    return [
        row
        for case, s in zip(cases, durations)
        for row in session.time_records(case, cpu, {"cpu": [0.99 * s, s, 1.01 * s]}, 0.01, origin)
    ]


@pytest.mark.parametrize("mode", [FORWARD, BACKWARD])
def test_fit_finds_the_constants(mode):
    model = cost_model.fit(measured_times([Case(shape, mode=mode) for shape in SHAPES]))
    assert model.call == pytest.approx(CALL, rel=0.02)
    assert model.element == pytest.approx(ELEMENT, rel=0.02)
    assert model.entry == pytest.approx(ENTRY, rel=0.02)
    assert 1 / model.flop == pytest.approx(RATE, rel=0.02)
    assert model.error < 1e-3
    assert model.cases == len(SHAPES)
    packed = Case(SENTENCES, mode=mode, lengths=PACKED)
    assert model.seconds(packed) == pytest.approx(seconds(packed, FLOPS[mode]), rel=0.01)
    assert "GFLOP/s; median error 0%" in str(model)


def test_fit_has_no_negative_constant():
    # A least-squares fit would give a negative first constant; instead it is 0, and the other is fitted without it.
    features = torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]], dtype=torch.float64)
    times = torch.tensor([0.5, 1.8, 4.4], dtype=torch.float64)
    found = cost_model._non_negative(features / times[:, None])
    assert found[0] == 0
    slopes = features[:, 1] / times
    assert found[1].item() == pytest.approx((slopes.sum() / slopes.square().sum()).item())


def test_fit_with_too_few_or_mixed_records_raises():
    few = measured_times([Case(shape) for shape in SHAPES[:4]])
    with pytest.raises(ValueError, match="cases: expected more than 4, the number of constants, got 4"):
        cost_model.fit([*few, few[0]])
    enough = measured_times([Case(shape) for shape in SHAPES])
    with pytest.raises(ValueError, match=r"lengths: expected at least two.*got \{128\}"):
        cost_model.fit([row for row in enough if row.length == 128])
    with pytest.raises(ValueError, match="expected the same implementation, dtype, mode, device"):
        cost_model.fit([*enough, replace(enough[0], dtype="bfloat16")])
    with pytest.raises(ValueError, match="expected the same implementation, dtype, mode, device"):
        cost_model.fit([*enough, replace(enough[0], dropout=0.1)])
    one_size = cost_model.fit([row for row in enough if row.head_dim == 64])
    assert "cannot separate" in str(one_size)


@pytest.mark.full
def test_draw_writes_the_plot_and_returns_the_report(tmp_path):
    pytest.importorskip("matplotlib")
    cases = [Case(shape, mode=mode) for mode in (FORWARD, BACKWARD) for shape in SHAPES]
    cases.append(Case(SENTENCES, lengths=PACKED))
    single = replace(ORIGIN, machine=ORIGIN.machine | {"threads": 1})
    measured = [*measured_times(cases), *measured_times(cases[:2], single, factor=1.6)]
    lines = scaling.draw(measured, "cpu", "float32", str(tmp_path / "a.svg"))
    text = (tmp_path / "a.svg").read_text()
    for shown in ("over threads", "D = 128", "L = 4096", "(·,12,128,64)", "(4,·,128,64)", "Some CPU (R) 9000"):
        assert shown in text
    assert lines[0].startswith("forward: call 20 us")
    assert lines[1].startswith("backward: call 20 us")
    total, pairs = seconds(Case(SENTENCES), 6), 64 * 12 * 128 * 128
    shares = (CALL, ELEMENT * 64 * 12 * 128 * 64, ENTRY * pairs, 6 * 64 / RATE * pairs)
    call, elements, entries, products = (f"{share / total:.0%}" for share in shares)
    where = f"call {call}, elements {elements}, entries {entries}, products {products}"
    assert lines[2] == f"{Case(SENTENCES)} by the model: {where}"
    packed = seconds(cases[-1], 6)
    assert lines[8] == f"{cases[-1]}: measured {1e3 * packed:.4g} ms, predicted {1e3 * packed:.4g} ms"
    assert lines[9].endswith("2 threads have an efficiency of 80%")


def test_scaling_with_two_commits_or_few_cases_fails(tmp_path, capsys):
    measured = measured_times([Case(shape) for shape in SHAPES])
    with pytest.raises(ValueError, match="expected times of 'cpu' in bfloat16"):
        scaling.select(measured, "cpu", "bfloat16")
    with pytest.raises(ValueError, match="expected one machine, thread count, version and commit"):
        elsewhere = replace(measured[0], origin=replace(ORIGIN, commit="other"))
        scaling.select([*measured, elsewhere], "cpu", "float32")
    writer = records.Writer(tmp_path, "suite", ORIGIN)
    writer.add(measured[:3])
    assert scaling.main([str(writer.path), "-o", str(tmp_path / "no.svg")]) == 1
    assert "expected enough cases and lengths" in capsys.readouterr().err
    assert not (tmp_path / "no.svg").exists()
