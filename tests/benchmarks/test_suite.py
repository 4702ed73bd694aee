"""The suite: its plan, and how it resumes."""

from dataclasses import replace

import pytest
import torch
from benchmark_records import ORIGIN, memory, product, time_of

from benchmarks import plans, records, suite
from benchmarks.cases import FORWARD, FORWARD_BACKWARD, LENGTHS, MAIN_DTYPES, MODES, Case, Shape
from benchmarks.implementations.registry import COMPILED, COMPOSITION, EAGER, IMPLEMENTATIONS, ONE_MAP
from benchmarks.measure import agreement, ceiling, timing
from benchmarks.measure.session import MEMORY, OVERHEAD, TIME, Budget, Item, Session
from benchmarks.targets import kinds
from benchmarks.targets.performance import TARGETS

TINY = Case(Shape(3, 2, 24, 16))
NO_EFFORT = timing.Effort(seconds=0, fewest_rounds=2, most_rounds=2, warmup_rounds=1)


def plan(*parts):
    return [item for stage in plans.suite_stages("cpu", 4, parts or plans.PARTS) for item in stage.items]


def test_suite_plan_has_all_lengths_sizes_and_passes():
    curves = plan("curves")
    assert {(i.case.shape.length, i.case.shape.head_dim, i.case.dtype, i.case.mode) for i in curves} == {
        (length, head_dim, dtype, mode)
        for length in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
        for head_dim in (32, 64, 128)
        for dtype in MAIN_DTYPES
        for mode in MODES
    }
    assert {name for item in curves for name in item.implementations} == {EAGER, COMPILED, COMPOSITION, ONE_MAP, "cpu"}
    assert {i.case.lengths for i in plan()} == set(LENGTHS)
    assert {i.kind for i in plan()} == {TIME, OVERHEAD, MEMORY}
    assert {(i.case.dropout, i.case.lengths) for i in plan("sentences")} == {
        (dropout, lengths) for dropout in (0.0, 0.1) for lengths in ("padded", "packed")
    }


def test_suite_plan_has_only_supported_cases():
    for item in plan():
        for name in item.implementations:
            if name in (EAGER, COMPILED, COMPOSITION, ONE_MAP):
                assert not IMPLEMENTATIONS[name].unsupported(item.case), (item, name)


def test_suite_plan_has_a_fixed_order():
    assert plan("overhead", "targets") == [*plan("targets"), *plan("overhead")]
    assert [stage.threads for stage in plans.suite_stages("cpu", 4, ("growth",))] == [4, 2, 1]
    assert [stage.threads for stage in plans.suite_stages("cpu", 1)] == [1] * len(plans.PARTS)
    first = [item.case.shape.length for item in plan("curves")][:40:4]
    assert sorted(first[:4]) == [32, 128, 512, 2048]  # even on a logarithmic axis when cut there


def test_suite_curves_fit_into_memory():
    for item in plan("curves"):
        batch, heads, length, _ = item.case.shape
        assert batch * heads * length**2 * 4 <= 1e9


def test_suite_measures_all_stretch_targets():
    measured = [time_of(item.case, name, 1.0, 1e6) for item in plan("targets") for name in item.implementations]
    stretch = [target for target in TARGETS["cpu"] if target.stretch]
    assert len(stretch) == 9 + 4 + 3 + 3 + 2
    assert not [one for one in stretch if one.judge("cpu", measured).measured == kinds.NOT_MEASURED]
    assert {one.judge("cpu", []).measured for one in stretch} == {kinds.NOT_MEASURED}


@pytest.fixture
def tiny_suite(monkeypatch):
    """The suite with a short plan, on sources without local changes."""
    clean = replace(records.origin(), dirty=False)
    items = [Item(replace(TINY, mode=mode), (EAGER, "reference")) for mode in (FORWARD, FORWARD_BACKWARD)]
    items.append(Item(TINY, ("reference",), OVERHEAD))
    stages = [plans.Stage(torch.get_num_threads(), items)]
    monkeypatch.setattr(records, "origin", lambda: clean)
    monkeypatch.setattr(agreement, "require_parity", lambda: 1)
    monkeypatch.setattr(plans, "suite_stages", lambda *_: stages)
    monkeypatch.setattr(timing, "STEADY", NO_EFFORT)
    monkeypatch.setattr(ceiling, "measure", lambda dtype, *_: (product(dtype), []))
    return stages[0].items


