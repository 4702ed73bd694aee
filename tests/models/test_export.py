"""`qacg export`: exported files have the outputs of their model, or are not written; the server of the docs."""

import csv
import json
import re
import shlex
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from commands import error_of
from docs_pages import commands, snippets
from errors import raises
from full_members import member
from qacg_models import AspectSentiment
from qacg_models.cli.commands import export as command
from qacg_models.cli.program import main
from qacg_models.sentiment import export as exporting
from qacg_models.sentiment.calibration import Calibration, Fit, write_calibration
from qacg_models.sentiment.dataset import file_digest, load_data
from qacg_models.sentiment.example import SENTIHOOD, Example
from qacg_models.sentiment.export import (
    EXACT,
    INT8,
    Check,
    compare,
    export,
    rows_at_hand,
    trace,
    with_longest,
)
from qacg_models.sentiment.options import DataOptions
from qacg_models.sentiment.record import RUN_NAME, write_run_file
from qacg_models.sentiment.trained_model import load_trained
from untrained import TEXTS, write_model

COMMAND = commands("how-to/export", "qacg")[0].removeprefix("qacg ")
(SERVER,) = snippets("how-to/export")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder after the command of the docs, with `mine` (a model) and `model.onnx`."""
    folder = tmp_path_factory.mktemp("export")
    write_model(folder / "mine", layers=1)
    write_calibration(
        folder / "mine", Calibration(temperatures=(1.7, 0.6, 2.5), fit=Fit("dev", 40, 0.1, 0.02, 10, 10, ()))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(shlex.split(COMMAND)) == 0
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    return load_trained(folder / "mine")


def rows_for(trained):
    """Examples of TEXTS with every context of the model."""
    split = trained.task.split_context
    return [Example("", text, context, *split(context), None, 1) for text in TEXTS for context in trained.contexts]


@pytest.mark.full
def test_docs_server_example_answers_like_the_model(folder, monkeypatch):
    monkeypatch.chdir(folder)
    exec(SERVER, found := {})
    ask = AspectSentiment.from_pretrained("mine")
    expected = [ask(text, aspects=[aspect])[0] for text, aspect in found["questions"]]
    assert found["answers"] == [one.label for one in expected]
    probabilities = [list(one.probabilities.values()) for one in expected]
    np.testing.assert_allclose(found["probabilities"], probabilities, rtol=0, atol=1e-5)


def test_onnx_file_has_inputs_outputs_and_metadata(folder, trained):
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    inputs = {one.name: (one.type, one.shape) for one in session.get_inputs()}
    tokens = ("tensor(int64)", ["batch", "length"])
    assert inputs == dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), tokens) | {
        "context_ids": ("tensor(int64)", ["batch"])
    }
    assert [(one.name, one.shape) for one in session.get_outputs()] == [("logits", ["batch", 3])]
    metadata = session.get_modelmeta().custom_metadata_map
    assert {name: json.loads(value) for name, value in metadata.items()} == {
        "labels": list(trained.task.labels),
        "contexts": list(trained.contexts),
        "context_standalone": True,
        "max_length": 48,
        "pad_token_id": 0,
        "temperatures": [1.7, 0.6, 2.5],
    }
    assert [path.name for path in folder.iterdir()] == ["mine", "model.onnx"], "no temporary file remains"


# All classifiers, as trained from scratch and with the fields of published encoders.
CLASSIFIERS = {
    "qacg-bert": {"kind": "qacg-bert", "context_standalone": False, "fields": {"pooler": "attention"}},
    "qacg-bert-heads": {"kind": "qacg-bert", "fields": {"context_projection": "head", "lambda_per_head": True}},
    "qacg-bert-unpadded": {"kind": "qacg-bert", "fields": {"unpad": True, "lambda_bias": True, "hidden_act": "relu"}},
    "qacg-bert-bias": {"kind": "qacg-bert", "fields": {"quasi_bias": "-log(keys)", "context_standalone": True}},
    "qacg-bert-unpadded-bias": {"kind": "qacg-bert", "fields": {"unpad": True, "quasi_bias": "-log(keys)"}},
    "cg-bert": {"kind": "cg-bert"},
    "cg-bert-tanh": {"kind": "cg-bert", "fields": {"gate_activation": "tanh", "pooler": "attention"}},
    "aspect-bert": {"kind": "aspect-bert", "fields": {"context_from_layer": 1}},
    "bert": {"kind": "bert"},
    "bert-unpadded": {"kind": "bert", "fields": {"pooler": "attention", "unpad": True, "type_vocab_size": 2}},
    "targets": {"kind": "qacg-bert", "task": SENTIHOOD},
    "pairs-of-modernbert": {"kind": "bert", "tokenizer": "modernbert"},
    "texts-of-xlm-roberta": {"kind": "aspect-bert", "tokenizer": "xlm-roberta"},
}


@pytest.mark.parametrize("name", [member(name, id=name, fast=False) for name in CLASSIFIERS])
def test_export_of_every_classifier_passes_its_check(name, tmp_path):
    trained = load_trained(write_model(tmp_path / "model", **CLASSIFIERS[name]))
    rows = rows_for(trained)
    found = export(trained, tmp_path / "out.onnx", rows)
    assert trained.model.config._attn_implementation == "fused", "the model is unchanged"
    assert found.passed and (tmp_path / "out.onnx").is_file(), str(found)
    assert found.equal == len(rows) + 1 and found.lengths[1] == trained.record.max_length
    graph = onnx.load(tmp_path / "out.onnx").graph
    has_types = "token_type_ids" in {given.name for given in graph.input}
    assert has_types == ("tokenizer" not in CLASSIFIERS[name])
    operators = {node.op_type for node in graph.node}
    assert "ReduceLogSumExp" not in operators, "MNN ignores its axes"


def test_exported_file_can_be_quantized_by_onnxruntime(folder, tmp_path):
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(folder / "model.onnx", tmp_path / "quantized.onnx")
    assert any(node.op_type == "MatMulInteger" for node in onnx.load(tmp_path / "quantized.onnx").graph.node)


def test_export_of_a_16_bit_model_raises(folder, tmp_path):
    trained = load_trained(folder / "mine")
    trained.model.to(torch.bfloat16)
    with raises("InputError: trained: expected a model in float32, got torch.bfloat16"):
        export(trained, tmp_path / "model.onnx", rows_for(trained))


@pytest.mark.full
def test_export_with_different_outputs_is_not_written(folder, tmp_path, monkeypatch, capsys):
    """The check reads the file that was written; here it is valid, but has one wrong weight."""
    output = tmp_path / "model.onnx"
    output.write_bytes(b"what was there")
    wrong = load_trained(folder / "mine")
    wrong.model.classifier.bias.data[0] += 1e-3
    monkeypatch.setattr(exporting, "trace", lambda trained: trace(wrong))
    assert main([*map(str, ["export", folder / "mine", "--output", output, "--overwrite"])]) == 1
    assert output.read_bytes() == b"what was there" and list(tmp_path.iterdir()) == [output]
    captured = capsys.readouterr()
    difference = float(re.search(r"largest difference of a probability: (\S+),", captured.out)[1])
    assert 1e-5 < difference < 1e-3
    assert "not written" in captured.err.splitlines()[-1]


def test_export_check_detects_differences(trained):
    rows = rows_for(trained)

    def check(change):
        logits = trained.logits(rows)
        logits[3] = change(logits[3])
        taken = iter(logits)
        return compare(trained, rows, lambda inputs: np.stack([next(taken) for _ in inputs["input_ids"]]))

    assert check(lambda row: row).passed
    assert not check(lambda row: np.full(3, np.nan)).passed
    other = check(lambda row: row[::-1])
    assert other.equal in (len(rows) - 1, len(rows)) and other.largest > 1e-5 and not other.passed


@pytest.mark.parametrize(
    ("limits", "largest", "equal", "passed"),
    [
        (EXACT, 1e-7, 99, False),  # a label that changes within the tolerance is still a different label
        (INT8, 0.45, 97, True),
        (INT8, 0.45, 96, False),
        (INT8, 0.51, 97, False),
        (INT8, float("nan"), 97, False),
    ],
)
def test_export_check_has_limits(limits, largest, equal, passed):
    assert Check(rows=100, lengths=(1, 2), largest=largest, equal=equal, limits=limits).passed == passed


def test_export_check_rows_come_from_data_or_sample(trained, tmp_path):
    """Dev and test of training if the files are unchanged; else the sample."""
    with (tmp_path / "reviews.csv").open("w", encoding="utf-8", newline="") as handle:
        rows = [(f"{TEXTS[number % 3]} {number}", "food", ("good", "bad")[number % 2]) for number in range(40)]
        csv.writer(handle).writerows([("review", "topic", "verdict"), *rows])
    options = DataOptions(text_column="review", aspect_column="topic", label_column="verdict")
    mine = load_trained(write_model(tmp_path / "mine", layers=1))
    record = replace(mine.record, data_options=options)
    write_run_file(tmp_path / "mine" / RUN_NAME, [tmp_path / "reviews.csv"], options, record.options, [0])
    dev = replace(record.data["dev"], sha256=file_digest(tmp_path / "reviews.csv"))
    for known, source in ((record, "sample"), (replace(record, data={"dev": dev}), "dev of")):
        mine = replace(mine, record=known)
        rows, where = rows_at_hand(mine, tmp_path / "mine", 500)
        assert source in where
    assert rows == [*load_data(tmp_path / "reviews.csv", ("dev",), options, task=mine.task).splits["dev"]]
    found = compare(mine, with_longest(rows, 48), lambda inputs: np.zeros((len(inputs["input_ids"]), 3)))
    assert found.rows == len(rows) + 1, "rows with labels beside one without"
    few, _ = rows_at_hand(mine, tmp_path / "mine", 3)
    assert few == [rows[place * len(rows) // 3] for place in range(3)]
    tokens = trained.tokenizer(with_longest(few, 48)[-1].sentence)["input_ids"]
    assert len(tokens) >= 48


def test_export_bad_arguments_print_one_line(folder, tmp_path, monkeypatch, capsys):
    there, new = folder / "model.onnx", tmp_path / "a.onnx"
    before = there.read_bytes()
    for output, expected in (
        (tmp_path / "model.bin", "ends in .onnx"),
        (there, "--overwrite"),
        (there / "a.onnx", f"output: {there / 'a.onnx'} cannot be written"),
    ):
        assert expected in error_of(capsys, "export", folder / "mine", "--output", output)
    assert there.read_bytes() == before
    monkeypatch.setattr(command, "PACKAGES", ("onnx", "no_such_runtime"))
    expected = "Run pip install no_such_runtime.\n"
    assert expected in error_of(capsys, "export", folder / "mine", "--output", new)
    tokenizer = ["export", folder / "mine", "--to", "tokenizer", "--output", tmp_path / "tokenizer.mjs"]
    assert "int8: expected --to onnx or page with --int8, got tokenizer." in error_of(capsys, *tokenizer, "--int8")
    assert not list(tmp_path.iterdir())


def test_export_of_too_large_weights_raises(trained, monkeypatch):
    monkeypatch.setattr(exporting, "MOST_BYTES", 1000)
    with raises("InputError: got 0.00 GiB. Train a smaller model"):
        trace(trained)
