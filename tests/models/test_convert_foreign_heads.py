"""Conversion of heads: complete states for strict loading, published names, and flags in error messages."""

import argparse
import re

import checkpoint_tables as tables
import pytest
import torch
import transformers
from model_judging import strengthen
from qacg_models import (
    BertForQuestionAnswering,
    PlainBertConfig,
    QACGBertConfig,
    QACGBertForSequenceClassification,
    QueryAttentionConfig,
    QueryAttentionForQuestionAnswering,
)
from qacg_models.checkpoints.permissions import Permissions, asking_for
from qacg_models.cli.commands import convert as command
from qacg_models.conversion.convert import convert
from qacg_models.runs.recipes import RECIPES
from safetensors.torch import load_file, save_file
from test_convert import INPUTS, SIZES, conversion_error

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
    """Loaded from a foreign file, saved, converted there and back, and to Hugging Face, which has none."""
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
    error = conversion_error(capsys, tmp_path / "own", tmp_path / "released", "--to", "released")
    assert POOLER[0] in error and "expected finite values" in error


def test_convert_errors_name_the_flag(tmp_path, capsys):
    QACGBertForSequenceClassification(QACGBertConfig(**SIZES, contexts=["a", "b", "c"])).save_pretrained(tmp_path / "m")
    error = conversion_error(capsys, tmp_path / "m", tmp_path / "new", "--set", 'contexts=["a", "b"]')
    assert "or fewer with truncate_contexts (qacg convert --truncate-contexts)" in error
    error = conversion_error(capsys, tmp_path / "m", tmp_path / "new", "--set", "num_labels=7")
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
    choices = {name: RECIPES["scratch"][name] for name in ("pooler", "context_projection", "context_standalone")}
    for name, settings in (("default", choices), ("cls", {**choices, "pooler": "cls"})):
        config = QACGBertConfig(**SIZES, contexts=["a", "b"], **settings)
        QACGBertForSequenceClassification(config).save_pretrained(tmp_path / name)
    error = conversion_error(capsys, tmp_path / "default", tmp_path / "new", "--to", "released")
    assert "pooler: expected 'cls' as in the released code, got 'attention'" in error
    error = conversion_error(capsys, tmp_path / "default", tmp_path / "new", "--to", "huggingface")
    assert "bert.pooler.attention_gate" in error or "--drop-unplaced" in error
    assert convert(tmp_path / "default", tmp_path / "tf", to="tensorflow-names").model == (
        "QACGBertForSequenceClassification"
    )
    convert(tmp_path / "cls", tmp_path / "released", to="released")
    state = torch.load(tmp_path / "released" / "checkpoint.bin", weights_only=True)
    assert state["bert.context_embeddings.weight"].shape[0] == 8
