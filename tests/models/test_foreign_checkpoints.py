"""Checkpoints in every foreign form load into the same model and give the same outputs; maps of tensor names."""

import json
import logging

import checkpoint_tables as tables
import pytest
import torch
import transformers
from errors import raises
from full_members import members
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
)
from qacg_models.checkpoints.fitting import Layout
from qacg_models.errors import CheckpointError
from safetensors.torch import save_file

SIZES = {
    **TINY,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
PUBLISHED = {"pooler": "attention", "context_projection": "head", "lambda_bias": False}


def strong(config_class, model_class, **settings):
    """A model with large weights."""
    return strengthen(model_class(config_class(**{**SIZES, **settings}))).eval()


def plain():
    return strong(PlainBertConfig, BertForSequenceClassification, num_labels=3)


def qacg(**settings):
    settings = {"num_labels": 3, "contexts": 8, **settings}
    return strong(QACGBertConfig, QACGBertForSequenceClassification, **settings)


def write(folder, state, container="safetensors", fields=SIZES, config="bert_config.json"):
    """Writes tensors in a container format, and the configuration beside them."""
    folder.mkdir(exist_ok=True)
    state = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
    if container == "safetensors":
        save_file(state, folder / "model.safetensors")
    elif container == "torch":
        torch.save(state, folder / "pytorch_model.bin")
    elif container == "old torch":
        torch.save(state, folder / "best_checkpoint.bin", _use_new_zipfile_serialization=False)
    elif container == "training state":
        torch.save({"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}}, folder / "last.ckpt")
    else:
        suffix, stem = {"shards": ("safetensors", "model"), "torch shards": ("bin", "pytorch_model")}[container]
        names = sorted(state)
        shard_of = {name: f"{stem}-0000{1 + i % 3}-of-00003.{suffix}" for i, name in enumerate(names)}
        for shard in set(shard_of.values()):
            part = {name: state[name] for name in names if shard_of[name] == shard}
            (save_file if suffix == "safetensors" else torch.save)(part, folder / shard)
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": shard_of}))
    if fields is not None:
        (folder / config).write_text(json.dumps(fields))
    return folder


CONTAINERS = ("safetensors", "shards", "torch", "torch shards", "old torch", "training state")
PLAIN_FORMS = {
    "Hugging Face, with a head": lambda state: state,
    "Hugging Face, base model": lambda state: {k.removeprefix("bert."): t for k, t in state.items()},
    "sentence encoder": lambda state: {
        "0.auto_model." + k.removeprefix("bert."): t for k, t in tables.backbone(state).items()
    },
    "TensorFlow-converted": tables.as_converted,
    "old Hugging Face": lambda state: tables.as_released(state, gate=False),
    "several GPUs": lambda state: {f"module.{k}": t for k, t in state.items()},
}


def same_tensors(model, state):
    found = model.state_dict()
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("form", PLAIN_FORMS)
def test_load_plain_bert_from_every_form(form, tmp_path):
    model = plain()
    foreign = PLAIN_FORMS[form](model.state_dict())
    if form == "sentence encoder":
        loaded = BertModel.from_pretrained(write(tmp_path / "m", foreign))
        same_tensors(loaded, model.bert.state_dict())
        return
    loaded, info = BertForSequenceClassification.from_pretrained(
        write(tmp_path / "m", foreign), output_loading_info=True
    )
    same_tensors(loaded, model.state_dict())
    assert info["report"].clean and loaded.config.num_labels == 3


QACG_FORMS = {
    "released": tables.as_released,
    "released, several GPUs": lambda state: tables.as_released(state, wrapped=True),
    "compact": tables.as_compact,
    "compact and gamma": lambda state: tables.as_released(tables.as_compact(state), gate=False),
    "base model": lambda state: {k.removeprefix("bert."): t for k, t in state.items()},
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_load_from_every_container(container, tmp_path):
    model = qacg()
    folder = write(tmp_path / "m", tables.as_released(model.state_dict()), container)
    same_tensors(QACGBertForSequenceClassification.from_pretrained(folder), model.state_dict())
    (path,) = [path for path in folder.iterdir() if path.name != "bert_config.json" and "-of-" not in path.name]
    same_tensors(QACGBertForSequenceClassification.from_pretrained(path), model.state_dict())


def cg():
    return strong(CGBertConfig, CGBertForSequenceClassification, num_labels=3)


@pytest.mark.parametrize(
    ("build", "form"), [*((qacg, form) for form in QACG_FORMS), (cg, "released"), (cg, "released, several GPUs")]
)
def test_load_context_model_from_every_form(build, form, tmp_path):
    model = build()
    folder = write(tmp_path / "m", QACG_FORMS[form](model.state_dict()))
    loaded, info = type(model).from_pretrained(folder, output_loading_info=True)
    same_tensors(loaded, model.state_dict())
    assert info["report"].clean
    gate = [f"pooler.attention_gate.{n}.{kind}" for n in (0, 3) for kind in ("weight", "bias")]
    unused = sorted(name.partition("bert.")[2] for name in info["report"].unused)
    assert unused == (sorted(gate) if form.startswith("released") else [])
    with torch.no_grad():
        assert torch.equal(loaded(**INPUTS, **CONTEXTS).logits, model(**INPUTS, **CONTEXTS).logits)


@pytest.mark.parametrize("per_head", [False, True])
def test_load_infers_the_variant_from_tensors(per_head, tmp_path):
    model = qacg(**PUBLISHED, lambda_per_head=per_head, contexts=5)
    folder = write(tmp_path / "m", tables.as_compact(model.state_dict()))
    loaded = QACGBertForSequenceClassification.from_pretrained(folder, contexts=list("abcde"))
    same_tensors(loaded, model.state_dict())
    config = loaded.config
    assert (config.pooler, config.context_projection, config.lambda_bias) == ("attention", "head", False)
    assert config.lambda_per_head is per_head and config.contexts == list("abcde")


@pytest.mark.parametrize(
    ("saved", "naming"), [("released", "compact"), ("compact", "released"), ("compact", "compact")]
)
def test_attention_namings_save_and_load(saved, naming, tmp_path):
    model = qacg(attention_naming=saved)
    model.save_pretrained(tmp_path)
    loaded, info = QACGBertForSequenceClassification.from_pretrained(
        tmp_path, attention_naming=naming, output_loading_info=True
    )
    assert info["report"].clean and loaded.config.attention_naming == naming
    if saved == naming:
        same_tensors(loaded, model.state_dict())
    else:
        released, compact = (model, loaded) if saved == "released" else (loaded, model)
        same_tensors(compact, tables.as_compact(released.state_dict()))
    with torch.no_grad():
        assert torch.equal(loaded(**INPUTS, **CONTEXTS).logits, model(**INPUTS, **CONTEXTS).logits)
    # The default is the naming of the configuration.
    assert QACGBertModel.from_pretrained(tmp_path).config.attention_naming == saved


HEADS = {
    "BertModel": ("pooler", []),
    "BertForMaskedLM": ("", ["cls.predictions"]),
    "BertForPreTraining": ("pooler", ["cls.predictions", "cls.seq_relationship"]),
    "BertForTokenClassification": ("", []),
    "BertForMultipleChoice": ("pooler", []),
    "BertForSequenceClassification": ("pooler", []),
    "BertForQuestionAnswering": ("", ["qa_outputs"]),
}


@pytest.mark.parametrize("head", HEADS)
def test_load_backbone_of_every_transformers_head(head, tmp_path):
    torch.manual_seed(0)
    theirs = getattr(transformers, head)(transformers.BertConfig(**SIZES)).eval()
    theirs.save_pretrained(tmp_path)
    options = {"contexts": ["a", "b"], "num_labels": 3, "ignore_mismatched_sizes": True}
    loaded, info = QACGBertForSequenceClassification.from_pretrained(tmp_path, **options, output_loading_info=True)
    report = info["report"]
    pooler, unexpected = HEADS[head]
    state = {name.removeprefix("bert."): tensor for name, tensor in theirs.state_dict().items()}
    for name, tensor in tables.backbone(loaded.state_dict()).items():
        if pooler or "pooler" not in name:
            assert torch.equal(tensor, state[name.removeprefix("bert.")]), name
    assert len(tables.backbone(dict.fromkeys(report.loaded, 0))) == 37 + (2 if pooler else 0)
    assert ("bert.pooler.dense.weight" in report.missing) == (not pooler)
    assert {name.rpartition(".")[0].split(".transform")[0].split(".decoder")[0] for name in report.unexpected} == set(
        unexpected
    )


@pytest.mark.parametrize("ours", [BertForSequenceClassification, BertForQuestionAnswering])
def test_load_transformers_head_gives_equal_outputs(ours, tmp_path):
    torch.manual_seed(0)
    theirs = strengthen(getattr(transformers, ours.__name__)(transformers.BertConfig(**SIZES))).eval()
    theirs.save_pretrained(tmp_path)
    loaded, info = ours.from_pretrained(tmp_path, output_loading_info=True)
    assert info["report"].clean
    with torch.no_grad():
        for mine, expected in zip(loaded(**INPUTS).to_tuple(), theirs(**INPUTS).to_tuple()):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)


def test_load_encoder_of_a_head_with_another_loss(tmp_path):
    theirs = transformers.BertConfig(**SIZES, num_labels=5, problem_type="multi_label_classification")
    transformers.BertForSequenceClassification(theirs).save_pretrained(tmp_path)
    same = BertForSequenceClassification.from_pretrained(tmp_path)
    assert same(**INPUTS).logits.shape == (2, 5)
    with raises("ValueError: problem_type: expected 'single_label_classification' or None, got 'multi_label_classi"):
        same(**INPUTS, labels=torch.tensor([0, 1]))
    new = BertForSequenceClassification.from_pretrained(tmp_path, num_labels=3, ignore_mismatched_sizes=True)
    assert bool(new(**INPUTS, labels=torch.tensor([0, 1])).loss.isfinite())
    one = BertForSequenceClassification.from_pretrained(tmp_path, num_labels=1, ignore_mismatched_sizes=True)
    with raises("ValueError: num_labels: expected at least 2 for a loss, got 1"):
        one(**INPUTS, labels=torch.tensor([0, 0]))


def test_load_maps_converted_names_and_logs_a_report(tmp_path, caplog):
    """Equal names alone would silently load only 29 tensors of a converted model of two layers."""
    model = qacg()
    converted = tables.as_converted(tables.backbone(model.state_dict()))
    folder = write(tmp_path / "m", converted)
    names = model.bert.state_dict().keys()
    assert len(names & converted.keys()) == 29
    with caplog.at_level(logging.WARNING, logger="qacg_models"):
        loaded = QACGBertForSequenceClassification.from_pretrained(folder)
    found = tables.backbone(loaded.state_dict())
    assert len(found) == 39
    for name, tensor in tables.backbone(model.state_dict()).items():
        assert torch.equal(found[name], tensor), name
    (record,) = [record for record in caplog.records if record.name.startswith("qacg_models")]
    for part in ("loaded      39 of 70 tensors", "missing     31", "bert.encoder.context_layer.{0-1}.weight"):
        assert part in record.getMessage()


BACKBONE = tables.backbone_names(layers=2)


@pytest.mark.parametrize("lost", members(BACKBONE, fast=BACKBONE[::4]))
def test_load_without_a_backbone_tensor_raises(lost, tmp_path):
    model = plain()
    state = {name: tensor for name, tensor in model.state_dict().items() if name != lost}
    folder = write(tmp_path / "m", tables.as_converted(state))
    part = "pooler" if "pooler" in lost else "backbone"
    with raises(f"CheckpointError: expected ... {part} tensors ..., without {lost}. Set"):
        BertForSequenceClassification.from_pretrained(folder)
    loaded, info = BertForSequenceClassification.from_pretrained(
        folder, initialize_missing=True, output_loading_info=True
    )
    assert info["report"].missing == [lost]
    rest = {name: tensor for name, tensor in loaded.state_dict().items() if name != lost}
    assert all(torch.equal(rest[name], tensor) for name, tensor in state.items())
    assert bool(loaded.state_dict()[lost].isfinite().all())


def test_load_without_a_context_tensor_raises(tmp_path):
    state = tables.as_released(qacg().state_dict())
    del state["bert.encoder.context_layer.1.bias"]
    folder = write(tmp_path / "m", state)
    with raises("CheckpointError: expected 29 context tensors of ..., got 28"):
        QACGBertForSequenceClassification.from_pretrained(folder)


def test_load_more_layers_than_the_model_raises(tmp_path):
    folder = write(tmp_path / "m", plain().state_dict(), fields={**SIZES, "num_hidden_layers": 1})
    with raises("CheckpointError: expected only encoder tensors that the model has, got bert.encoder.layer.1."):
        BertForSequenceClassification.from_pretrained(folder)
    state = plain().state_dict()
    state["bert.encoder.layer.0.crossattention.self.query.weight"] = torch.zeros(12, 12)
    with raises(
        "CheckpointError: expected only encoder tensors that the model has, got ...crossattention.self.query.weight"
    ):
        BertForSequenceClassification.from_pretrained(write(tmp_path / "n", state))


def test_load_two_names_of_one_tensor_raises(tmp_path):
    state = plain().state_dict()
    state["bert.embeddings.LayerNorm.gamma"] = state["bert.embeddings.LayerNorm.weight"].clone()
    with pytest.raises(CheckpointError, match=r"expected one tensor for .*, got .*LayerNorm\.(gamma|weight) and"):
        BertForSequenceClassification.from_pretrained(write(tmp_path / "m", state))


def test_layout_of_no_bert_or_several_raises():
    with pytest.raises(
        CheckpointError, match=r"expected a BERT .*got 2 other tensors \(the first ones: h\.0\.w, wte\.weight\)"
    ):
        Layout.of_bert(["wte.weight", "h.0.w"])
    with raises("CheckpointError: expected a BERT"):
        Layout.of_bert([])
    twins = [f"{side}.bert.embeddings.word_embeddings.weight" for side in ("query", "passage")]
    with raises("CheckpointError: expected one encoder, got 2, with the prefixes 'passage.bert.', 'query.bert.'"):
        Layout.of_bert(twins)
