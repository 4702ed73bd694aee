"""A full disk, an unwritable output, an output that is the input: one line, exit status 2, no partial file."""

import errno
import io
import json
import os
import subprocess
import sys

import pytest
from processes import ROOT, run_python
from qacg_models.cli.program import main
from untrained import TEXTS

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def qacg(*arguments):
    return [sys.executable, "-m", "qacg_models.cli", *map(str, arguments)]


WITH_SMALL_FILES = """
import resource, signal, sys
from qacg_models.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


def with_small_files(arguments, size):
    """Runs qacg with a file size limit of `size` bytes, beyond which writing fails as on a full disk."""
    return run_python("-c", WITH_SMALL_FILES, size, *arguments, status=None, paths=(ROOT, ROOT / "python"))


def last_line(done):
    assert done.returncode == 2, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stderr.splitlines()[-1]


@pytest.mark.full
def test_predict_full_standard_output_raises(model, tmp_path):
    texts = tmp_path / "in.txt"
    texts.write_text("".join(f"{TEXTS[number % 3]} number {number}\n" for number in range(600)))
    with open("/dev/full", "w") as full:
        command, pipe = qacg("predict", model, "--input", texts), subprocess.PIPE
        done = subprocess.run(command, stdout=full, stderr=pipe, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 2
    size, error = done.stderr.splitlines()
    assert "rows per batch" in size
    assert error == "qacg predict: No space left on device"


@pytest.mark.parametrize("function", ["write", "flush"])
def test_predict_closed_pipe_ends_silently(function, model, capsys, monkeypatch):
    class ClosedPipe(io.StringIO):
        """A standard output whose reader is gone."""

        def fileno(self):
            return os.open(os.devnull, os.O_WRONLY)

    def fails(*_):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    out = ClosedPipe()
    monkeypatch.setattr(out, function, fails)
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["predict", str(model), "--text", TEXTS[0]]) == 141
    assert "Broken pipe" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "predict", "analyze", "convert", "demo"])
def test_command_checks_its_output_before_the_input(command, model, tmp_path, capsys):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    nothing = tmp_path / "nothing"  # no such data: an earlier read would give another error
    for output, reason in ((in_the_way / "out.csv", "Not a directory"), (tmp_path / ("x" * 300), "File name too long")):
        output = output.with_name(f"{output.name}.csv")
        arguments = {
            "train": ["--data", nothing, "--output", output],
            "predict": [nothing, "--input", nothing, "--format=txt", "--output", output],
            "analyze": [nothing, "--text", "fine", "--output", output],
            "convert": [model, output],
            "demo": ["--output", output],
        }[command]
        assert main([command, *map(str, arguments)]) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"qacg {command}: "), line
        assert str(output) in line, line
        assert reason in line, line
        assert line.count("\n") == 1 and "Errno" not in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("spelling", ["dots", "symlink"])
def test_predict_output_equal_to_input_raises(spelling, model, tmp_path, capsys):
    source = tmp_path / "texts.jsonl"
    content = json.dumps({"text": TEXTS[0]}) + "\n"
    source.write_text(content)
    other = tmp_path / "other.jsonl"
    if spelling == "symlink":
        other.symlink_to(source)
    else:
        other = tmp_path / "." / ".." / tmp_path.name / source.name
    flags = ["predict", str(model), "--output", str(other), "--overwrite"]
    assert main([*flags, "--input", str(source)]) == 2
    line = capsys.readouterr().err
    assert f"output: {other} is the input file, which would be overwritten" in line
    assert source.read_text() == content


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "flags", "name", "place"),
    [("export", [], "model.onnx", "."), ("analyze", ["--text", TEXTS[0]], "page", "page/index.html")],
)
def test_output_that_does_not_fit_leaves_nothing(model, tmp_path, command, flags, name, place):
    folder = tmp_path / "out"
    folder.mkdir()
    done = with_small_files([command, model, *flags, "--output", folder / name], 10_000)
    assert last_line(done) == f"qacg {command}: {folder / place}: cannot be written (File too large)"
    assert not [path for path in folder.rglob("*") if path.is_file()]