def run_suite(folder, *more):
    threads = str(torch.get_num_threads())
    return suite.main(["--out", str(folder), "--backend", "reference", "--threads", threads, *more])


@pytest.mark.full
def test_interrupted_suite_resumes(tiny_suite, tmp_path, monkeypatch, capsys):
    assert run_suite(tmp_path, "--minutes", "0") == 0
    shown = capsys.readouterr().out
    assert shown.count("the time limit is reached") == 3
    assert "0 of 21 stretch targets met" in shown
    everything, tiny_suite[:] = list(tiny_suite), tiny_suite[:1]
    assert run_suite(tmp_path) == 0
    (path,) = tmp_path.iterdir()
    first = records.load([path])
    assert [(row.mode, row.implementation) for row in first] == [(FORWARD, EAGER), (FORWARD, "reference")]
    path.write_text(path.read_text() + '{"kind": "time", "half a li')  # killed while writing a record
    tiny_suite[:] = everything
    assert run_suite(tmp_path) == 0
    again = records.load([path])
    assert again[:2] == first
    assert len(again) == 5
    assert {(row.kind, row.mode) for row in again[2:]} == {("time", FORWARD_BACKWARD), ("overhead", FORWARD)}
    assert all(row.matrix_peak_gflops for row in again if row.kind == "time")
    assert "every case of the plan was measured" in capsys.readouterr().out


def test_writer_drops_records_of_other_sources(tmp_path):
    writer = records.Writer(tmp_path, "suite", ORIGIN)
    writer.add([memory(1.0)])
    later = replace(ORIGIN, measured_at="2031-01-01T00:00:00Z")
    assert records.Writer(tmp_path, "suite", later, resume=True).kept == [memory(1.0)]
    for other in (replace(ORIGIN, commit="fedcba987654"), replace(ORIGIN, dirty=True)):
        records.Writer(tmp_path, "suite", ORIGIN).add([memory(1.0)])
        assert records.Writer(tmp_path, "suite", other, resume=True).kept == []
        assert records.load([writer.path]) == []


def test_suite_while_parity_fails_writes_nothing(tiny_suite, tmp_path, monkeypatch, capsys):
    def fail():
        raise agreement.ParityError("cpu bfloat16 output: off by 3")

    monkeypatch.setattr(agreement, "require_parity", fail)
    assert run_suite(tmp_path / "rows") == 1
    assert "off by 3" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_wrong_implementation_fails_the_suite(tiny_suite, tmp_path, monkeypatch, capsys):
    wrong = replace(IMPLEMENTATIONS["reference"], build=lambda case: lambda query, *_: 2 * query)
    monkeypatch.setitem(IMPLEMENTATIONS, "reference", wrong)
    assert run_suite(tmp_path) == 1
    assert "out has error" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    assert {row.implementation for row in records.load([path])} == {EAGER}


def test_session_measures_memory_in_a_new_process(tmp_path, monkeypatch):
    requests = []

    def measured(case, name, threads):
        requests.append((case, name, threads))
        if name == EAGER:
            raise RuntimeError("not measured: no such file")
        return replace(memory(1.0), **records.case_fields(case), implementation=name)

    monkeypatch.setattr("benchmarks.measure.session.measure_in_process", measured)
    session = Session(records.Writer(tmp_path, "suite", ORIGIN), ORIGIN, NO_EFFORT, Budget(60))
    session.measure(Item(TINY, (EAGER, "reference"), MEMORY))
    assert [name for _, name, _ in requests] == [EAGER, "reference"]
    assert session.missing == [f"{TINY}, {EAGER}: not measured: no such file"]
    assert [row.implementation for row in session.records] == ["reference"]


def test_suite_without_a_folder_exits(capsys):
    with pytest.raises(SystemExit):
        suite.main([])
    assert "--out" in capsys.readouterr().err
