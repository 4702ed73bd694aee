"""The commands, examples and tables of the documentation."""

import csv
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from docs_pages import DOCS, all_pages, commands, example_module, page, snippets, text_blocks
from encoders import bert_config, build
from qacg_models.cli.program import COMMANDS as PROGRAM, main
from qacg_models.sentiment.encoding import train_tokenizer
from qacg_models.sentiment.options import RECIPES
from qacg_models.sentiment.report.model_page import RUNTIME_ARCHIVE
from qacg_models.sentiment.trained_model import load_trained
from qacg_models.sentiment.training import start
from transformers import BertModel
from untrained import write_model

from qacg_kernels import FusedQuasiAttention

ALL = [(name, command) for name in all_pages() for command in commands(name, "qacg", "torchrun")]
TUTORIAL = commands("tutorials/csv-to-model", "qacg")
SEVERAL = commands("how-to/several-processes", "qacg")
GUIDES = [command for name in ("calibration", "predict", "export") for command in commands(f"how-to/{name}", "qacg")]
RUNTIME = os.environ.get("ONNXRUNTIME_WEB")  # the archive of onnxruntime-web, which pages require

# Pages whose snippets a test runs: here, in test_dataframes.py, test_engines.py, test_export.py and test_docs_site.py.
SNIPPETS = {
    "../README", "../python/README", "how-to/dataframes", "how-to/export", "how-to/many-reviews",
    "how-to/masks-and-packing", "how-to/replace-attention", "reference/models", "tutorials/csv-to-model",
    "tutorials/operator",
}  # fmt: skip


