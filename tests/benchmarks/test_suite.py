"""The suite: its plan, that it goes on where it was cut off, and the aims judged from rows."""

from dataclasses import replace

import pytest
import torch
from benchmark_rows import ORIGIN, a_product, memory_row

from benchmarks import aims, rows, suite
from benchmarks.cases.case import (
    BACKWARD,
    DOCUMENTS,
    FORWARD,
    FORWARD_BACKWARD,
    LENGTHS,
    MAIN_DTYPES,
    MODES,
    PACKED,
    SENTENCES,
    Case,
    Shape,
)
from benchmarks.measure import ceiling, timing, verify
from benchmarks.measure.ceiling import ceiling_row
from benchmarks.measure.side_by_side import time_rows
from benchmarks.plans import suite_plan
from benchmarks.plans.session import HOST, MEMORY, TIME, Budget, Item, Session
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP
from benchmarks.providers.registry import PROVIDERS
from benchmarks.steps.step_times import step_rows
from benchmarks.targets import cpu_aims

TINY = Case(Shape(3, 2, 24, 16))
NO_EFFORT = timing.Effort(seconds=0, fewest_rounds=2, most_rounds=2, warmup_rounds=1)


def plan(*parts):
    return [item for stage in suite_plan.stages("cpu", 4, parts or suite_plan.PARTS) for item in stage.items]


def time_row(case, provider, milliseconds, peak=None):
    (row,) = time_rows(case, {provider: PROVIDERS[provider]}, {provider: [1e-3 * milliseconds]}, 0.0, ORIGIN, peak)
    return row


def test_the_plan_has_every_length_head_size_type_and_pass():
    curves = plan("curves")
    assert {(i.case.shape.length, i.case.shape.head_dim, i.case.dtype, i.case.mode) for i in curves} == {
        (length, head_dim, dtype, mode)
        for length in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
        for head_dim in (32, 64, 128)
        for dtype in MAIN_DTYPES
        for mode in MODES
    }
    assert {name for item in curves for name in item.providers} == {EAGER, COMPILED, COMPOSITION, ONE_MAP, "cpu"}
    assert {i.case.lengths for i in plan()} == set(LENGTHS)
    assert {i.kind for i in plan()} == {TIME, HOST, MEMORY}
    assert {(i.case.dropout, i.case.lengths) for i in plan("sentences")} == {
        (dropout, lengths) for dropout in (0.0, 0.1) for lengths in ("padded", "packed")
    }


def test_nobody_is_asked_for_what_he_refuses():
    for item in plan():
        for name in item.providers:
            if name in (EAGER, COMPILED, COMPOSITION, ONE_MAP):
                assert not PROVIDERS[name].reasons_against(item.case), (item, name)


def test_the_most_wanted_comes_first_whatever_order_is_asked_for():
    assert plan("calls", "aims") == [*plan("aims"), *plan("calls")]
    assert [stage.threads for stage in suite_plan.stages("cpu", 4, ("work",))] == [4, 2, 1]
    assert [stage.threads for stage in suite_plan.stages("cpu", 1)] == [1] * len(suite_plan.PARTS)
    first = [item.case.shape.length for item in plan("curves")][:40:4]
    assert sorted(first[:4]) == [32, 128, 512, 2048]  # even on a logarithmic axis when cut there


def test_maps_of_the_curves_fit_into_memory():
    for item in plan("curves"):
        batch, heads, length, _ = item.case.shape
        assert batch * heads * length**2 * 4 <= 1e9


def test_every_aim_is_measured_by_its_part():
    measured = [time_row(item.case, name, 1.0, 1e6) for item in plan("aims") for name in item.providers]
    verdicts = cpu_aims.judge_operators(measured, "cpu")
    assert len(verdicts) == 12 + 4 + 3 + 3 + 2
    assert not [v.what for v in verdicts if v.measured == "not measured"]
    assert {v.measured for v in cpu_aims.judge_operators([], "cpu")} == {"not measured"}


