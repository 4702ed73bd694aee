"""`qacg export`: exported files have the outputs of their model, or are not written; the server of the docs."""

import csv
import functools
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from commands import error_of
from docs_pages import commands, snippets
from errors import raises
from full_members import member
from qacg_models import AspectSentiment
from qacg_models.cli import main
from qacg_models.data import file_digest, load_data
from qacg_models.data.options import DataOptions
from qacg_models.data.task import SENTIHOOD
from qacg_models.errors import InputError
from qacg_models.export import onnx_file
from qacg_models.export.check import Check, compare
from qacg_models.export.check_rows import rows_at_hand, rows_of_file, spread, with_longest
from qacg_models.export.formats import FORMATS, ExportFormat
from qacg_models.export.traced import trace
from qacg_models.export.write import export
from qacg_models.inference.trained_model import load_trained
from qacg_models.runs.calibration import Calibration, Fit, write_calibration
from qacg_models.runs.record import RECORD_NAME, RUN_NAME, write_record, write_run_file
from untrained import TEXTS, write_model

COMMAND = commands("how-to/export", "qacg")[0].removeprefix("qacg ")
(SERVER,) = snippets("how-to/export")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder after the command of the docs, with `mine` (a model) and `model.onnx`, and the traced graph."""
    folder, made = tmp_path_factory.mktemp("export"), []
    write_model(folder / "mine", layers=1)
    write_calibration(
        folder / "mine", Calibration(temperatures=(1.7, 0.6, 2.5), fit=Fit("dev", 40, 0.1, 0.02, 10, 10, ()))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("qacg_models.export.write.trace", lambda trained: made.append(trace(trained)) or made[0])
        assert main(shlex.split(COMMAND)) == 0
    return folder, made[0]


@pytest.fixture(scope="module")
def folder(exported):
    return exported[0]


@pytest.fixture(scope="module")
def traced(exported):
    return exported[1]


@pytest.fixture(scope="module")
def trained(folder):
    return load_trained(folder / "mine")


def rows_for(trained, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return rows_of_file(trained, path, None)


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


def test_traced_graph_has_torch_operators_only(traced):
    called = {str(node.target) for node in traced.program.graph.nodes if node.op == "call_function"}
    assert "aten.sigmoid.default" in called, "lambda and the gated map"
    assert all(name.startswith("aten.") or "sym" in name or "<built-in" in name for name in called), called


@pytest.mark.full
def test_torch_export_runs_without_this_package(trained, traced, tmp_path, monkeypatch):
    monkeypatch.setattr("qacg_models.export.write.trace", lambda trained: traced)
    assert export(trained, tmp_path / "model.pt2", rows_for(trained, tmp_path), to="torch-export").passed
    script = (
        "import sys, torch\n"
        "sys.modules['qacg_kernels'] = sys.modules['qacg_models'] = None\n"
        "metadata = {'labels': '', 'max_length': ''}\n"
        "program = torch.export.load(sys.argv[1], extra_files=metadata).module()\n"
        "ids = torch.tensor([[2, 9, 11, 7, 3]])\n"
        "inputs = {'input_ids': ids, 'attention_mask': ids * 0 + 1, 'token_type_ids': ids * 0}\n"
        "logits = program(**inputs, context_ids=torch.tensor([1]))\n"
        "print(metadata['labels'], metadata['max_length'], *logits[0].tolist(), sep='\\n')\n"
    )
    command = [sys.executable, "-c", script, tmp_path / "model.pt2"]
    labels, length, *logits = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert (json.loads(labels), length) == (list(trained.task.labels), "48")
    expected = trained.model(input_ids=torch.tensor([[2, 9, 11, 7, 3]]), context_ids=torch.tensor([1])).logits[0]
    torch.testing.assert_close(torch.tensor([float(one) for one in logits]), expected.detach(), rtol=1e-4, atol=1e-5)


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
}


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory):
    """Returns a model and its graph by name; the slow tracing runs once for all formats."""

    @functools.cache
    def made(name):
        trained = load_trained(write_model(tmp_path_factory.mktemp(name), **CLASSIFIERS[name]))
        return trained, trace(trained)

    return made


@pytest.mark.parametrize(
    ("name", "to"), [member(name, to, id=f"{name}-{to}", fast=False) for name in CLASSIFIERS for to in FORMATS]
)
def test_export_every_classifier_in_every_format(name, to, classifiers, tmp_path, monkeypatch):
    trained, graph = classifiers(name)
    monkeypatch.setattr("qacg_models.export.write.trace", lambda trained: graph)
    rows = rows_for(trained, tmp_path)
    output = tmp_path / f"out{FORMATS[to].suffix}"
    found = export(trained, output, rows, to=to)
    assert trained.model.config._attn_implementation == "fused", "the model is unchanged"
    assert found.passed and output.is_file(), str(found)
    assert found.equal == len(rows) + 1 and found.lengths[1] == trained.record.max_length


def test_export_in_an_unknown_format_raises(trained, tmp_path):
    with pytest.raises(InputError, match=r"to: expected one of .*, got 'bin'"):
        export(trained, tmp_path / "model.bin", rows_for(trained, tmp_path), to="bin")


@pytest.mark.parametrize("blocker", ["file", "link"])
def test_export_into_an_impossible_folder_raises(trained, tmp_path, blocker):
    there = tmp_path / blocker
    if blocker == "file":
        there.touch()
    else:
        there.symlink_to(tmp_path / "missing")
    with raises(f"InputError: output: {there / 'a.onnx'} cannot be written"):
        export(trained, there / "a.onnx", rows_for(trained, tmp_path))


def test_trace_does_not_change_the_model(folder):
    trained = load_trained(folder / "mine")
    model = trained.model.train()
    trace(trained)
    assert (model.training, model.config._attn_implementation) == (True, "fused")


def test_export_of_a_16_bit_model_raises(folder, tmp_path):
    trained = load_trained(folder / "mine")
    trained.model.to(torch.bfloat16)
    with pytest.raises(InputError, match=r"trained: expected a model in float32, got torch.bfloat16"):
        export(trained, tmp_path / "model.onnx", rows_for(trained, tmp_path))


@pytest.mark.full
def test_export_with_different_outputs_is_not_written(folder, traced, trained, tmp_path, monkeypatch, capsys):
    """The check reads the file that was written; here it is valid, but has one wrong weight."""
    output = tmp_path / "model.pt2"
    output.write_bytes(b"what was there")
    state = traced.program.state_dict
    name = next(name for name in state if name.endswith("classifier.bias"))
    before = state[name].clone()
    monkeypatch.setattr("qacg_models.export.write.trace", lambda trained: traced)
    try:
        with torch.no_grad():
            state[name][0] += 1e-3
        flags = ["export", folder / "mine", "--to", "torch-export", "--output", output, "--overwrite"]
        assert main([*map(str, flags), "--check-rows", "5"]) == 1
    finally:
        with torch.no_grad():
            state[name].copy_(before)
    assert output.read_bytes() == b"what was there" and list(tmp_path.iterdir()) == [output]
    captured = capsys.readouterr()
    difference = float(re.search(r"largest difference of a probability: (\S+),", captured.out)[1])
    assert 1e-5 < difference < 1e-3
    assert "not written" in captured.err.splitlines()[-1]


def test_export_check_detects_differences(trained, tmp_path):
    rows = rows_for(trained, tmp_path)
    logits = trained.logits(rows)

    def check(change):
        taken = iter(change(logits.copy()))
        return compare(trained, rows, lambda inputs: np.stack([next(taken) for _ in inputs["input_ids"]]), "a test")

    def change(row, by):
        def changed(found):
            found[row] = by(found[row])
            return found

        return changed

    assert check(change(3, lambda row: row)).passed
    assert not check(change(3, lambda row: np.full(3, np.nan))).passed
    other = check(change(3, lambda row: row[::-1]))
    assert other.equal in (len(rows) - 1, len(rows))
    assert not other.passed
    assert other.largest > 1e-5
    # A label that changes within the tolerance is still a different label.
    assert not Check("a test", rows=2, lengths=(1, 2), largest=1e-7, equal=1).passed


def test_export_check_rows_come_from_file_data_or_sample(trained, folder, tmp_path):
    """Rows of a given file; else dev and test of training if the files are unchanged; else the sample."""
    with (tmp_path / "reviews.csv").open("w", encoding="utf-8", newline="") as handle:
        rows = [(f"{TEXTS[number % 3]} {number}", "food", ("good", "bad")[number % 2]) for number in range(40)]
        csv.writer(handle).writerows([("review", "topic", "verdict"), *rows])
    options = DataOptions(text_column="review", aspect_column="topic", label_column="verdict")
    mine = load_trained(write_model(tmp_path / "mine", layers=1))
    record = replace(mine.record, data_options=options)
    write_run_file(tmp_path / "mine" / RUN_NAME, [tmp_path / "reviews.csv"], options, record.options, [0])
    asked = rows_of_file(replace(mine, record=record), tmp_path / "reviews.csv", None)
    assert len(asked) == 40 * 3 and {row.aspect for row in asked} == set(mine.task.aspects)
    dev = replace(record.data["dev"], sha256=file_digest(tmp_path / "reviews.csv"))
    for known, source in ((record, "sample"), (replace(record, data={"dev": dev}), "dev of")):
        write_record(tmp_path / "mine" / RECORD_NAME, known)
        rows, where = rows_at_hand(load_trained(tmp_path / "mine"), tmp_path / "mine")
        assert source in where
    assert rows == load_data(tmp_path / "reviews.csv", ("dev",), options, task=mine.task).splits["dev"]
    found = compare(mine, with_longest(rows, 48), lambda inputs: np.zeros((len(inputs["input_ids"]), 3)), "a test")
    assert found.rows == len(rows) + 1, "rows with labels beside one without"
    few = spread(asked, 7)
    assert len(few) == 7
    assert few[0] == asked[0]
    assert few == sorted(few, key=asked.index)
    assert spread(few, 9) == few
    tokens = trained.tokenizer(with_longest(few, 48)[-1].sentence)["input_ids"]
    assert len(tokens) >= 48


def test_export_bad_arguments_print_one_line(folder, tmp_path, monkeypatch, capsys):
    there, new = folder / "model.onnx", tmp_path / "a.onnx"
    before = there.read_bytes()
    for flags, expected in (
        ([tmp_path / "model.pt2"], "ends in .onnx"),
        ([there], "--overwrite"),
        ([new, "--check-rows", "0"], "check-rows"),
        ([new, "--check-on", tmp_path / "no.csv"], "No such file"),
    ):
        assert expected in error_of(capsys, "export", folder / "mine", "--output", *flags)
    assert there.read_bytes() == before
    missing = ExportFormat(".onnx", "qacg_models.export.onnx_file", ("onnx", "no_such_runtime"))
    monkeypatch.setitem(FORMATS, "onnx", missing)
    expected = "Run pip install no_such_runtime.\n"
    assert expected in error_of(capsys, "export", folder / "mine", "--output", new)
    assert not list(tmp_path.iterdir())


def test_onnx_file_of_too_large_weights_raises(traced, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "MOST_BYTES", 1000)
    with raises("InputError: Use --to torch-export"):
        onnx_file.write(traced, tmp_path / "model.onnx")
