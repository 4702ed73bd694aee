"""The command behind `make sanitize-gpu`, where it can run nothing: what it refuses, what it would run."""

import sanitize

from qacg_kernels.backends import cuda


def refuses(capsys, folder):
    code = sanitize.main([str(folder)])
    return code == 1 and capsys.readouterr().err


def test_refuses_without_a_gpu_a_library_or_the_tool(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sanitize.torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in refuses(capsys, tmp_path)
    monkeypatch.setattr(sanitize.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "_missing", ["the compiled CUDA library is not there: no nvcc"])
    assert "the compiled CUDA library is not there: no nvcc" in refuses(capsys, tmp_path)
    monkeypatch.setattr(cuda, "_missing", [])
    monkeypatch.setattr(sanitize, "sanitizer", lambda: None)
    assert "compute-sanitizer was not found" in refuses(capsys, tmp_path)


def test_runs_each_tool_and_tells_its_errors_from_failed_tests(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sanitize, "why_not", lambda: None)
    monkeypatch.setattr(sanitize, "command", lambda tool, out: [sanitize.sys.executable, "-c", f"exit({codes[tool]})"])
    codes = {"memcheck": 0, "racecheck": sanitize.FOUND}
    assert sanitize.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == ["memcheck: clean", "racecheck: errors found"]
    codes = {"memcheck": 1, "racecheck": 0}
    assert sanitize.main([str(tmp_path)]) == 1
    assert "memcheck: tests failed (1)" in capsys.readouterr().out
    codes = {"memcheck": 0, "racecheck": 0}
    assert sanitize.main([str(tmp_path)]) == 0


def test_the_command_names_the_tool_and_the_backend(monkeypatch, tmp_path):
    monkeypatch.setattr(sanitize, "sanitizer", lambda: "/opt/compute-sanitizer")
    command = sanitize.command("racecheck", tmp_path)
    assert command[:3] == ["/opt/compute-sanitizer", "--tool", "racecheck"]
    assert " ".join(command).count("cuda") >= 2 and "--error-exitcode" in command
