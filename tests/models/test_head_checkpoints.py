"""Checkpoints of heads over any encoder: published BertSum, encoders under any prefix, errors."""

import argparse
import json
import sys
import types

import pytest
import torch
import transformers
from encoders import FAMILIES, bert_config, build, roberta_config
from errors import raises
from model_cases import CASES
from qacg_models import (
    BertSumConfig,
    BertSumForExtractiveSummarization,
    QueryAttentionConfig,
    QueryAttentionForQuestionAnswering,
)
from qacg_models.checkpoints.fitting import BERTSUM_ALIASES, Layout
from qacg_models.cli.program import main
from qacg_models.conversion import convert
from qacg_models.errors import CheckpointError
from safetensors.torch import save_file

CASE = CASES["BertSum"]
QUERY = CASES["QueryAttention, linear"]
# Our name, and that of BertSum's checkpoints, from its classes. PreSumm has ext_layer for encoder where a star is.
PUBLISHED = """
bert.embeddings.word_embeddings.weight      bert.model.embeddings.word_embeddings.weight
bert.embeddings.LayerNorm.weight            bert.model.embeddings.LayerNorm.weight
bert.encoder.layer.1.attention.self.key.bias    bert.model.encoder.layer.1.attention.self.key.bias
bert.encoder.layer.0.output.LayerNorm.bias  bert.model.encoder.layer.0.output.LayerNorm.bias
encoder.pos_emb.pe                          encoder.pos_emb.pe*
encoder.transformer_inter.0.self_attn.linear_keys.weight   encoder.transformer_inter.0.self_attn.linear_keys.weight*
encoder.transformer_inter.1.self_attn.final_linear.bias    encoder.transformer_inter.1.self_attn.final_linear.bias*
encoder.transformer_inter.1.feed_forward.w_1.weight        encoder.transformer_inter.1.feed_forward.w_1.weight*
encoder.transformer_inter.1.layer_norm.weight   encoder.transformer_inter.1.layer_norm.weight*
encoder.layer_norm.bias                     encoder.layer_norm.bias*
encoder.wo.weight                           encoder.wo.weight*
"""
ROWS = [line.split() for line in PUBLISHED.strip().split("\n")]


def published(state, successor=False, wrapped=False, gamma=False):
    """Returns a state dict of this package in the form of BertSum or PreSumm, with the pooler that both have."""
    found = {"bert.model.pooler.dense.weight": torch.ones(12, 12), "bert.model.pooler.dense.bias": torch.ones(12)}
    for name, tensor in state.items():
        if name.startswith("bert."):
            theirs = "bert.model." + name[len("bert.") :]
            if gamma:
                theirs = theirs.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta")
        else:
            theirs = ("ext_layer." if successor else "encoder.") + name[len("encoder.") :]
        found[theirs] = tensor
    return {f"module.{name}" if wrapped else name: tensor.clone() for name, tensor in found.items()}


def save(folder, state, config=None, name="model_step_1000.pt", **beside):
    """Writes a file as the published training program does, and a configuration beside it."""
    folder.mkdir(exist_ok=True)
    torch.save({"model": state, **beside}, folder / name)
    if config is not None:
        (folder / "config.json").write_text(config.to_json_string())
    return folder / name


@pytest.mark.parametrize("successor", [False, True])
def test_bertsum_layout_maps_published_names(successor):
    ours = {row[0] for row in ROWS}
    theirs = [name.replace("encoder.", "ext_layer.", 1) if successor and "*" in name else name for _, name in ROWS]
    theirs = [name.rstrip("*") for name in theirs]
    encoder = {name.removeprefix("bert.") for name in ours if name.startswith("bert.")}
    layout = Layout.of_head(theirs, encoder, "bert.", BERTSUM_ALIASES)
    assert [layout.to_ours(name) for name in theirs] == [row[0] for row in ROWS]


