"""The README's way from a CSV to an explained model, typed as it stands there."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
from qacg_models.cli import main
from qacg_models.cli.program import COMMANDS as COMMANDS_OF_THE_PROGRAM
from qacg_models.inference.trained_model import load_trained
from qacg_models.runs.recipes import RECIPES
from qacg_models.training import start

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "python" / "README.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## From your own CSV")[2].partition("\n## ")[0]
LINES = re.findall(r"^    ((?:qacg|torchrun) [^#\n]*)", SECTION, re.MULTILINE)
COMMANDS = [part.strip() for line in LINES if "CHECKPOINT" not in line for part in line.split("&&")]


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """The folder in which every command of one process was typed, and what each one printed."""
    folder = tmp_path_factory.mktemp("readme")
    sample = list(csv.reader(re.findall(r"^    ((?:review,|\").*)$", SECTION, re.MULTILINE)))
    header, answers = sample[0], {aspect: label for _, aspect, label in sample[1:]}
    rows = [[f"{sample[1][0]} in week {week}", *pair] for week in range(30) for pair in answers.items()]
    for name, lines in (("reviews", [header, *rows]), ("new", [[header[0]], *([row[0]] for row in rows[::3])])):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle).writerows(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # Sentences that all say the same are learnt long before the patience for real ones ends, few at a time.
        patch.setattr(start, "is_installed", lambda name: False)
        patch.setitem(RECIPES["scratch"], "patience", 1)
        patch.setitem(RECIPES["scratch"], "batch_size", 16)
        for command in COMMANDS:
            program, *arguments = shlex.split(command)
            if program == "qacg":
                assert main(arguments) == 0, command
        exec(re.search(r"```python\n(.*?)```", SECTION, re.DOTALL)[1], found := {})
    return folder, found["answers"]


def test_there_is_a_line_for_every_step():
    assert [shlex.split(command)[1] for command in COMMANDS if command.startswith("qacg")] == [
        *("train", "evaluate", "predict", "predict", "analyze", "train", "train", "table", "info"),
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_known(command, monkeypatch):
    """Every run reads the lines as the program does; the whole matrix types them."""
    _, name, *_ = arguments = shlex.split(command[command.index("qacg") :].replace("qacg_models.cli", "qacg"))
    given = []
    monkeypatch.setattr(COMMANDS_OF_THE_PROGRAM[name], "run", lambda parsed: given.append(parsed) or 0)
    assert main(arguments[1:]) == 0
    assert [parsed.command for parsed in given] == [name]


@pytest.mark.full
def test_every_line_leaves_what_it_says(typed):
    folder, answers = typed
    assert [(answer.aspect, answer.text) for answer in answers] == [
        ("food", "the bill was a shock"),
        ("price", "the bill was a shock"),
    ]
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as handle:
        found = list(csv.DictReader(handle))
    # Every sentence says the same of an aspect, which even so small a model learns.
    assert len(found) == 30 * 3
    assert {(one["aspect"], one["label"]) for one in found} == {("food", "good"), ("price", "bad"), ("service", "none")}
    assert (folder / "page" / "index.html").is_file()
    assert (folder / "mine" / "model.safetensors").read_bytes() == (folder / "again" / "model.safetensors").read_bytes()
    summary = json.loads((folder / "three" / "seeds.json").read_text(encoding="utf-8"))
    assert summary["seeds"] == [0, 1, 2]
    assert sum(len(path.read_text().splitlines()) for path in (folder / "rows").iterdir()) == 3


@pytest.mark.full
@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("torchrun")])
def test_lines_for_several_processes_are_understood(command, typed, monkeypatch, capsys):
    """test_distributed.py and test_predict.py run such lines; here their flags are taken and nothing is done."""
    arguments = shlex.split(command)
    assert arguments[:5] == ["torchrun", "--nproc-per-node", "2", "-m", "qacg_models.cli"]
    monkeypatch.chdir(typed[0])
    done = []
    monkeypatch.setattr("qacg_models.training.train_seeds", lambda *given, **_: done.append(given) or stop())
    predict = "qacg_models.inference.bulk_prediction.BulkPrediction.write"
    monkeypatch.setattr(predict, lambda *given, **_: done.append(given) or 0)
    assert main(arguments[5:]) in (0, 130)
    assert len(done) == 1


def stop():
    raise KeyboardInterrupt


def test_the_german_example_from_scratch(tmp_path, monkeypatch):
    """Its checkpoint has to be fetched; without one the same command learns a vocabulary, which keeps umlauts."""
    header, *rows = re.search(r"^((?:    .*,.*\n){4})\n    qacg train --data bewertungen", SECTION, re.MULTILINE)[
        1
    ].split("\n")[:4]
    command = re.search(r"^    qacg (train --data bewertungen.*) --from CHECKPOINT$", SECTION, re.MULTILINE)[1]
    weeks = [row.strip().replace("laut", f"laut in Woche {week}") for week in range(20) for row in rows]
    (tmp_path / "bewertungen.csv").write_text("\n".join([header.strip(), *weeks]) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    small = ["--max-steps=2", "--layers=1", "--hidden-size=16", "--heads=2", "--intermediate-size=16"]
    assert main([*shlex.split(command), *small]) == 0
    trained = load_trained(tmp_path / "deutsch")
    assert trained.task.labels[0] == "keins" and trained.task.has_absent
    assert set(trained.task.aspects) == {"Frühstück", "Zimmer", "Service"}
    text = "das frühstück war großartig"
    assert trained.tokenizer.decode(trained.tokenizer(text, add_special_tokens=False)["input_ids"]) == text
