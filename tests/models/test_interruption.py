"""An interrupted command ends cleanly, prints how to resume it, and resumes."""

import signal
import subprocess
import sys

import pytest
from interrupted_runs import interrupt_at
from qacg_models.cli import program
from qacg_models.cli.commands import suggest
from qacg_models.cli.program import main
from qacg_models.sentiment.predictor import Predictor
from untrained import TEXTS


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "my texts.txt"
    path.write_text("".join(f"{TEXTS[number % 3]} {number}\n" for number in range(24)), encoding="utf-8")
    return path


def stop(*_, **__):
    raise KeyboardInterrupt


def test_predict_interrupted_prints_how_to_resume(model, source, tmp_path, monkeypatch, capsys):
    output = tmp_path / "out.jsonl"
    command = ["predict", str(model), "--input", str(source), "--output", str(output)]
    output.write_text("to be replaced")
    with monkeypatch.context() as patch:
        interrupt_at(patch, Predictor, "predict", 1, error=KeyboardInterrupt)
        assert main([*command, "--over"]) == program.INTERRUPTED
    hint = "qacg predict: interrupted; the same command with --resume instead of --overwrite continues it"
    assert capsys.readouterr().err.splitlines()[-1] == hint
    assert output.read_text() == "to be replaced"


def test_suggest_interrupted_prints_no_hint(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suggest, "_proposals", stop)
    assert main(["suggest", "--input", str(source), "--output", str(tmp_path / "sheet.csv")]) == program.INTERRUPTED
    assert capsys.readouterr().err.splitlines()[-1] == "qacg suggest: interrupted"


SENT = """
import os, signal, sys, time
from qacg_models.cli import program
from qacg_models.cli.commands import suggest
def run(arguments):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    finally:
        print("tidied up", flush=True)
suggest.run = run
sys.argv = ["qacg", "suggest", "--input", "in.txt", "--output", "out.csv"]
sys.exit(program.main())
"""


def test_sigterm_ends_a_command():
    done = subprocess.run([sys.executable, "-c", SENT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (program.TERMINATED, "tidied up\n")
    assert done.stderr == "qacg suggest: interrupted\n"


def test_main_keeps_the_sigterm_handler_of_its_caller(source, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    assert main(["suggest", "--input", str(source), "--output", str(tmp_path / "sheet.csv")]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