def code(text):
    """The code spans and blocks of a page."""
    blocks = re.findall(r"```bash\n.*?```|(?:^    .*\n)+|`[^`\n]+`", text, re.DOTALL | re.MULTILINE)
    return "\n".join(blocks)


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """The folder in which the tutorial ran, and the answers of its Python snippet."""
    folder = tmp_path_factory.mktemp("tutorial")
    header, *sample = csv.reader(text_blocks("tutorials/csv-to-model")[0].splitlines())
    answers = {aspect: label for _, aspect, label in sample}
    rows = [[f"{sample[0][0]} in week {week}", *pair] for week in range(30) for pair in answers.items()]
    for name, lines in (("reviews", [header, *rows]), ("new", [[header[0]], *([row[0]] for row in rows[::3])])):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle).writerows(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        if RUNTIME:
            (folder / RUNTIME_ARCHIVE).symlink_to(Path(RUNTIME).absolute())
        # The sentences are simple, so a short patience is enough.
        patch.setattr(start, "is_installed", lambda name: False)
        patch.setitem(RECIPES, "scratch", replace(RECIPES["scratch"], patience=1, batch_size=16))
        pages = [command for command in TUTORIAL if "--to page" in command]
        assert [command for command in GUIDES if "--to page" in command] == pages, "it runs once"
        for command in [*TUTORIAL, *(command for command in GUIDES if command not in pages), *SEVERAL]:
            if command in pages and not RUNTIME:
                continue
            assert main(shlex.split(command)[1:]) == 0, command
        exec(snippets("tutorials/csv-to-model")[1], found := {})
    return folder, found["answers"]


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
def test_tutorial_and_guides_write_what_they_show(typed):
    folder, answers = typed
    assert [(answer.aspect, answer.text) for answer in answers] == [
        ("food", "the bill was a shock"),
        ("price", "the bill was a shock"),
    ]
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as handle:
        found = list(csv.DictReader(handle))
    assert len(found) == 30 * 3
    assert {(one["aspect"], one["label"]) for one in found} == {("food", "good"), ("price", "bad"), ("service", "none")}
    names = ["page/index.html", "mine.onnx", *(["mine.html"] if RUNTIME else []), "mine/calibration.json"]
    names += ["summary.html", "report/index.html", "marked.csv", "all.csv"]
    assert [name for name in names if not (folder / name).is_file()] == []
    mine, again = ((folder / name / "model.safetensors").read_bytes() for name in ("mine", "again"))
    assert mine == again, "--config trains the same weights again"
    assert {path.name for path in (folder / "three").iterdir()} == {"seed-0", "seed-1", "seed-2", "run.yaml"}


def test_german_example_trains_from_scratch(tmp_path, monkeypatch):
    """Without a checkpoint the command trains a vocabulary, which keeps umlauts."""
    header, *rows = text_blocks("how-to/train")[0].splitlines()
    (command,) = (line for line in commands("how-to/train", "qacg") if "bewertungen" in line or "deutsch" in line)
    weeks = [row.replace("laut", f"laut in Woche {week}") for week in range(20) for row in rows]
    (tmp_path / "bewertungen.csv").write_text("\n".join([header, *weeks]) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    small = ["--max-steps=2", "--set=layers=1", "--set=hidden_size=16", "--set=heads=2", "--set=intermediate_size=16"]
    arguments = shlex.split(command.removesuffix(" --from CHECKPOINT"))[1:]
    assert main([*arguments, *small]) == 0
    trained = load_trained(tmp_path / "deutsch")
    assert trained.task.labels[0] == "keins"
    assert set(trained.task.aspects) == {"Frühstück", "Zimmer", "Service"}
    text = "das frühstück war großartig"
    assert trained.tokenizer.decode(trained.tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_tutorials_script_writes_reviews_of_the_shown_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(snippets("tutorials/csv-to-model")[0], {})
    header, *rows = csv.reader((tmp_path / "reviews.csv").read_text(encoding="utf-8").splitlines())
    assert header == text_blocks("tutorials/csv-to-model")[0].splitlines()[0].split(",")
    assert len({tuple(row) for row in rows}) == len(rows) == 3 * 216
    assert {(aspect, label) for _, aspect, label in rows} == {
        (aspect, label) for aspect in ("food", "price", "service") for label in ("good", "bad", "none")
    }


def test_snippets_of_every_page_are_run():
    assert {name for name in all_pages() if snippets(name)} == SNIPPETS


def test_readme_snippet_calls_the_operator():
    (snippet,) = snippets("../README")
    exec(snippet, found := {})
    assert found["out"].shape == (2, 12, 128, 64) and found["kc"].grad.shape == (2, 12, 128, 64)
    assert found["attention"].shape == (2, 12, 1, 128)


def test_readme_has_at_most_700_words():
    assert len(page("../README").split()) <= 700


def test_replace_guide_loads_the_released_weights():
    released = example_module("patch_released")
    state = FusedQuasiAttention(hidden_size=768, num_heads=12, naming="compact").state_dict()
    found = {"model": released.Model(layers=3), "old": SimpleNamespace(state_dict=lambda: state)}
    for snippet in snippets("how-to/replace-attention"):
        exec(snippet, found)
    assert found["replaced"] == 3
    assert torch.equal(found["attention"].state_dict()["query.weight"], state["Wq.weight"])


def test_models_readme_snippet_predicts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "mine", layers=1)
    exec(snippets("../python/README")[0], found := {})
    assert [answer.aspect for answer in found["answers"]] == ["food", "price"]


@pytest.mark.parametrize("name", all_pages())
def test_every_make_target_of_a_page_exists(name):
    targets = set(re.findall(r"^([a-z0-9-]+):", (DOCS.parent / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = set(re.findall(r"(?:^|`| )make (?:-k )?([a-z][a-z0-9-]+)(?=[` \n])", code(page(name)), re.MULTILINE))
    assert used <= targets


@pytest.mark.parametrize("name", all_pages())
def test_every_module_command_of_a_page_has_its_flags(name):
    for module, arguments in re.findall(r"python -m ((?:qacg_kernels|benchmarks)[.\w]*)([^`\n]*)", page(name)):
        place = DOCS.parent.joinpath(*module.split("."))
        files = [*place.glob("*.py")] if place.is_dir() else [place.with_suffix(".py")]
        files.append(DOCS.parent / "benchmarks" / "command.py")  # options that benchmarks share
        source = "".join(path.read_text(encoding="utf-8") for path in files)
        flags = re.findall(r"(--[a-z-]+)", arguments.partition(" #")[0])
        assert [flag for flag in flags if f'"{flag}"' not in source] == [], module


PAGE = page("reference/models")
SECTION = PAGE.partition("\n## Differences")[0]
EXAMPLES = dict(re.findall(r"```python\n# (\d+)\.[^\n]*\n(.*?)```", SECTION, re.DOTALL))
TEXT = "The river rose in the night. A bridge was closed at once. Schools stay open today."


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """The variables after each example, by its number."""
    tokenizer = train_tokenizer([TEXT] * 3, vocab_size=200)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 256}
    bert = build(BertModel, bert_config(**sizes))
    folder = tmp_path_factory.mktemp("bert")
    bert.save_pretrained(folder)
    batch = tokenizer(["the river rose", "a bridge was closed at once"], padding=True, return_tensors="pt")
    torch.manual_seed(0)
    found = {"torch": torch, "text": TEXT, "tokenizer": tokenizer, "bert": bert, "folder": str(folder), "batch": batch}
    after = {}
    for number, example in EXAMPLES.items():
        statements = [line for line in example.splitlines() if line.strip()]
        assert len(statements) <= 3, (number, statements)
        exec(example, found)
        after[number] = dict(found)
    return after


def test_docs_example_of_qacg_bert(names):
    model, found = names["1"]["model"], names["2"]
    assert names["1"]["logits"].shape == (2, 3) and model.config.contexts == ["price", "safety"]
    words = found["bert"].embeddings.word_embeddings.weight
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, words)
    padding = found["batch"]["attention_mask"] == 0
    assert found["sensitivity"].shape == padding.shape and bool(padding.any())
    assert not found["sensitivity"][padding].any() and bool((found["sensitivity"][~padding] > 0).all())
    highest = names["1"]["logits"].max(-1).values
    torch.testing.assert_close(found["relevance"].sum(-1), highest, rtol=1e-3, atol=1e-3)


def test_docs_examples_of_other_classifiers(names):
    assert names["3"]["logits"].shape == (2, 3) and names["3"]["model"].config.gate_activation == "tanh"
    loss = names["4"]["loss"]
    loss.backward()
    assert bool(loss.isfinite()) and names["4"]["model"].classifier.weight.shape == (3, 16)
    assert names["9"]["logits"].shape == (3, 3)


@pytest.mark.parametrize("number", ["5", "8"])
def test_docs_example_of_answers(names, number):
    answer = names[number]["answer"]
    assert answer.text and TEXT[answer.start : answer.end] == answer.text


def test_docs_example_of_cached_attention(names):
    assert names["6"]["step"].shape == (2, 1, 512) and names["6"]["cache"]["self_keys"].shape == (2, 8, 1, 64)


def test_docs_example_of_bertsum(names):
    summary = names["7"]["summary"]
    assert len(summary.sentences) == 2 and all(s in TEXT for s in summary.sentences)
    assert all(0 < score < 1 for score in summary.scores) and summary.unread == 0
