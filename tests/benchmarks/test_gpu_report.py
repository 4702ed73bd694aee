"""The report of a GPU, with a simulated device and steps."""

import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmark_records import ORIGIN, time_of, to_line

from benchmarks import gpu_report, records
from benchmarks.cases import SENTENCES, Case

GPU = "Some GPU 9000"
ON_GPU = replace(ORIGIN, machine=ORIGIN.machine | {"cuda_devices": [{"name": GPU}]})
RESULTS = Path(gpu_report.__file__).parent / "results"


def python(code):
    return [sys.executable, "-c", code]


@pytest.fixture
def fake_gpu(monkeypatch):
    """Simulates a GPU and steps that write small files; returns the steps, which a test may change."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: GPU)
    monkeypatch.setattr(records, "origin", lambda: ON_GPU)
    line = to_line(replace(time_of(Case(SENTENCES), "eager", 1.0), origin=ON_GPU))
    chosen = {"info": ("print('info')", "info.txt"), "selftest": ("print('ok')", "selftest.txt")}
    chosen["benchmark"] = (
        f"import pathlib; f = pathlib.Path('benchmark'); f.mkdir(); (f / 'x-gpu.jsonl').write_text({line!r})",
        "benchmark/*-gpu.jsonl",
    )
    monkeypatch.setattr(
        gpu_report,
        "steps",
        lambda out: (
            gpu_report.Step(name, python(f"import os; os.chdir({str(out)!r}); {code}"), 60, creates)
            for name, (code, creates) in chosen.items()
        ),
    )
    return chosen


def test_report_has_all_steps_in_one_archive(fake_gpu, tmp_path, capsys):
    assert gpu_report.main(["--out", str(tmp_path / "report")]) == 0
    archive = tmp_path / "gpu-report-some-gpu-9000.tar.gz"
    assert str(archive) in capsys.readouterr().out
    with tarfile.open(archive) as file:
        names = {Path(name).name for name in file.getnames()}
    assert names >= {"manifest.json", "info.txt", "selftest.txt", "benchmark.txt", "x-gpu.jsonl"}


def test_report_after_a_failed_step_has_the_others(fake_gpu, tmp_path):
    fake_gpu["selftest"] = ("raise SystemExit(3)", "selftest.json")
    assert gpu_report.main(["--out", str(tmp_path / "report")]) == 0
    entries = json.loads((tmp_path / "report" / "manifest.json").read_text())["steps"]
    assert [entry["ended"] for entry in entries] == ["exit status 0", "exit status 3", "exit status 0"]
    assert [entry["created"] for entry in entries] == [True, False, True]


def test_run_step_stops_at_its_limit(tmp_path):
    step = gpu_report.Step("slow", python("import time; time.sleep(600)"), 0.2, "slow.txt")
    assert gpu_report.run_step(step, tmp_path, 60)["ended"] == "stopped after 0 seconds"
