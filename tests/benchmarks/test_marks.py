"""The marks: judged from rows, and no figure for a wrong answer."""

import math
from dataclasses import replace

import pytest
from benchmark_rows import SMALL, a_product, memory_row, seconds_rows

from benchmarks import marks, rows
from benchmarks.cases.case import MAIN_SHAPES
from benchmarks.measure import ceiling, verify
from benchmarks.providers.names import COMPILED, EAGER, ONE_MAP
from benchmarks.providers.registry import PROVIDERS
from benchmarks.targets import cpu_marks, verdicts


@pytest.mark.parametrize(("cpu_seconds", "met"), [(0.1, True), (0.101, False)])
def test_mark_compares_medians_with_its_rival(cpu_seconds, met):
    measured = seconds_rows(eager=[9.0], compiled=[0.25], cpu=[cpu_seconds])
    verdict = verdicts.judge_ratio(verdicts.Ratio(SMALL, COMPILED, 2.5), "cpu", verdicts.times_of(measured))
    assert verdict.met is met
    assert verdict.measured == f"{0.25 / cpu_seconds:.2f}x"
    assert ("met" if met else "MISSED") in str(verdict)


def rated(peak=100.0, **seconds):
    return [replace(row, matrix_peak_gflops=peak) for row in seconds_rows(**seconds)]


@pytest.mark.parametrize(("at_least", "met"), [(0.999, True), (1.001, False)])
def test_mark_of_a_share_compares_with_the_ceiling_of_the_same_rounds(at_least, met):
    (row,) = seconds_rows(cpu=[0.1])
    verdict = cpu_marks.judge(
        verdicts.Share(SMALL, at_least), "cpu", verdicts.times_of(rated(peak=row.gflops, cpu=[0.1]))
    )
    assert verdict.met is met and verdict.measured.startswith("100% (")
    assert not cpu_marks.judge(verdicts.Share(SMALL, 0.1), "cpu", verdicts.times_of([row])).met


@pytest.mark.parametrize(("cpu_seconds", "met"), [(0.149, True), (0.151, False)])
def test_mark_of_a_rate_takes_the_work_of_each_into_account(cpu_seconds, met):
    """Two maps are 6 FLOP a cell forward, one is 4: one and a half times the time is the same rate."""
    measured = seconds_rows(one_map=[0.1], cpu=[cpu_seconds])
    verdict = cpu_marks.judge(verdicts.Rate(SMALL, ONE_MAP), "cpu", verdicts.times_of(measured))
    assert verdict.met is met


def test_a_type_is_compared_with_another_by_their_times_alone():
    own, other = (row for row in rated(cpu=[0.1]) + rated(cpu=[0.2]))
    own = replace(own, dtype="bfloat16", matrix_peak_gflops=1000.0)
    case = replace(SMALL, dtype="bfloat16")
    mark = verdicts.Ratio(case, "", 1.0, other=SMALL)
    verdict = cpu_marks.judge(mark, "cpu", verdicts.times_of([own, other]))
    assert verdict.measured.startswith("2.00x") and "cpu vs float32" in verdict.what


@pytest.mark.parametrize(("extra_mb", "met"), [(64.0, True), (64.1, False)])
def test_memory_mark_is_an_upper_bound(extra_mb, met):
    assert cpu_marks.judge_memory(memory_row(extra_mb)).met is met


def test_marks_name_only_providers_that_exist_and_each_once():
    assert all(rival in PROVIDERS for mark in cpu_marks.MARKS for rival in cpu_marks.rivals_of(mark))
    assert len({(type(mark), mark.case, cpu_marks.rivals_of(mark)) for mark in cpu_marks.MARKS}) == len(cpu_marks.MARKS)
    assert {mark.case.shape for mark in cpu_marks.MARKS} == set(MAIN_SHAPES)


def test_no_figure_while_parity_fails(monkeypatch, capsys, tmp_path):
    def fail():
        raise verify.ParityError("cpu bfloat16 output: off by 3")

    def never(*_):
        raise AssertionError("measured although parity fails")

    monkeypatch.setattr(verify, "require_parity", fail)
    monkeypatch.setattr(marks, "measure_case", never)
    assert marks.main(["--backend", "reference", "--out", str(tmp_path / "rows")]) == 1
    assert "off by 3" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_a_wrong_answer_misses_its_marks_without_a_figure(monkeypatch, capsys):
    def wrong(case, *_):
        raise verify.ParityError("reference: out is off by 3")

    monkeypatch.setattr(verify, "require_parity", lambda: 1)
    monkeypatch.setattr(ceiling, "measure", lambda dtype, *_: (a_product(dtype), []))
    monkeypatch.setattr(marks, "measure_case", wrong)
    monkeypatch.setattr(marks, "measure_memory", lambda *_: memory_row(1.0))
    assert marks.main(["--backend", "reference"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("no figure: reference: out is off by 3") == len(cpu_marks.MARKS)
    assert f"1 of {len(cpu_marks.MARKS) + 1} marks met" in shown


def test_ctrl_c_ends_marks_with_what_was_measured(monkeypatch, capsys, tmp_path):
    measured = [
        replace(r, provider=n) for n, r in zip((EAGER, COMPILED, ONE_MAP, "reference"), 4 * seconds_rows(cpu=[1.0]))
    ]
    calls = []

    def once(case, *_):
        calls.append(case)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return [replace(r, **rows.case_fields(case)) for r in measured]

    monkeypatch.setattr(verify, "require_parity", lambda: 1)
    monkeypatch.setattr(ceiling, "measure", lambda dtype, *_: (a_product(dtype), []))
    monkeypatch.setattr(marks, "measure_case", once)
    assert marks.main(["--backend", "reference", "--out", str(tmp_path)]) == 130
    assert len(rows.load(tmp_path.iterdir())) == 4
    assert "1.00x" in capsys.readouterr().out


def test_the_same_command_goes_on_where_the_minutes_were_spent(monkeypatch, capsys, tmp_path):
    """On the clean checkout that going on takes."""
    (row,) = rated(cpu=[1.0])
    source = replace(row.origin, dirty=False)
    measured = []

    def measure(case, names, *_):
        measured.append((case, tuple(names)))
        return [replace(row, origin=source, provider=name, **rows.case_fields(case)) for name in names]

    budgets = iter([2, math.inf, math.inf])

    class Cases(marks.Budget):
        """Of so many cases, whatever the time."""

        def __init__(self, _seconds):
            self.end = len(measured) + next(budgets)

        def is_spent(self):
            return len(measured) >= self.end

    monkeypatch.setattr(verify, "require_parity", lambda: 1)
    monkeypatch.setattr(ceiling, "measure", lambda dtype, *_: (a_product(dtype), []))
    monkeypatch.setattr(marks, "measure_case", measure)
    monkeypatch.setattr(marks, "measure_memory", lambda *_: replace(memory_row(1.0), origin=source))
    monkeypatch.setattr(marks, "Budget", Cases)
    monkeypatch.setattr(rows, "origin", lambda: source)
    command = ["--backend", "reference", "--out", str(tmp_path)]
    marks.main([*command, "--minutes", "1"])
    assert len(measured) == 2 and "not measured" in capsys.readouterr().out
    marks.main(command)
    assert len(measured) == len(set(measured)) == len({mark.case for mark in cpu_marks.MARKS})
    assert "not measured" not in capsys.readouterr().out
    marks.main(command)
    assert len(measured) == len(set(measured))
    assert sum(isinstance(row, rows.MemoryRow) for row in rows.load(tmp_path.iterdir())) == 1
