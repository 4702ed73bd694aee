"""`python -m qacg_kernels.selftest`: its calls, and processes that crash or hang."""

import json
import time

import pytest
import torch
from processes import run_python

from qacg_kernels import selftest
from qacg_kernels.backends import cpu

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are missing")


def scripted(monkeypatch, *processes):
    """Makes the processes of `results_of` print scripted lines; returns the calls that each received."""
    requests = []
    monkeypatch.setattr(selftest, "calls", lambda device: ["a", "b", "c"])

    def lines(device, left, end):
        requests.append(list(left))
        yield from processes[len(requests) - 1]

    monkeypatch.setattr(selftest, "_lines", lines)
    return requests


def answers(*names):
    for name in names:
        yield {"call": name, "result": "right"}


def test_crashed_process_loses_one_call(monkeypatch):
    requests = scripted(monkeypatch, answers("a"), answers("c"))
    results = {r["call"]: r["result"] for r in selftest.results_of(CPU, 1)}
    assert requests == [["a", "b", "c"], ["c"]]
    assert results == {"a": "right", "b": "crashed or hung: the process that ran it ended", "c": "right"}


def test_device_error_starts_another_process(monkeypatch):
    broken = {"call": "a", "result": "RuntimeError: CUDA error: an illegal memory access was encountered"}
    requests = scripted(monkeypatch, [broken], answers("b", "c"))
    assert [r["result"] for r in selftest.results_of(CPU, 1)] == [broken["result"], "right", "right"]
    assert requests == [["a", "b", "c"], ["b", "c"]]


def test_calls_without_time_are_reported(monkeypatch):
    scripted(monkeypatch)
    assert {r["result"] for r in selftest.results_of(CPU, 0)} == {"not completed: the time limit is reached"}


def test_hung_process_is_killed(monkeypatch, capfd):
    """The process prints its stack. A call that exceeds its time limit counts as hung."""
    assert list(selftest._lines("cpu", ["cpu|float32|plain"], time.time())) == []
    assert "Timeout" in capfd.readouterr().err


def test_command_prints_a_table_and_writes_json(monkeypatch, tmp_path, capsys):
    wrong = {"call": "b", "result": "RuntimeError: out[0]: expected 1, got 2"}
    scripted(monkeypatch, [*answers("a"), wrong, *answers("c")])
    assert selftest.main(["--device", "cpu", "--json", str(tmp_path / "a.json")]) == 1
    printed = capsys.readouterr().out
    assert "out[0]: expected 1, got 2" in printed
    assert "2 of 3 calls are right" in printed
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["machine"]["torch"] == torch.__version__
    assert record["results"][1] == wrong


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "foo"], "--device: expected cpu or cuda, got 'foo'"),
        (["--minutes", "0"], "--minutes: expected a positive number, got 0.0"),
        (["--json", "no/such/a.json"], "--json: expected a file that can be written, got 'no/such/a.json' ("),
        (["--json", "."], "--json: expected a file that can be written, got '.' (Is a directory)"),
    ],
)
def test_command_with_invalid_option_is_an_error(options, message, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(selftest, "calls", lambda device: pytest.fail("the calls started"))
    with pytest.raises(SystemExit):
        selftest.main(["--device", "cpu", *options])
    assert message in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("interpreted", ["0", "1"])
def test_command_passes_on_this_machine(interpreted):
    if interpreted == "1":
        pytest.importorskip("triton")
    command = ("-m", "qacg_kernels.selftest", "--device", "cpu", "--minutes", "8")
    output = run_python(*command, TRITON_INTERPRET=interpreted).stdout
    assert ("triton  float32  packed" in output) == (interpreted == "1")
