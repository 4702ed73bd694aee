"""The end of `qacg demo`: a prompt in a terminal, and commands to try next."""

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from qacg_models.data import DataOptions, load_data, sample_reviews
from qacg_models.demos import prompt
from qacg_models.demos.sample_demo import next_commands
from qacg_models.inference.predictor import AspectPrediction, Predictor
from qacg_models.inference.trained_model import load_trained
from untrained import OWN, write_model

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from qacg_models.demos.prompt import answer_sentences, is_terminal
from qacg_models.inference.predictor import Predictor
if not is_terminal():
    sys.exit(3)
answer_sentences(Predictor.from_pretrained(sys.argv[1]), "Type.")
print("after")
"""
SECONDS = 120


@pytest.fixture(scope="module")
def ask(model):
    return Predictor(load_trained(model))


class Terminal:
    """A process in a terminal of its own, and what it has printed."""

    def __init__(self, *arguments):
        self.end, child = pty.openpty()
        path = os.pathsep.join([str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, arguments)],
            stdin=child,
            stdout=child,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        os.close(child)
        self.text = ""

    def wait_for(self, text):
        """Reads until `text` is there; returns what came since the last call."""
        until, start = time.monotonic() + SECONDS, len(self.text)
        while text not in self.text[start:]:
            assert time.monotonic() < until, f"expected {text!r}, got {self.text!r}"
            if select.select([self.end], [], [], 1)[0]:
                try:
                    self.text += os.read(self.end, 4096).decode()
                except OSError:  # the process has ended
                    break
        assert text in self.text[start:], self.text
        return self.text[start:]

    def type(self, text):
        os.write(self.end, text.encode())


@pytest.fixture
def terminal(model):
    opened = Terminal(model)
    yield opened
    opened.process.kill()
    opened.process.wait()
    os.close(opened.end)


def test_prompt_answers_a_typed_sentence(terminal):
    terminal.wait_for(prompt.PROMPT)
    terminal.type("the food is cheap\n")
    answers = terminal.wait_for(f"\n{prompt.PROMPT}").partition("cheap")[2]
    assert all(aspect in answers for aspect in OWN.aspects)
    terminal.type("\n")
    terminal.wait_for("after")
    assert terminal.process.wait(SECONDS) == 0


def test_prompt_ends_at_ctrl_d(terminal):
    terminal.wait_for(prompt.PROMPT)
    terminal.type("\x04")
    terminal.wait_for("after")
    assert terminal.process.wait(SECONDS) == 0


# Not in a terminal: whether Ctrl-C reaches a process depends on how the tests were started.
@pytest.mark.parametrize("end", [KeyboardInterrupt, EOFError])
def test_prompt_ends_at_the_end_of_input(ask, capsys, end):
    def read(shown):
        raise end

    prompt.answer_sentences(ask, "Type.", read)
    assert capsys.readouterr().out == "\nType. An empty line ends the prompt.\n\n"


def test_pipe_is_no_terminal(model):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model)],
        check=False,
        input="the food is cheap\n",
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")])},
    )
    assert (done.returncode, done.stdout) == (3, "")


def test_prompt_continues_after_an_unusable_text(ask, capsys):
    lines = iter(["\ud800", "the food is cheap", ""])
    prompt.answer_sentences(ask, "Type.", lambda shown: next(lines))
    message, *answers = capsys.readouterr().out.partition("expected text that UTF-8 can encode")[1:]
    assert message
    assert all(aspect in answers[0] for aspect in OWN.aspects)


def answer(aspect, label, share):
    return AspectPrediction("", "", aspect, label, {label: share, "other": 1 - share})


def test_answer_lines_name_opinions_and_other_aspects():
    answers = [answer("food", "none", 0.9), answer("price", "bad", 0.62), answer("service", "good", 0.987)]
    assert prompt.answer_lines(answers, "none") == [
        "  price    bad 62%  (uncertain)",
        "  service  good 99%",
        "  no opinion on food",
    ]


def test_next_commands_work_when_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "python")]))
    write_model(Path("model"), task=load_data(sample_reviews(), options=DataOptions(wide=True)).task)
    outputs = [subprocess.check_output(line, shell=True, text=True) for line in next_commands(Path("model"))]
    assert "p(" in outputs[0]
    assert (tmp_path / "model-page" / "index.html").is_file()
    assert "strict accuracy" in outputs[2]


def test_program_is_the_script_of_the_environment(tmp_path, monkeypatch):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "qacg").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", "/bin")
    assert prompt.program() == ".venv/bin/qacg"
    monkeypatch.setenv("PATH", str(tmp_path / ".venv" / "bin"))
    assert prompt.program() == "qacg"


def test_program_without_a_script_is_the_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my python"))
    monkeypatch.setenv("PYTHONPATH", ".:python")
    assert shlex.split(prompt.program()) == [
        "PYTHONPATH=.:python",
        str(tmp_path / "my python"),
        "-m",
        "qacg_models.cli",
    ]