def test_aims_judge_shares_ratios_dropout_and_packing():
    sentences, both = Case(SENTENCES), Case(SENTENCES, mode=FORWARD_BACKWARD)
    tokens = sum(replace(sentences, lengths=PACKED).sequence_lengths) / (64 * 128)
    measured = [
        time_row(sentences, "cpu", 10.0, peak=6 * sentences.products / 10e6 / 0.66),
        time_row(sentences, EAGER, 89.0),
        time_row(sentences, ONE_MAP, 14.0),
        time_row(Case(DOCUMENTS), "cpu", 10.0, peak=6 * Case(DOCUMENTS).products / 10e6 / 0.66),
        time_row(replace(sentences, mode=BACKWARD), "cpu", 10.0, peak=16 * sentences.products / 10e6 / 0.64),
        time_row(both, "cpu", 10.0),
        time_row(replace(both, dropout=0.1), "cpu", 12.4),
        time_row(replace(sentences, lengths=PACKED), "cpu", 10 * tokens - 0.01),
        time_row(replace(both, lengths=PACKED), "cpu", 10 * tokens + 0.1),
    ]
    found = {v.what: v for v in cpu_aims.judge_operators(measured, "cpu")}
    assert found[f"{sentences}, cpu of the ceiling"].met  # 66 %, of 65 wanted
    assert found[f"{sentences}, cpu of the ceiling"].measured.startswith("66% (")
    assert not found[f"{Case(DOCUMENTS)}, cpu of the ceiling"].met  # of 75 wanted
    assert not found[f"{replace(sentences, mode=BACKWARD)}, cpu of the ceiling"].met
    assert not found[f"{sentences}, cpu vs eager"].met  # 8.9 of 9
    assert found[f"{sentences}, cpu vs sdpa-one-map"].met  # 0.71 of its time
    assert found[f"{replace(both, dropout=0.1)}, cpu vs dropout 0"].met  # 1.24 of 1.25
    assert found[f"{replace(sentences, lengths=PACKED)}, cpu of full"].met
    assert not found[f"{replace(both, lengths=PACKED)}, cpu of full"].met


def test_cases_that_ran_one_after_another_are_compared_in_units_of_the_product():
    both = Case(SENTENCES, mode=FORWARD_BACKWARD)
    measured = [
        time_row(both, "cpu", 10.0, peak=100.0),
        # The machine ran at half its speed by then: dropout cost a tenth more, not 2.2 times as much.
        time_row(replace(both, dropout=0.1), "cpu", 22.0, peak=50.0),
        time_row(replace(both, lengths=PACKED), "cpu", 4.0, peak=50.0),
    ]
    found = {v.what: v for v in cpu_aims.judge_operators(measured, "cpu")}
    assert found[f"{replace(both, dropout=0.1)}, cpu vs dropout 0"].measured.startswith("0.91x")
    assert found[f"{replace(both, lengths=PACKED)}, cpu of full"].measured.startswith("20%")


def test_notes_name_the_fastest_products_and_what_amx_makes_of_them():
    tried = [("a", "float32", 300.0), ("b", "float32", 400.0), ("c", "bfloat16", 3000.0)]
    amx = replace(ORIGIN, machine=ORIGIN.machine | {"instruction_sets": {"float32": "amx"}})
    measured = [ceiling_row(name, dtype, "cpu", [rate], amx) for name, dtype, rate in tried]
    first, second, third = cpu_aims.notes(measured)
    assert (first, second) == ("ceiling: b in float32: 400 GFLOP/s", "ceiling: c in bfloat16: 3000 GFLOP/s")
    assert "500 GFLOP/s at the bfloat16 ceiling" in third
    assert len(cpu_aims.notes([replace(row, origin=ORIGIN) for row in measured])) == 2


def test_aims_of_files_include_whole_steps(tmp_path, capsys):
    writer = rows.Writer(tmp_path, "suite", ORIGIN)
    writer.add([time_row(Case(SENTENCES), "cpu", 1.0), time_row(Case(SENTENCES), EAGER, 10.0)])
    steps = rows.Writer(tmp_path, "end-to-end", ORIGIN)
    taken = {("released", "float32"): [6.1], ("fused packed", "float32"): [1.0]}
    counts = {"batches": 2, "sentences": 128, "tokens": 4000, "cells": 10000}
    where = {"size": "base-12", "mode": "training", "lengths": "somewhere"}
    steps.add(step_rows(taken, 0.01, ORIGIN, ("released", "float32"), **where, **counts))
    one_thread = replace(ORIGIN, machine=ORIGIN.machine | {"threads": 1})
    alone = rows.Writer(tmp_path, "one-thread", one_thread)
    alone.add([replace(time_row(Case(SENTENCES), "cpu", 9.0), origin=one_thread)])
    assert aims.main([str(alone.path), str(writer.path), str(steps.path)]) == 0
    text = capsys.readouterr().out
    assert "10.00x" in text and "6.10x" in text and "2 of 26 aims met" in text
    assert aims.main([str(tmp_path / "nothing")]) == 1


