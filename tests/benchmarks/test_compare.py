"""Comparison of two sets of records."""

from dataclasses import replace

import pytest
from benchmark_records import ORIGIN, SMALL, memory, overhead, times

from benchmarks import compare, records
from benchmarks.command import INTERRUPTED
from benchmarks.measure.ceiling import ceiling_record
from benchmarks.model_steps.times import Workload, step_records

QUIET = [0.0100, 0.0101, 0.0102]
OTHER_COMMIT = replace(ORIGIN, commit="fedcba987654")


def with_origin(origin, measured):
    return [replace(row, origin=origin) for row in measured]


def scaled(factor, seconds):
    return [factor * s for s in seconds]


def test_compare_interrupted_prints_no_advice(monkeypatch, capsys):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "load", interrupted)
    assert compare.main(["old", "new"]) == INTERRUPTED
    assert capsys.readouterr().out == "interrupted\n"


@pytest.mark.parametrize(
    ("factor", "drift", "verdict"),
    [
        (0.8, 1.0, "better"),
        (1.25, 1.0, "WORSE"),
        (1.01, 1.0, "within noise"),  # below the minimum
        (1.25, 1.3, "within noise"),  # eager, whose code is the same, changed by more
        (1.5, 1.3, "WORSE"),
    ],
)
def test_verdict_counts_changes_beyond_the_controls(factor, drift, verdict):
    old = times(eager=scaled(10, QUIET), cpu=QUIET)
    new = with_origin(OTHER_COMMIT, times(eager=scaled(10 * drift, QUIET), cpu=scaled(factor, QUIET)))
    found = {change.what: change for change in compare.changes(old, new)}
    assert len(found) == 2
    cpu = found[f"{SMALL}, cpu"]
    assert cpu.ratio == pytest.approx(factor, rel=1e-3)
    assert cpu.low < cpu.ratio < cpu.high
    assert cpu.verdict(compare.noise_between_runs(list(found.values()))) == verdict
    (control,) = (change for change in found.values() if change.control)
    assert control.what.endswith("eager")


def test_changes_within_the_quartiles_are_noise():
    wide_old, wide_new = [0.010, 0.014, 0.018], [0.012, 0.017, 0.022]
    (change,) = compare.changes(times(cpu=wide_old), with_origin(OTHER_COMMIT, times(cpu=wide_new)))
    assert change.ratio == pytest.approx(17 / 14, rel=1e-3)
    assert change.within
    assert change.verdict(0.01) == "within noise"
    (change,) = compare.changes(times(cpu=QUIET), with_origin(OTHER_COMMIT, times(cpu=scaled(17 / 14, QUIET))))
    assert not change.within


def test_changes_of_torch_have_no_controls():
    newer = replace(OTHER_COMMIT, versions=ORIGIN.versions | {"torch": "2.14.0"})
    old, new = times(eager=QUIET, cpu=QUIET), with_origin(newer, times(eager=QUIET, cpu=scaled(0.5, QUIET)))
    assert not any(change.control for change in compare.changes(old, new))
    assert "assumed" in compare.lines(old, new)[2]


def test_other_machines_and_threads_raise_or_are_listed():
    single = replace(OTHER_COMMIT, machine=ORIGIN.machine | {"threads": 1})
    cores = replace(OTHER_COMMIT, machine=ORIGIN.machine | {"cores": 99})
    with pytest.raises(ValueError, match=r"threads, got cores \d+ in OLD, cores 99 in NEW\. "):
        compare.changes(times(cpu=QUIET), with_origin(cores, times(cpu=QUIET)))
    old = times(cpu=QUIET)
    with pytest.raises(ValueError, match=r"got threads 2 in OLD, threads 1 in NEW\. Measure both commits"):
        compare.lines(old, with_origin(single, old))
    text = compare.lines(old, [*with_origin(OTHER_COMMIT, old), *with_origin(single, old)])
    assert text[-1] == "only in NEW: 1 measurement on Some CPU (R) 9000 with 1 thread"
    amx = replace(OTHER_COMMIT, machine=ORIGIN.machine | {"instruction_sets": {"float32": "amx"}})
    assert len(compare.changes(old, with_origin(amx, old))) == 1  # instructions are the kernels' choice
    with pytest.raises(ValueError, match=r"expected a measurement in common, got .*, cpu and others in OLD, .* in NEW"):
        compare.lines(old, with_origin(OTHER_COMMIT, times(replace(SMALL, dropout=0.1), cpu=QUIET)))


def test_changes_include_memory_overhead_and_steps():
    host = overhead(SMALL, "cpu", 20, 19, 21)
    step = step_records(
        {("fused packed", "float32"): [1.0]},
        0.3,
        ORIGIN,
        Workload("minilm", "training", "somewhere", 2, 128, 4000, 10000),
    )
    old = [host, memory(50.0), *step]
    new = with_origin(OTHER_COMMIT, [replace(host, median_us=10, q1_us=9.5, q3_us=10.5), memory(53.0), *step])
    by_unit = {change.unit: change for change in compare.changes(old, new)}
    assert by_unit["us"].verdict(0.1) == "better"
    assert by_unit["MB"].verdict(0.01) == "within noise"  # inside the method's slack
    assert by_unit["ms"].ratio == 1
    assert by_unit["ms"].contended
    (change,) = compare.changes([memory(1.0)], with_origin(OTHER_COMMIT, [memory(16.0)]))
    assert change.ratio == 4
    assert change.verdict(0.1) == "WORSE"  # both values are at least 4 MB


def test_compare_reads_files_and_folders(tmp_path, capsys):
    for name, factor, origin in (("old", 1, ORIGIN), ("new", 0.5, OTHER_COMMIT)):
        measured = with_origin(origin, times(eager=QUIET, cpu=scaled(factor, QUIET)))
        ceiling = ceiling_record("a product", "float32", "cpu", [1.0], origin)
        records.Writer(tmp_path / name, "suite", origin).add([ceiling, *measured])
    (file,) = (tmp_path / "old").iterdir()
    assert compare.main([str(file), str(tmp_path / "new")]) == 0
    text = capsys.readouterr().out
    assert "0123456789ab" in text
    assert "fedcba987654" in text
    assert "0.50 [" in text
    assert "better" in text
    assert "1 better, 0 worse, 0 within noise; 1 control\n" in text
    assert compare.main([str(file), str(tmp_path / "no such")]) == 1
