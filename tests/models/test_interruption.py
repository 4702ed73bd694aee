"""An interrupted command ends cleanly and prints the command that resumes it."""

import shlex
import signal
import subprocess
import sys

import pytest
from interrupted_runs import interrupt_at
from kill_and_resume import OPTIONS
from model_sizes import SMALL_FLAGS
from qacg_models.cli import interruption, main
from qacg_models.cli.commands import suggest
from qacg_models.inference.predictor import Predictor
from qacg_models.training.trainer import AspectTrainer
from qacg_models.utils.output_lock import unfinished_path
from untrained import TEXTS

TRAIN = [
    *SMALL_FLAGS,
    *("--epochs=2", "--batch-size=16", "--learning-rate=3e-3", "--eval-every=20", "--checkpoint-every=7"),
]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "my texts.txt"
    path.write_text("".join(f"{TEXTS[number % 3]} {number}\n" for number in range(24)), encoding="utf-8")
    return path


def stop(*_, **__):
    raise KeyboardInterrupt


def printed_command(error, message):
    """The arguments of the printed command, which follows `message` in the last two lines."""
    first, last = error.splitlines()[-2:]
    assert first == message
    program, *arguments = shlex.split(last)
    assert program == "qacg"
    return arguments


def test_predict_interrupted_prints_a_command_that_resumes(model, source, tmp_path, monkeypatch, capsys):
    output = tmp_path / "out.jsonl"
    command = ["predict", str(model), "--input", str(source), "--output", str(output), "--window", "3"]
    assert main(command) == 0
    expected = output.read_text(encoding="utf-8")
    output.write_text("to be replaced")
    with monkeypatch.context() as patch:
        interrupt_at(patch, Predictor, "predict", 3, error=KeyboardInterrupt)
        assert main([*command, "--over"]) == interruption.INTERRUPTED
    again = printed_command(capsys.readouterr().err, "qacg predict: interrupted; resume with:")
    assert again == ["predict", "--resume", *command[1:]]
    assert output.read_text() == "to be replaced"
    assert main(again) == 0
    assert "; 6 texts of 24 by the interrupted run" in capsys.readouterr().out
    assert output.read_text(encoding="utf-8") == expected


def test_predict_interrupted_before_it_began_prints_itself(model, source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Predictor, "from_pretrained", stop)
    for more in (["--overwrite"], ["--resume"], []):
        command = ["predict", str(model), "--input", str(source), "--output", str(tmp_path / "out.csv"), *more]
        assert main(command) == interruption.INTERRUPTED
        assert printed_command(capsys.readouterr().err, "qacg predict: interrupted; start again with:") == command


def test_predict_of_standard_input_prints_a_note(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Predictor, "from_pretrained", stop)
    main(["predict", str(model), "--input", "-", "--output", str(tmp_path / "out.csv")])
    assert capsys.readouterr().err.splitlines()[-1] == "(with the same texts on standard input)"


def test_suggest_interrupted_prints_itself(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suggest, "_proposals", stop)
    command = ["suggest", "--input", str(source), "--output", str(tmp_path / "sheet.csv")]
    assert main(command) == interruption.INTERRUPTED
    assert printed_command(capsys.readouterr().err, "qacg suggest: interrupted; start again with:") == command


@pytest.mark.full
def test_train_interrupted_prints_a_command_that_resumes(small_data, tmp_path, monkeypatch, capsys):
    command = ["train", "--data", str(small_data), *TRAIN, "--output"]
    assert OPTIONS.checkpoint_every == 7
    assert main([*command, str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        interrupt_at(patch, AspectTrainer, "_save_checkpoint", 3, error=KeyboardInterrupt)
        assert main([*command, str(tmp_path / "my model")]) == interruption.INTERRUPTED
    again = printed_command(capsys.readouterr().err, "qacg train: interrupted; resume with:")
    assert main(again) == 0
    assert "resuming from checkpoint-14" in capsys.readouterr().out
    name = "model.safetensors"
    assert (tmp_path / "my model" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("left", "more", "resumes"),
    [
        ((), [], False),
        (("model.unfinished",), [], True),
        (("model.unfinished",), ["--overwrite"], True),
        (("model",), ["--overwrite"], False),
        (("model/seed-0",), [], True),
        (("model/seed-0",), ["--overwrite"], False),
        (("model/seed-0", "model/seed-1.unfinished"), ["--overwrite"], True),
    ],
)
def test_train_interrupted_resumes_what_is_left(left, more, resumes, small_data, tmp_path, monkeypatch, capsys):
    for name in left:
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr("qacg_models.training.train_seeds", stop)
    command = ["train", "--data", str(small_data), "--output", str(tmp_path / "model"), *more]
    assert main(command) == interruption.INTERRUPTED
    advice = "resume with:" if resumes else "start again with:"
    again = printed_command(capsys.readouterr().err, f"qacg train: interrupted; {advice}")
    assert again == (["train", "--resume", *command[1:]] if resumes else command)


def test_train_interrupted_finds_its_output_in_the_run_file(small_data, tmp_path, monkeypatch, capsys):
    unfinished_path(tmp_path / "model").mkdir()
    (tmp_path / "run.yaml").write_text(f"data: {small_data}\noutput: {tmp_path / 'model'}\n")
    monkeypatch.setattr("qacg_models.training.train_seeds", stop)
    assert main(["train", "--config", str(tmp_path / "run.yaml")]) == interruption.INTERRUPTED
    assert "interrupted; resume with:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "name", "expected"),
    [
        ({}, "/usr/bin/qacg", "qacg"),
        ({}, "/lib/qacg_models/cli/__main__.py", "python -m qacg_models.cli"),
        ({"WORLD_SIZE": "2"}, "__main__.py", "torchrun --nproc-per-node 2 -m qacg_models.cli"),
        (
            {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            "__main__.py",
            "torchrun --nnodes 2 --nproc-per-node 2 -m qacg_models.cli",
        ),
    ],
)
def test_printed_command_starts_the_same_program(variables, name, expected, monkeypatch):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "argv", [name])
    assert shlex.join(interruption._program()) == expected


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


def test_sigterm_ends_a_command_and_prints_it():
    done = subprocess.run([sys.executable, "-c", SENT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (interruption.TERMINATED, "tidied up\n")
    again = printed_command(done.stderr, "qacg suggest: interrupted; start again with:")
    assert again == ["suggest", "--input", "in.txt", "--output", "out.csv"]


def test_main_keeps_the_sigterm_handler_of_its_caller(source, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    assert main(["suggest", "--input", str(source), "--output", str(tmp_path / "sheet.csv")]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
