"""`make sanitize-gpu` on a machine without a GPU: errors, and the commands that it would run."""

import json
import sys
from pathlib import Path

import pytest
import sanitize

from qacg_kernels.backends import cuda


def error_of(capsys, folder):
    code = sanitize.main([str(folder)])
    return code == 1 and capsys.readouterr().err


def test_missing_gpu_library_or_tool_is_an_error(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sanitize.torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in error_of(capsys, tmp_path)
    monkeypatch.setattr(sanitize.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "missing", lambda: ["the compiled CUDA library is missing: no nvcc"])
    assert "the compiled CUDA library is missing: no nvcc" in error_of(capsys, tmp_path)
    monkeypatch.setattr(cuda, "missing", list)
    monkeypatch.setattr(sanitize, "sanitizer", lambda: None)
    assert "compute-sanitizer was not found" in error_of(capsys, tmp_path)


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Runs the command with a program in place of each tool; returns the status and the rows."""

    def run(programs, *arguments):
        def command(tool, out, seconds):
            return [sys.executable, "-c", programs.get(tool, PASSES), str(sanitize._tests_file(tool, out))]

        monkeypatch.setattr(sanitize, "why_not", lambda: None)
        monkeypatch.setattr(sanitize, "command", command)
        status = sanitize.main([str(tmp_path), *arguments])
        origin, *rows = [json.loads(line) for line in (tmp_path / "sanitizer.jsonl").read_text().splitlines()]
        assert origin["kind"] == "origin"
        assert all(row["kind"] == "sanitizer" for row in rows)
        assert [row["tool"] for row in rows] == list(sanitize.TOOLS)
        return status, {row["tool"]: row for row in rows}

    return run


def record(*outcomes):
    rows = [dict(kind="test", test=f"test_{n}", outcome=outcome) for n, outcome in enumerate(outcomes)]
    rows = "".join(json.dumps(row) + "\n" for row in rows)
    return f"import sys, time; open(sys.argv[1], 'w').write({rows!r}); "


PASSES = record("passed", "passed")


def test_rows_distinguish_errors_from_failed_tests(runs, capsys):
    status, rows = runs(
        {
            "racecheck": PASSES + f"sys.exit({sanitize.FOUND})",
            "synccheck": record("passed", "failed") + "sys.exit(1)",
            "initcheck": record("passed", "left out", "left out"),
        }
    )
    assert status == 1
    assert {tool: row["outcome"] for tool, row in rows.items()} == {
        "memcheck": "clean",
        "racecheck": "errors found",
        "synccheck": "tests failed (1)",
        "initcheck": "clean, 2 tests left out",
    }
    assert rows["synccheck"]["tests"] == {"passed": 1, "failed": 1}
    assert rows["memcheck"]["report"] == "memcheck.txt"
    assert capsys.readouterr().out.splitlines()[:2] == ["memcheck: clean", "racecheck: errors found"]


def test_tool_without_tests_is_not_clean(runs):
    status, rows = runs({"memcheck": "pass"})
    assert status == 1
    assert rows["memcheck"]["outcome"] == "no test ran"


def test_tool_that_hangs_is_stopped_with_its_children(runs, tmp_path):
    child = "import subprocess; p = subprocess.Popen(['sleep', '600']); "
    hangs = record("passed") + child + f"open({str(tmp_path / 'child')!r}, 'w').write(str(p.pid)); time.sleep(600)"
    status, rows = runs({"memcheck": hangs}, "--seconds", "5")
    assert status == 1
    assert rows["memcheck"]["outcome"] == "stopped at the time limit"
    assert rows["memcheck"]["tests"] == {"passed": 1}
    assert rows["initcheck"]["outcome"] == "clean"
    state = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z", "a child of the tool is still running"