@pytest.mark.parametrize("gamma", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("successor", [False, True])
def test_load_published_bertsum_gives_equal_scores(successor, wrapped, gamma, tmp_path):
    model = CASE.build()
    file = save(tmp_path / "m", published(model.state_dict(), successor, wrapped, gamma), model.config)
    loaded, info = BertSumForExtractiveSummarization.from_pretrained(file, output_loading_info=True)
    report = info["report"]
    assert report.clean
    assert len(report.loaded) == len(model.state_dict())
    assert len(report.unused) == 2
    assert torch.equal(loaded(**CASE.inputs).scores, model(**CASE.inputs).scores)


@pytest.mark.parametrize("old", [False, True])
def test_load_bertsum_ignores_options_and_optimizer(old, tmp_path, monkeypatch):
    """The published program pickles its options and its optimizer, whose class exists nowhere else."""
    module = types.ModuleType("their_optimizers")

    class Optimizer:
        def __init__(self, parameters):
            self.inner = torch.optim.Adam(parameters)
            self.history = [1, 2]

        def __setstate__(self, state):
            raise AssertionError("code of the checkpoint ran")

    Optimizer.__module__, Optimizer.__qualname__ = module.__name__, "Optimizer"
    module.Optimizer = Optimizer
    model = CASE.build()
    optimizer = Optimizer(model.parameters())
    CASE.scalar(model).backward()
    optimizer.inner.step()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        content = {
            "model": published(model.state_dict()),
            "opt": argparse.Namespace(encoder="transformer", heads=2),
            "optim": optimizer,
        }
        torch.save(content, tmp_path / "model_step_1000.pt", _use_new_zipfile_serialization=not old)
    (tmp_path / "config.json").write_text(model.config.to_json_string())
    loaded = BertSumForExtractiveSummarization.from_pretrained(tmp_path)
    assert torch.equal(loaded(**CASE.inputs).scores, model(**CASE.inputs).scores)
    assert module.__name__ not in sys.modules


def test_convert_published_bertsum_to_own_folder(tmp_path, capsys):
    model = CASE.build()
    theirs = published(model.state_dict(), successor=True, wrapped=True)
    file = save(tmp_path / "theirs", theirs)
    config = tmp_path / "bertsum.json"
    config.write_text(model.config.to_json_string())
    arguments = ["--model", "BertSumForExtractiveSummarization", "--config", str(config)]
    assert main(["convert", str(file), str(tmp_path / "own"), *arguments]) == 0
    total = len(model.state_dict())
    assert f"loaded      {total} of {total} tensors" in capsys.readouterr().out
    own = BertSumForExtractiveSummarization.from_pretrained(tmp_path / "own")
    assert torch.equal(own(**CASE.inputs).scores, model(**CASE.inputs).scores)


def test_convert_head_to_unsupported_format_raises(tmp_path):
    QUERY.build().save_pretrained(tmp_path / "own")
    with raises("CheckpointError: to: expected 'own' for QueryAttentionForQuestionAnswering, got 'huggingface'"):
        convert(tmp_path / "own", tmp_path / "new", to="huggingface")
    convert(tmp_path / "own", tmp_path / "new", overrides={"no_answer_threshold": 2.0})
    assert QueryAttentionForQuestionAnswering.from_pretrained(tmp_path / "new").config.no_answer_threshold == 2.0


def head_config(encoder):
    return QueryAttentionConfig(encoder=encoder, sep_token_id=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_load_encoder_of_any_family_under_any_prefix(family, tmp_path):
    encoder = build(transformers.AutoModel.from_config, FAMILIES[family]())
    state = encoder.state_dict()
    for i, prefix in enumerate(("", "module.", f"{encoder.base_model_prefix}.", "0.auto_model.")):
        folder = tmp_path / str(i)
        folder.mkdir()
        save_file({prefix + name: t.clone() for name, t in state.items()}, folder / "model.safetensors")
        loaded, info = QueryAttentionForQuestionAnswering.from_pretrained(
            folder, config=head_config(encoder.config), output_loading_info=True
        )
        for name, tensor in loaded.backbone.state_dict().items():
            assert torch.equal(tensor, state[name]), name
        missing = {name.partition(".")[0] for name in info["report"].missing}
        assert missing == {"query_layer", "key_layer", "value_layer", "query_classify_layer", "classify_layer"}
        assert set(info["missing_keys"]) == set(info["report"].missing) and not info["report"].unexpected


def test_load_encoder_ignores_another_head(tmp_path):
    theirs = build(transformers.RobertaForMaskedLM, roberta_config())
    theirs.save_pretrained(tmp_path)
    with raises("CheckpointError: config.json: model_type: expected 'query_attention', got 'roberta'"):
        QueryAttentionForQuestionAnswering.from_pretrained(tmp_path)
    loaded, info = QueryAttentionForQuestionAnswering.from_pretrained(
        tmp_path, config=head_config(theirs.config), output_loading_info=True
    )
    assert all(name.startswith("lm_head.") for name in info["report"].unexpected) and info["report"].unexpected
    for name, tensor in loaded.backbone.state_dict().items():
        assert torch.equal(tensor, theirs.roberta.state_dict()[name]), name


def test_load_head_errors_name_file_and_tensor(tmp_path):
    model = QUERY.build()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.config.save_pretrained(tmp_path)

    def refuse(changes, match):
        changed = {name: t.clone() for name, t in {**state, **changes}.items() if t is not None}
        save_file(changed, tmp_path / "model.safetensors")
        with raises(f"CheckpointError: model.safetensors: {match}"):
            QueryAttentionForQuestionAnswering.from_pretrained(tmp_path)

    layer = "backbone.encoder.layer.1.output.dense"
    refuse({f"{layer}.weight": None}, f"expected ... encoder tensors of QueryAttention..., ...without {layer}.weight")
    refuse({name: None for name in state if name.startswith("backbone.")}, "expected ... encoder tensors of ..., got 0")
    refuse(
        {"key_layer.bias": None},
        "expected 10 head tensors of ..., got 9, without key_layer.bias. Set initialize_missing",
    )
    wide = {"query_classify_layer.weight": torch.ones(4, 12), "query_classify_layer.bias": torch.ones(4)}
    refuse(wide, "query_classify_layer.weight: expected shape (6, 12), got (4, 12). Set ignore_mismatched_sizes")
    refuse({f"{layer}.bias": torch.full((12,), float("nan"))}, f"{layer}.bias: expected finite values")
    refuse({f"{layer}.bias": torch.ones(12, dtype=torch.int64)}, f"{layer}.bias: expected a floating-point dtype, got")
    third = {"backbone.encoder.layer.2.output.dense.bias": torch.ones(12)}
    refuse(third, "expected only encoder tensors that the model has, got ...backbone.encoder.layer.2.output.dense.bias")

    save_file({**state, **wide}, tmp_path / "model.safetensors")
    fresh, info = QueryAttentionForQuestionAnswering.from_pretrained(
        tmp_path, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert sorted(info["report"].missing) == sorted(wide) and fresh.query_classify_layer.weight.shape == (6, 12)


def test_load_head_missing_or_bad_config_raises(tmp_path):
    model = CASE.build()
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    for changes, match in (
        ({"inter_layer": 2}, r"config\.json: inter_layer: expected a field of BertSumConfig, got an unknown name"),
        ({"heads": 5}, r"config\.json: heads: expected a divisor of the encoder.*, got 5"),
    ):
        path.write_text(json.dumps({**fields, **changes}))
        with pytest.raises(CheckpointError, match=match):
            BertSumForExtractiveSummarization.from_pretrained(tmp_path)
    other = tmp_path / "other"
    BertSumConfig(encoder=bert_config(), heads=3, ff_size=20).save_pretrained(other)
    for given in (other, other / "config.json"):
        assert BertSumForExtractiveSummarization.from_pretrained(tmp_path, config=given).config.heads == 3
    path.unlink()
    with raises("CheckpointError: model.safetensors: expected config.json or bert_config.json beside it, got none"):
        BertSumForExtractiveSummarization.from_pretrained(tmp_path)
    with raises("CheckpointError: published: expected config.json or bert_config.json, got neither"):
        (tmp_path / "published").mkdir()
        BertSumForExtractiveSummarization.from_pretrained(tmp_path, config=tmp_path / "published")
    for option, value in (("state_dict", {}), ("weights_only", False), ("variant", "fp16"), ("use_safetensors", True)):
        with raises(f"ValueError: {option}: expected None with the checkpoint"):
            BertSumForExtractiveSummarization.from_pretrained(tmp_path, **{option: value})