@pytest.fixture
def tiny_suite(monkeypatch):
    """The suite with a plan of seconds, on sources without local changes."""
    clean = replace(rows.origin(), dirty=False)
    items = [Item(replace(TINY, mode=mode), (EAGER, "reference")) for mode in (FORWARD, FORWARD_BACKWARD)]
    items.append(Item(TINY, ("reference",), HOST))
    stages = [suite_plan.Stage(torch.get_num_threads(), items)]
    monkeypatch.setattr(rows, "origin", lambda: clean)
    monkeypatch.setattr(verify, "require_parity", lambda: 1)
    monkeypatch.setattr(suite_plan, "stages", lambda *_: stages)
    monkeypatch.setattr(timing, "STEADY", NO_EFFORT)
    monkeypatch.setattr(ceiling, "measure", lambda dtype, *_: (a_product(dtype), []))
    return stages[0].items


def run_suite(folder, *more):
    threads = str(torch.get_num_threads())
    return suite.main(["--out", str(folder), "--backend", "reference", "--threads", threads, *more])


@pytest.mark.full
def test_a_run_that_was_cut_off_goes_on_where_it_was(tiny_suite, tmp_path, monkeypatch, capsys):
    assert run_suite(tmp_path, "--minutes", "0") == 0
    shown = capsys.readouterr().out
    assert shown.count("the time is spent") == 3 and "0 of 24 aims" in shown
    everything, tiny_suite[:] = list(tiny_suite), tiny_suite[:1]
    assert run_suite(tmp_path) == 0
    (path,) = tmp_path.iterdir()
    first = rows.load([path])
    assert [(row.mode, row.provider) for row in first] == [(FORWARD, EAGER), (FORWARD, "reference")]
    path.write_text(path.read_text() + '{"kind": "time", "half a li')  # killed in the middle of a row
    tiny_suite[:] = everything
    assert run_suite(tmp_path) == 0
    again = rows.load([path])
    assert again[:2] == first and len(again) == 5
    assert {(row.kind, row.mode) for row in again[2:]} == {("time", FORWARD_BACKWARD), ("host", FORWARD)}
    assert all(row.matrix_peak_gflops for row in again if row.kind == "time")
    assert "everything of the plan was measured" in capsys.readouterr().out


def test_rows_of_other_sources_are_not_gone_on_with(tmp_path):
    writer = rows.Writer(tmp_path, "suite", ORIGIN)
    writer.add([memory_row(1.0)])
    later = replace(ORIGIN, taken="2031-01-01T00:00:00Z")
    assert rows.Writer(tmp_path, "suite", later, resume=True).kept == [memory_row(1.0)]
    for other in (replace(ORIGIN, commit="fedcba987654"), replace(ORIGIN, dirty=True)):
        rows.Writer(tmp_path, "suite", ORIGIN).add([memory_row(1.0)])
        assert rows.Writer(tmp_path, "suite", other, resume=True).kept == []
        assert rows.load([writer.path]) == []


def test_no_figure_of_the_suite_while_parity_fails(tiny_suite, tmp_path, monkeypatch, capsys):
    def fail():
        raise verify.ParityError("cpu bfloat16 output: off by 3")

    monkeypatch.setattr(verify, "require_parity", fail)
    assert run_suite(tmp_path / "rows") == 1
    assert "off by 3" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_a_wrong_provider_has_no_rows_and_ends_in_failure(tiny_suite, tmp_path, monkeypatch, capsys):
    wrong = replace(PROVIDERS["reference"], build=lambda case: lambda query, *_: 2 * query)
    monkeypatch.setitem(PROVIDERS, "reference", wrong)
    assert run_suite(tmp_path) == 1
    assert "out is off by" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    assert {row.provider for row in rows.load([path])} == {EAGER}


def test_memory_is_taken_in_a_process_of_its_own(tmp_path, monkeypatch):
    asked = []

    def measured(case, name, threads):
        asked.append((case, name, threads))
        if name == EAGER:
            raise RuntimeError("not measured: no such file")
        return replace(memory_row(1.0), **rows.case_fields(case), provider=name)

    monkeypatch.setattr("benchmarks.plans.session.measure_memory", measured)
    session = Session(rows.Writer(tmp_path, "suite", ORIGIN), ORIGIN, NO_EFFORT, Budget(60))
    session.measure(Item(TINY, (EAGER, "reference"), MEMORY))
    assert [name for _, name, _ in asked] == [EAGER, "reference"]
    assert session.missing == [f"{TINY}, {EAGER}: not measured: no such file"]
    assert [row.provider for row in session.rows] == ["reference"]


def test_without_a_folder_the_suite_refuses(capsys):
    with pytest.raises(SystemExit):
        suite.main([])
    assert "--out" in capsys.readouterr().err
