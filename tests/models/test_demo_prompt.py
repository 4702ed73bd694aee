"""The end of `qacg demo`: a prompt in a terminal, and commands to try next."""

import os
import subprocess
from pathlib import Path

import pytest
from qacg_models.sentiment import demo as prompt
from qacg_models.sentiment.dataset import load_data, sample_reviews
from qacg_models.sentiment.demo import next_commands
from qacg_models.sentiment.options import DataOptions
from qacg_models.sentiment.predictor import Predictor
from qacg_models.sentiment.trained_model import load_trained
from untrained import OWN, write_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ask(model):
    return Predictor(load_trained(model))


@pytest.mark.parametrize("end", [KeyboardInterrupt, EOFError])
def test_prompt_ends_at_the_end_of_input(ask, capsys, end):
    def read(shown):
        raise end

    prompt.answer_sentences(ask, "Type.", read)
    assert capsys.readouterr().out == "\nType. An empty line ends the prompt.\n\n"


def test_prompt_continues_after_an_unusable_text(ask, capsys):
    lines = iter(["\ud800", "the food is cheap", ""])
    prompt.answer_sentences(ask, "Type.", lambda shown: next(lines))
    message, *answers = capsys.readouterr().out.partition("expected text that UTF-8 can encode")[1:]
    assert message
    assert all(aspect in answers[0] for aspect in OWN.aspects)


def test_next_commands_work_when_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "python")]))
    write_model(Path("model"), task=load_data(sample_reviews(), options=DataOptions(wide=True)).task)
    outputs = [subprocess.check_output(line, shell=True, text=True) for line in next_commands(Path("model"))]
    assert "p(" in outputs[0]
    assert (tmp_path / "model-page" / "index.html").is_file()
    assert "strict accuracy" in outputs[2]
