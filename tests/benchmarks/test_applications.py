"""Predictions of applications: the command, its table and plot, and its targets."""

from dataclasses import replace

import pytest
import torch
from benchmark_records import ORIGIN
from untrained import write_model

from benchmarks import applications, plot, records
from benchmarks.table import markdown
from benchmarks.targets.performance import TARGETS


def record(name, rate, equal=1.0):
    times = dict(median_ms=1e6 / rate, min_ms=1e6 / rate, q1_ms=8e5 / rate, q3_ms=2e6 / rate)
    return records.ApplicationRecord(
        ORIGIN,
        name,
        "some library",
        1000,
        **times,
        repeats=5,
        cpu_contention=0.0,
        rows_per_second=rate,
        equal_labels=equal,
    )


MEASURED = [
    record("qacg float32", 900.0),
    record("qacg bfloat16", 1200.0, 0.9985),
    record("OpenVINO int8", 200.0),
    record("ONNX Runtime float32", 100.0),
    record("pipeline of sentence pairs float32", 50.0, None),
]


def test_targets_compare_the_fastest_with_the_fastest():
    best, _, earlier, stretch = (target.judge("qacg", MEASURED) for target in TARGETS["applications"])
    assert (best.measured, best.met) == ("6.00x (qacg bfloat16, OpenVINO int8)", True)
    assert (earlier.measured, earlier.met) == ("12.00x (qacg bfloat16, ONNX Runtime float32)", False)
    assert stretch.stretch
    assert TARGETS["applications"][0].judge("qacg", MEASURED[:2]).measured == "not measured"


def test_table_and_plot_show_rates(tmp_path):
    text = markdown(MEASURED)
    assert "| qacg bfloat16 | some library | 1200 | 600 to 1500 | 99.85% |" in text
    assert "| pipeline of sentence pairs float32 | some library | 50 | 25 to 62 |  |" in text
    pytest.importorskip("matplotlib")
    file = tmp_path / "records.jsonl"
    writer = records.Writer(tmp_path, "applications", ORIGIN)
    writer.add(MEASURED)
    file = tmp_path / "rates.svg"
    assert plot.main([str(writer.path), "--output", str(file)]) == 0
    assert ">qacg bfloat16 (some library)<" in file.read_text()


@pytest.mark.full
def test_quick_run_compares_labels(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "origin", lambda: replace(ORIGIN, dirty=True))
    model = write_model(tmp_path / "model", context_standalone=True)
    threads = str(torch.get_num_threads())
    assert (
        applications.main(["--quick", "--threads", threads, "--model", str(model), "--out", str(tmp_path / "out")]) == 0
    )
    found = {one.implementation: one for one in records.load((tmp_path / "out").iterdir())}
    assert {one.rows for one in found.values()} == {60}
    assert {found[f"{name} float32"].equal_labels for name in ("qacg", "ONNX Runtime")} == {1.0}
    left_out = capsys.readouterr().out.count("left out")
    assert len(found) + left_out == 11
    assert applications.main(["--quick", "--model", str(tmp_path)]) == 1
