"""The commands of the documentation, typed as they stand there."""

import csv
import json
import shlex

import pytest
from docs_pages import DOCS, commands, page, snippets, text_blocks
from qacg_models.cli import main
from qacg_models.cli.program import COMMANDS as PROGRAM
from qacg_models.inference.trained_model import load_trained
from qacg_models.runs.recipes import RECIPES
from qacg_models.training import resolve_options

PAGES = sorted(str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md"))
ALL = [(name, command) for name in PAGES for command in commands(name, "qacg", "torchrun")]
TUTORIAL = commands("tutorials/csv-to-model", "qacg")
SEVERAL = commands("how-to/several-processes", "qacg")


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """The folder in which the tutorial was typed, and the answers of its Python snippet."""
    folder = tmp_path_factory.mktemp("tutorial")
    header, *sample = csv.reader(text_blocks("tutorials/csv-to-model")[0].splitlines())
    answers = {aspect: label for _, aspect, label in sample}
    rows = [[f"{sample[0][0]} in week {week}", *pair] for week in range(30) for pair in answers.items()]
    for name, lines in (("reviews", [header, *rows]), ("new", [[header[0]], *([row[0]] for row in rows[::3])])):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle).writerows(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # All sentences are alike, so that a model learns them long before the patience for real ones ends.
        patch.setattr(resolve_options, "is_installed", lambda name: False)
        patch.setitem(RECIPES["scratch"], "patience", 1)
        patch.setitem(RECIPES["scratch"], "batch_size", 16)
        for command in [*TUTORIAL, *SEVERAL]:
            assert main(shlex.split(command)[1:]) == 0, command
        exec(snippets("tutorials/csv-to-model")[0], found := {})
    return folder, found["answers"]


def test_tutorial_has_a_command_for_every_step():
    steps = [shlex.split(command)[1] for command in TUTORIAL]
    assert steps == ["check", "train", "evaluate", "predict", "predict", "predict", "analyze", "export", "train"]


@pytest.mark.parametrize(("name", "command"), ALL, ids=[f"{name}-{i}" for i, (name, _) in enumerate(ALL)])
def test_command_has_known_flags_only(name, command, monkeypatch):
    arguments = shlex.split(command)
    if arguments[0] == "torchrun":
        assert arguments[:5] == ["torchrun", "--nproc-per-node", "2", "-m", "qacg_models.cli"]
        arguments = arguments[4:]
    given = []
    monkeypatch.setattr(PROGRAM[arguments[1]], "run", lambda parsed: given.append(parsed.command) or 0)
    assert main(arguments[1:]) == 0
    assert given == [arguments[1]]


@pytest.mark.full
def test_tutorial_predicts_every_aspect_of_every_text(typed):
    folder, answers = typed
    assert [(answer.aspect, answer.text) for answer in answers] == [
        ("food", "the bill was a shock"),
        ("price", "the bill was a shock"),
    ]
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as handle:
        found = list(csv.DictReader(handle))
    assert len(found) == 30 * 3
    assert {(one["aspect"], one["label"]) for one in found} == {("food", "good"), ("price", "bad"), ("service", "none")}


@pytest.mark.full
@pytest.mark.parametrize("path", ["page/index.html", "model.onnx", "mine/calibration.json", "summary.html"])
def test_tutorial_writes_file(typed, path):
    assert (typed[0] / path).is_file()


@pytest.mark.full
def test_config_trains_the_same_weights_again(typed):
    mine, again = ((typed[0] / name / "model.safetensors").read_bytes() for name in ("mine", "again"))
    assert mine == again


@pytest.mark.full
def test_seeds_command_writes_summary_and_records(typed):
    summary = json.loads((typed[0] / "three" / "seeds.json").read_text(encoding="utf-8"))
    assert summary["seeds"] == [0, 1, 2]
    assert sum(len(path.read_text().splitlines()) for path in (typed[0] / "rows").iterdir()) == 3


def test_german_example_trains_from_scratch(tmp_path, monkeypatch):
    """Its checkpoint is not on this machine; without one the same command learns a vocabulary, which keeps umlauts."""
    header, *rows = text_blocks("how-to/train")[0].splitlines()
    (command,) = (line for line in commands("how-to/train", "qacg") if "bewertungen" in line or "deutsch" in line)
    weeks = [row.replace("laut", f"laut in Woche {week}") for week in range(20) for row in rows]
    (tmp_path / "bewertungen.csv").write_text("\n".join([header, *weeks]) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    small = ["--max-steps=2", "--layers=1", "--hidden-size=16", "--heads=2", "--intermediate-size=16"]
    arguments = shlex.split(command.removesuffix(" --from CHECKPOINT"))[1:]
    assert main([*arguments, *small]) == 0
    trained = load_trained(tmp_path / "deutsch")
    assert trained.task.labels[0] == "keins"
    assert set(trained.task.aspects) == {"Frühstück", "Zimmer", "Service"}
    text = "das frühstück war großartig"
    assert trained.tokenizer.decode(trained.tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_every_page_is_in_the_table_of_contents():
    entries = {line.strip() for line in page("index").splitlines()}
    assert [name for name in PAGES if name != "index" and name not in entries] == []
