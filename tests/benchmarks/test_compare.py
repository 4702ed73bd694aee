"""Comparison of two sets of rows: what counts as a change, and what is refused."""

from dataclasses import replace

import pytest
from benchmark_rows import ORIGIN, SMALL, memory_row, seconds_rows

from benchmarks import compare, rows
from benchmarks.analysis import changes
from benchmarks.measure.ceiling import ceiling_row
from benchmarks.steps.step_times import step_rows

QUIET = [0.0100, 0.0101, 0.0102]
OTHER_COMMIT = replace(ORIGIN, commit="fedcba987654")


def of(origin, measured):
    return [replace(row, origin=origin) for row in measured]


def scaled(factor, seconds):
    return [factor * s for s in seconds]


@pytest.mark.parametrize(
    ("factor", "drift", "verdict"),
    [
        (0.8, 1.0, "better"),
        (1.25, 1.0, "WORSE"),
        (1.01, 1.0, "within noise"),  # below the least
        (1.25, 1.3, "within noise"),  # eager, which is the same code, moved by more
        (1.5, 1.3, "WORSE"),
    ],
)
def test_a_change_is_one_beyond_what_the_controls_moved_by(factor, drift, verdict):
    old = seconds_rows(eager=scaled(10, QUIET), cpu=QUIET)
    new = of(OTHER_COMMIT, seconds_rows(eager=scaled(10 * drift, QUIET), cpu=scaled(factor, QUIET)))
    found = {change.what: change for change in changes.changes(old, new)}
    assert len(found) == 2
    cpu = found[f"{SMALL}, cpu"]
    assert cpu.ratio == pytest.approx(factor, rel=1e-3)
    assert cpu.low < cpu.ratio < cpu.high
    assert cpu.verdict(changes.noise_between_runs(list(found.values()))) == verdict
    (control,) = (change for change in found.values() if change.control)
    assert control.what.endswith("eager")


def test_medians_that_their_spread_cannot_tell_apart_are_noise():
    wide_old, wide_new = [0.010, 0.014, 0.018], [0.012, 0.017, 0.022]
    (change,) = changes.changes(seconds_rows(cpu=wide_old), of(OTHER_COMMIT, seconds_rows(cpu=wide_new)))
    assert change.ratio == pytest.approx(17 / 14, rel=1e-3)
    assert change.within and change.verdict(0.01) == "within noise"
    (told,) = changes.changes(seconds_rows(cpu=QUIET), of(OTHER_COMMIT, seconds_rows(cpu=scaled(17 / 14, QUIET))))
    assert not told.within


def test_rows_of_another_torch_are_no_controls():
    newer = replace(OTHER_COMMIT, versions=ORIGIN.versions | {"torch": "2.14.0"})
    old, new = seconds_rows(eager=QUIET, cpu=QUIET), of(newer, seconds_rows(eager=QUIET, cpu=scaled(0.5, QUIET)))
    assert not any(change.control for change in changes.changes(old, new))
    assert "assumed" in changes.lines(old, new)[2]


def test_other_machines_and_threads_are_refused_or_named():
    single = replace(OTHER_COMMIT, machine=ORIGIN.machine | {"threads": 1})
    old = seconds_rows(cpu=QUIET)
    with pytest.raises(ValueError, match=r"Some CPU \(R\) 9000 with 2 threads; Some CPU \(R\) 9000 with 1 threads"):
        changes.lines(old, of(single, old))
    text = changes.lines(old, [*of(OTHER_COMMIT, old), *of(single, old)])
    assert text[-1] == "in NEW alone: 1 measurements on Some CPU (R) 9000 with 1 threads"
    amx = replace(OTHER_COMMIT, machine=ORIGIN.machine | {"instruction_sets": {"float32": "amx"}})
    assert len(changes.changes(old, of(amx, old))) == 1  # instructions are the kernels' choice
    with pytest.raises(ValueError, match="no measurement in common"):
        changes.lines(old, of(OTHER_COMMIT, seconds_rows(replace(SMALL, dropout=0.1), cpu=QUIET)))


def test_memory_the_host_and_steps_are_compared_too():
    where = rows.case_fields(SMALL)
    host = rows.HostRow(ORIGIN, **where, provider="cpu", median_us=20, q1_us=19, q3_us=21, repeats=200)
    counts = {"batches": 2, "sentences": 128, "tokens": 4000, "cells": 10000}
    step = step_rows(
        {("fused packed", "float32"): [1.0]},
        0.3,
        ORIGIN,
        ("released", "float32"),
        size="minilm",
        mode="training",
        lengths="somewhere",
        **counts,
    )
    old = [host, memory_row(50.0), *step]
    new = of(OTHER_COMMIT, [replace(host, median_us=10, q1_us=9.5, q3_us=10.5), memory_row(53.0), *step])
    by_unit = {change.unit: change for change in changes.changes(old, new)}
    assert by_unit["us"].verdict(0.1) == "better"
    assert by_unit["MB"].verdict(0.01) == "within noise"  # inside the method's slack
    assert by_unit["ms"].ratio == 1 and by_unit["ms"].disturbed
    (memory,) = changes.changes([memory_row(1.0)], of(OTHER_COMMIT, [memory_row(16.0)]))
    assert memory.ratio == 4 and memory.verdict(0.1) == "WORSE"  # counted from the slack of 4 MB


def test_the_command_reads_files_and_folders(tmp_path, capsys):
    for name, factor, origin in (("old", 1, ORIGIN), ("new", 0.5, OTHER_COMMIT)):
        measured = of(origin, seconds_rows(eager=QUIET, cpu=scaled(factor, QUIET)))
        ceiling = ceiling_row("a product", "float32", "cpu", [1.0], origin)
        rows.Writer(tmp_path / name, "suite", origin).add([ceiling, *measured])
    (file,) = (tmp_path / "old").iterdir()
    assert compare.main([str(file), str(tmp_path / "new")]) == 0
    text = capsys.readouterr().out
    assert "0123456789ab" in text and "fedcba987654" in text
    assert "0.50 [" in text and "better" in text
    assert "1 better, 0 worse, 0 within noise; 1 controls beside them" in text
    assert compare.main([str(file), str(tmp_path / "no such")]) == 1
