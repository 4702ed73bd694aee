"""The runner of the operator tests: shards, records of outcomes, tests that did not start, and errors."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import kernel_suite
import outcomes
import pytest
import torch
from processes import run_python

CPU = ("--device", "cpu", "--backends", "reference", "--out")


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_each_test_is_in_one_shard():
    names = [f"tests/test_x.py::test_{n}" for n in range(200)]
    for name in names:
        assert sum(outcomes.in_shard(name, f"{k}/3") for k in range(3)) == 1
    assert all(any(outcomes.in_shard(name, f"{k}/3") for name in names) for k in range(3))


def test_recorder_writes_outcomes_with_reasons(tmp_path):
    recorder = outcomes.Recorder(tmp_path / "new" / "rows.jsonl")

    def report(when, outcome, longrepr=None):
        recorder.pytest_runtest_logreport(
            SimpleNamespace(nodeid="t", when=when, outcome=outcome, duration=0.5, longrepr=longrepr)
        )

    report("setup", "passed")
    report("call", "passed")
    report("teardown", "passed")
    report("call", "failed", "AssertionError: off by 3")
    report("setup", "skipped", ("file", 3, "Skipped: no second GPU"))
    report("setup", "skipped", ("file", 3, f"Skipped: {outcomes.LEFT_OUT}"))
    report("teardown", "failed", "leak")
    origin, *rows = lines(tmp_path / "new" / "rows.jsonl")
    assert origin["kind"] == "origin"
    assert origin["versions"]["torch"] == torch.__version__
    assert [(row["outcome"], row["message"]) for row in rows] == [
        ("passed", ""),
        ("failed", "AssertionError: off by 3"),
        ("skipped", "no second GPU"),
        ("left out", outcomes.LEFT_OUT),
        ("failed", "leak"),
    ]


@pytest.mark.full
def test_suite_runs_in_processes_and_writes_rows(tmp_path, capsys):
    status = kernel_suite.main(
        [*CPU, str(tmp_path), "--jobs", "2", "--files", "test_dispatch.py", "--select", "explain"]
    )
    origin, *rows = lines(tmp_path / "outcomes.jsonl")
    assert status == 0
    assert origin["kind"] == "origin"
    assert {row["test"].split("::")[1] for row in rows} >= {"test_explain_supports_packed_calls"}
    assert {row["outcome"] for row in rows} <= {"passed", "skipped"}
    assert f"{sum(row['outcome'] == 'passed' for row in rows)} passed" in capsys.readouterr().out
    assert (tmp_path / "log-1.txt").exists()


@pytest.mark.full
def test_suite_that_leaves_tests_out_fails(tmp_path, capsys):
    status = kernel_suite.main(
        [*CPU, str(tmp_path), "--jobs", "1", "--seconds", "0", "--files", "test_dispatch.py", "--select", "explain"]
    )
    assert status == 1
    assert "left out: tests/kernels/test_dispatch.py::test_explain_supports_packed_calls" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "statuses", "status"),
    [
        ([("passed", "a")], [0], 0),
        ([("passed", "a"), ("skipped", "b")], [0, 5], 0),
        ([("passed", "a"), ("failed", "b")], [1], 1),
        ([("passed", "a")], [0, -9], 1),
        ([("skipped", "a")], [0], 1),
        ([], [5], 1),
    ],
)
def test_status_is_zero_if_all_tests_ran_and_passed(rows, statuses, status, tmp_path, capsys):
    tests = [dict(kind="test", test=name, outcome=outcome) for outcome, name in rows]
    assert kernel_suite.report(tests, statuses, tmp_path) == status
    assert ("processes with errors" in capsys.readouterr().out) == (-9 in statuses)


def test_tests_of_a_process_that_dies_are_left_out(tmp_path, capsys, monkeypatch):
    """The process may die while it writes a row, so the last one may be incomplete."""
    rows = [dict(kind="collected", tests=["a", "b", "c"]), dict(kind="test", test="a", outcome="passed")]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "test", "te'
    dies = "import os, sys; open(sys.argv[1], 'w').write(sys.argv[2]); os.abort()"
    monkeypatch.setattr(
        kernel_suite,
        "_command",
        lambda _, folder, shard: [sys.executable, "-c", dies, str(folder / f"outcomes-{shard}.jsonl"), text],
    )
    assert kernel_suite.main([*CPU, str(tmp_path), "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert "left out: b\nleft out: c\nprocesses with errors, see their logs: 0 (-6)" in out
    assert "2 left out, 1 passed" in out
    assert [row["outcome"] for row in lines(tmp_path / "outcomes.jsonl")] == ["passed", "left out", "left out"]


def test_recorder_writes_the_collected_tests(tmp_path):
    recorder = outcomes.Recorder(tmp_path / "rows.jsonl")
    recorder.pytest_collection_finish(SimpleNamespace(items=[SimpleNamespace(nodeid=name) for name in "ab"]))
    rows = outcomes.read(tmp_path / "rows.jsonl")
    assert [row["test"] for row in outcomes.not_reached(rows)] == ["a", "b"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_suite_without_a_gpu_exits(tmp_path, capsys):
    assert kernel_suite.main(["--out", str(tmp_path / "rows")]) == 2
    assert "expected an NVIDIA or AMD GPU, got none" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_operator_tests_without_transformers_are_collected():
    code = (
        "import sys, pytest\n"
        "sys.modules.update(dict.fromkeys(('qacg_models', 'transformers')))\n"
        "sys.exit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', '-m', '', 'tests/kernels']))"
    )
    assert "tests/kernels/test_dropout.py" in run_python("-c", code).stdout
