"""The exported file in other runtimes, each installed into a folder of its own, and the page's tokenizer in Node."""

import json
import random
import shutil
import subprocess

import pytest
from check_runtimes import RUNTIMES, last_line, outcome
from docs_pages import page
from qacg_models import AspectSentiment
from qacg_models.cli.program import main
from qacg_models.sentiment.export import export, with_longest
from qacg_models.sentiment.report.model_page import tokenizer_facts, tokenizer_module
from qacg_models.sentiment.trained_model import load_trained
from test_export import rows_for
from test_model_page import TOKENIZERS, odd_texts
from untrained import write_model

pytestmark = pytest.mark.full


def installed(name):
    """Installs a runtime, or skips the test."""
    try:
        RUNTIMES[name].install()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"{name} cannot be installed: {last_line(error)}")
    return RUNTIMES[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runtimes")
    write_model(folder / "mine", fields={"quasi_bias": "-log(keys)"})
    return folder


@pytest.mark.parametrize("name", ["ONNX Runtime, oldest", "ONNX Runtime, newest", "OpenVINO, f32", "tract"])
def test_exported_file_equals_the_model_in(name, folder):
    runtime, trained = installed(name), load_trained(folder / "mine")
    rows = with_longest(rows_for(trained) * 4, trained.record.max_length)
    if not (folder / "model.onnx").exists():
        export(trained, folder / "model.onnx", rows)
    found = outcome(runtime, trained, folder / "model.onnx", rows)
    assert found.check.passed, str(found.check)
    assert found.batches < 1e-5


def in_node(folder, script):
    if not shutil.which("node"):
        pytest.skip("node is not on the path")
    (folder / "run.mjs").write_text(script, encoding="utf-8")
    return subprocess.run(["node", "run.mjs"], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", TOKENIZERS)
def test_page_tokenizer_in_node_equals_the_models(name, tmp_path):
    """Every 61st character in five contexts, and random texts of any characters, in both programs."""
    tokenizer, draw = TOKENIZERS[name](tmp_path), random.Random(0)
    codes = [*range(0xD800), *range(0xE000, 0x110000)]
    sample = [chr(code) for code in codes[draw.randrange(61) :: 61]]
    texts = [form.format(one) for form in ("{}", "a{}b", " {} ", "é{}", "{}\u0301") for one in sample]
    texts += ["".join(map(chr, draw.choices(codes, k=draw.randint(1, 30)))) for _ in range(5000)] + odd_texts()
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    (tmp_path / "tokenizer.mjs").write_text(
        tokenizer_module({"tokenizer": tokenizer_facts(tokenizer)}), encoding="utf-8"
    )
    script = """
        import { readFileSync } from "node:fs";
        import { tokenizer } from "./tokenizer.mjs";
        const texts = JSON.parse(readFileSync("texts.json", "utf-8"));
        console.log(JSON.stringify(texts.map((text) => tokenizer.encode(text, null, 512).ids)));"""
    found = json.loads(in_node(tmp_path, script))
    expected = tokenizer(texts, truncation=True, max_length=512)["input_ids"]
    assert [ascii(text) for text, one, other in zip(texts, found, expected, strict=True) if one != other] == []


def test_docs_node_program_answers_like_the_model(folder, tmp_path, monkeypatch):
    runtime = installed("ONNX Runtime for Node")
    program = page("how-to/export").split("```js\n")[1].split("```")[0]
    (tmp_path / "node_modules").symlink_to(runtime.folder / "node_modules")
    for kind, suffix in (("onnx", "model.onnx"), ("tokenizer", "tokenizer.mjs")):
        assert main(["export", str(folder / "mine"), "--to", kind, "--output", str(tmp_path / suffix)]) == 0
    expected = AspectSentiment.from_pretrained(folder / "mine")("the bill was a shock", aspects=["food"])[0]
    label, probability = in_node(tmp_path, program).split()
    assert label == expected.label
    assert abs(float(probability) - expected.probabilities[label]) < 1e-5
