"""`python -m qacg_kernels.selftest`: what it asks, what it says of a process that crashes or hangs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from qacg_kernels import selftest
from qacg_kernels.backends import cpu

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are not there")


def test_cases_combine_what_kernels_are_compiled_for():
    names = {case.name for case in selftest._SMALL + selftest._LARGE}
    assert {"L = 1,100", "9 queries x 4,200 keys", "B*H = 192", "offsets above 2^31"} <= names
    assert any(case.is_causal and case.dropout_p for case in selftest._SMALL)
    assert any(case.mask and case.dropout_p for case in selftest._SMALL)
    assert any(case.key_lengths and case.dropout_p for case in selftest._SMALL)
    assert any(case.sequences and case.is_causal for case in selftest._SMALL)


def scripted(monkeypatch, *processes):
    """Makes the processes of `results_of` print scripted lines; returns what each was asked."""
    asked = []
    monkeypatch.setattr(selftest, "calls", lambda device: ["a", "b", "c"])

    def lines(device, left, end):
        asked.append(list(left))
        yield from processes[len(asked) - 1]

    monkeypatch.setattr(selftest, "_lines", lines)
    return asked


def answers(*names):
    for name in names:
        yield {"call": name, "result": "right"}


def test_a_process_that_ends_costs_one_call(monkeypatch):
    asked = scripted(monkeypatch, answers("a"), answers("c"))
    results = {r["call"]: r["result"] for r in selftest.results_of(CPU, 1)}
    assert asked == [["a", "b", "c"], ["c"]]
    assert results == {"a": "right", "b": "crashed, or hung: the process that ran it ended", "c": "right"}


def test_an_error_of_the_device_begins_another_process(monkeypatch):
    broken = {"call": "a", "result": "RuntimeError: CUDA error: an illegal memory access was encountered"}
    asked = scripted(monkeypatch, [broken], answers("b", "c"))
    assert [r["result"] for r in selftest.results_of(CPU, 1)] == [broken["result"], "right", "right"]
    assert asked == [["a", "b", "c"], ["b", "c"]]


def test_what_the_time_does_not_reach_is_named(monkeypatch):
    scripted(monkeypatch)
    assert {r["result"] for r in selftest.results_of(CPU, 0)} == {"not run: the time is over"}


@pytest.mark.parametrize("hangs", ["start", "call"])
def test_a_hung_process_is_ended(hangs, monkeypatch, capfd):
    """Its stack is printed; a call that takes longer than its time counts as hung."""
    last = "importlib.import_module(name).run(device, seconds, *others)"
    assert last in selftest._CHILD
    if hangs == "start":
        monkeypatch.setattr(selftest, "_CHILD", selftest._CHILD.replace(last, "__import__('time').sleep(600)"))
    monkeypatch.setattr(selftest, "_SECONDS_OF_A_CALL", 0.5 if hangs == "start" else 600)
    assert list(selftest._lines("cpu", ["cpu|float32|plain"], time.time() if hangs == "call" else float("inf"))) == []
    assert "Timeout" in capfd.readouterr().err


@pytest.mark.full
def test_a_process_imports_nothing_from_the_current_folder(monkeypatch, tmp_path):
    for name in ("queue", "json", "torch", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    call = "cpu|float32|plain"
    assert list(selftest._lines("cpu", [call], float("inf"))) == [{"call": call, "result": "right"}]


def test_the_command_prints_a_table_and_writes_json(monkeypatch, tmp_path, capsys):
    wrong = {"call": "b", "result": "RuntimeError: out[0]: expected 1, got 2"}
    scripted(monkeypatch, [*answers("a"), wrong, *answers("c")])
    assert selftest.main(["--device", "cpu", "--json", str(tmp_path / "a.json")]) == 1
    printed = capsys.readouterr().out
    assert "out[0]: expected 1, got 2" in printed and "2 of 3 calls are right" in printed
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["machine"]["torch"] == torch.__version__ and record["results"][1] == wrong


@pytest.mark.full
@pytest.mark.parametrize("interpreted", ["0", "1"])
def test_the_command_finds_this_machine_right(interpreted):
    if interpreted == "1":
        pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": interpreted, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "qacg_kernels.selftest", "--device", "cpu", "--minutes", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("triton  float32  packed" in done.stdout) == (interpreted == "1")
