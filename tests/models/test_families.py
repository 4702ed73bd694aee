"""Encoders of transformers that are read as a BERT: hidden states, models on top, heads, and errors."""

import json

import numpy as np
import pytest
import torch
import transformers
from errors import error_cases, raises
from full_members import members
from model_cases import checkpoint_activations
from parity import random
from qacg_models import (
    AspectBertForSequenceClassification,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    CGBertForSequenceClassification,
    PlainBertConfig,
    QACGBertForSequenceClassification,
    QACGBertModel,
    layerwise_relevance,
)
from qacg_models.conversion import convert
from qacg_models.sentiment.encoding import train_tokenizer
from qacg_models.sentiment.export import EXACT, export
from qacg_models.sentiment.trained_model import in_int8, load_trained
from qacg_models.sentiment.training.start import start_from_names
from safetensors.torch import load_file, save_file
from test_export import rows_for
from untrained import write_model

SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "cls_token_id": 0,
    "eos_token_id": 2,
    "sep_token_id": 2,
}
BIASES = {"norm_bias": True, "attention_bias": True, "mlp_bias": True}
# By name: the model type, and fields in addition to SIZES. Layers 1 and 2 of ModernBERT are local.
FAMILIES = {
    "roberta": ("roberta", {"type_vocab_size": 1}),
    "xlm-roberta": ("xlm-roberta", {"type_vocab_size": 1}),
    "camembert": ("camembert", {"type_vocab_size": 1}),
    "electra": ("electra", {"embedding_size": 8, "type_vocab_size": 2}),
    "electra without projection": ("electra", {"embedding_size": 24}),
    "modernbert": ("modernbert", {"local_attention": 8}),
    "modernbert with biases": ("modernbert", {"local_attention": 8, "hidden_activation": "relu", **BIASES}),
}
DIFFERENT = ("roberta", "electra", "modernbert")
WITHIN = 5  # the largest length without effect of the window
MODELS = {
    "qacg-bert": (QACGBertForSequenceClassification, {"context_projection": "hidden"}),
    "cg-bert": (CGBertForSequenceClassification, {"gate_activation": "tanh"}),
    "aspect-bert": (AspectBertForSequenceClassification, {}),
}
MODERN = {"rotary_theta": 1000.0, "local_rotary_theta": 100.0, "local_attention": 4, "local_layers": [0]}
LAYERS = {"electra": {"embedding_size": 8}, "modernbert": {"modernbert": MODERN}}


def original(family, suffix="Model", **fields):
    """A model of transformers in evaluation mode, all of whose weights are random."""
    kind, own = FAMILIES[family]
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **own, **fields})
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModel{suffix.removeprefix('Model')}").from_config(config).eval()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(0.1 * random(*parameter.shape, seed=number))
    return model


def saved(folder, family, suffix="Model", **fields):
    """The folder with a model of transformers, and the model."""
    model = original(family, suffix, **fields)
    model.save_pretrained(folder)
    return folder, model


def padded(length):
    """A batch of three sequences of at most `length` tokens."""
    mask = torch.arange(length) < torch.tensor([[length], [length * 2 // 3], [2]])
    ids = torch.randint(3, 31, (3, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids.masked_fill(~mask, 1), "attention_mask": mask.long()}


def packed(batch):
    mask = batch["attention_mask"].bool()
    ends = mask.sum(1).cumsum(0)
    return {"input_ids": batch["input_ids"][mask], "cu_seqlens": torch.cat([ends.new_zeros(1), ends])}


@torch.no_grad()
def states(model, batch):
    """The hidden states of every layer, (T, hidden) of all tokens."""
    mask = batch["attention_mask"].bool()
    return [x[mask] for x in model(**batch, output_hidden_states=True).hidden_states]


def near(found, expected, most):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=0, atol=most, check_dtype=False)


@pytest.mark.parametrize("length", [WITHIN, 21])
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_equal_those_of_transformers(family, length, tmp_path):
    folder, model = saved(tmp_path, family)
    batch = padded(length)
    expected = states(model.double(), batch)
    assert all(float(x.abs().max()) > 0.3 for x in expected)
    for dtype, most in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        ours = BertModel.from_pretrained(folder, dtype=dtype)
        for implementation in ("sdpa", "fused", "eager"):
            ours.set_attn_implementation(implementation)
            ours.config.unpad = False
            near(states(ours, batch), expected, most)
            ours.config.unpad = True
            near(states(ours, batch), expected, most)
            with torch.no_grad():
                near(ours(**packed(batch), output_hidden_states=True).hidden_states, expected, most)


def test_old_config_of_modernbert_is_read(tmp_path):
    folder, model = saved(tmp_path, "modernbert")
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    for name in ("rope_parameters", "layer_types"):
        del fields[name]
    fields |= {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3}
    fields["position_embedding_type"] = "sans_pos"
    path.write_text(json.dumps(fields))
    near(states(BertModel.from_pretrained(folder), padded(21)), states(model, padded(21)), 1e-5)


@pytest.mark.parametrize("family", DIFFERENT)
def test_head_of_pretraining_is_left_out(family, tmp_path):
    folder, model = saved(tmp_path, family, "ModelForMaskedLM")
    ours, info = BertModel.from_pretrained(folder, output_loading_info=True)
    near(states(ours, padded(21)), states(model.base_model, padded(21)), 1e-5)
    assert {name.split(".")[0] for name in info["report"].unexpected} <= {
        *("lm_head", "generator_predictions", "generator_lm_head", "head", "decoder")
    }
    assert info["report"].unexpected


@pytest.mark.parametrize("holes", ["left", "between"])
def test_rotary_positions_count_padding_before_tokens(holes, tmp_path):
    folder, model = saved(tmp_path, "modernbert")
    batch = padded(21)
    batch["attention_mask"] = batch["attention_mask"].flip(1)
    if holes == "between":
        batch["attention_mask"][0, 4:12] = 0
    near(states(BertModel.from_pretrained(folder, unpad=True), batch), states(model, batch), 1e-5)


def without_contexts(model):
    """Sets the gates to 0, and Aspect-BERT's contexts to 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lambda_" in name or (isinstance(model, AspectBertForSequenceClassification) and "context_" in name):
                parameter.zero_()
    return model


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("family", DIFFERENT)
def test_context_model_without_context_is_the_encoder(kind, family, tmp_path):
    folder, _ = saved(tmp_path, family)
    model_class, fields = MODELS[kind]
    model = model_class.from_pretrained(folder, contexts=2, context_from_layer=1, **fields)
    expected = states(BertModel.from_pretrained(folder), padded(21))
    contexts = {"context_ids": torch.tensor([0, 1, 0])}
    bert = without_contexts(model).bert
    near(states(lambda **batch: bert(**batch, **contexts), padded(21)), expected, 1e-5)
    with torch.no_grad():
        near(bert(**packed(padded(21)), **contexts, output_hidden_states=True).hidden_states, expected, 1e-5)


# The last of three layers of ModernBERT is local; that of four is not.
@pytest.mark.parametrize("length, layers", [(WITHIN, 4), (21, 4), (21, 3)])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("family", DIFFERENT)
@torch.no_grad()
def test_forms_of_a_batch_give_the_same_answers(kind, family, length, layers, tmp_path):
    folder, _ = saved(tmp_path, family, num_hidden_layers=layers)
    model_class, fields = MODELS[kind]
    settings = {"contexts": 2, "context_from_layer": 1, "context_standalone": True, **fields}
    model = model_class.from_pretrained(folder, **settings)
    for number, (name, parameter) in enumerate(model.named_parameters()):
        if "context" in name or "lambda" in name:
            parameter.copy_(0.3 * random(*parameter.shape, seed=number))
    batch = padded(length)
    questions = {"text_ids": torch.tensor([0, 0, 1, 2, 2]), "context_ids": torch.tensor([0, 1, 1, 0, 1])}
    model.set_attn_implementation("eager")
    repeated = {name: x[questions["text_ids"]] for name, x in batch.items()}
    expected = model(**repeated, context_ids=questions["context_ids"]).logits
    assert float((expected[0] - expected[1]).abs().max()) > 1e-4  # the context matters
    for implementation in model.implementations:
        model.set_attn_implementation(implementation)
        for given in (batch, packed(batch)):
            near([model(**given, **questions).logits], [expected], 1e-5)
            maps = model(**given, **questions, output_attentions=True)
            near([maps.logits], [expected], 1e-5)
    distances = (torch.arange(length) - torch.arange(length)[:, None]).abs()
    outside = maps.attentions[1][0, :, distances > (WITHIN - 1 if family == "modernbert" else length)]
    assert not outside.any()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("family", DIFFERENT)
def test_trained_model_is_saved_and_loaded(kind, family, tmp_path):
    folder, _ = saved(tmp_path / "start", family)
    model_class, fields = MODELS[kind]
    model = model_class.from_pretrained(folder, contexts=2, num_labels=3, **fields).train()
    batch = {**padded(21), "context_ids": torch.tensor([0, 1, 0])}
    checkpoint_activations(model, reentrant=False)
    model(**batch, labels=torch.tensor([2, 0, 1])).loss.backward()
    unused = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert not unused
    torch.optim.SGD(model.parameters(), 0.1).step()
    model.eval().save_pretrained(tmp_path / "trained")
    again, info = model_class.from_pretrained(tmp_path / "trained", output_loading_info=True)
    assert info["report"].clean
    assert torch.equal(again(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("family", members(DIFFERENT, ["modernbert"]))
@torch.no_grad()
def test_compiled_model_is_one_graph(family, tmp_path):
    folder, _ = saved(tmp_path, family)
    model = QACGBertModel.from_pretrained(folder, contexts=2)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for given in (padded(21), {**packed(padded(21)), "max_seqlen": 21}):
        given |= {"context_ids": torch.tensor([0, 1, 0])}
        near([compiled(**given).last_hidden_state], [model(**given).last_hidden_state], 1e-5)


@pytest.mark.parametrize("layers, kind", [("electra", "aspect-bert"), ("modernbert", "qacg-bert")])
def test_exported_graph_equals_the_model(layers, kind, tmp_path):
    trained = load_trained(write_model(tmp_path / "model", kind=kind, fields=LAYERS[layers]))
    found = export(trained, tmp_path / "model.onnx", rows_for(trained))
    assert found.passed and found.limits == EXACT and found.lengths[0] < 8 < found.lengths[1]


@pytest.mark.parametrize("layers", LAYERS)
def test_int8_model_is_near_float32(layers, tmp_path):
    pytest.importorskip("torchao")
    folder = write_model(tmp_path / "model", layers=1, heads=4, fields=LAYERS[layers])
    exact, trained = load_trained(folder), in_int8(load_trained(folder))
    difference = np.abs(exact.probabilities(rows_for(exact)) - trained.probabilities(rows_for(exact)))
    assert 0 < difference.max() < 0.1


@pytest.mark.parametrize("old", [False, True])
@torch.no_grad()
def test_classifier_of_roberta_is_read(old, tmp_path):
    folder, model = saved(tmp_path, "roberta", "ModelForSequenceClassification", num_labels=3)
    if old:  # files of old versions have a pooler that the classifier does not read
        tensors = load_file(folder / "model.safetensors")
        for name in ("weight", "bias"):
            tensors[f"roberta.pooler.dense.{name}"] = 2 * tensors[f"classifier.dense.{name}"]
        save_file(tensors, folder / "model.safetensors")
    ours, info = BertForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    near([ours(**padded(21)).logits], [model(**padded(21)).logits], 1e-5)
    assert sorted(info["report"].unexpected) == [f"roberta.pooler.dense.{name}" for name in ("bias", "weight") if old]


@pytest.mark.parametrize("family", ["roberta", "electra"])
@torch.no_grad()
def test_head_for_answers_is_read(family, tmp_path):
    folder, model = saved(tmp_path, family, "ModelForQuestionAnswering")
    outputs = [one(**padded(21)) for one in (BertForQuestionAnswering.from_pretrained(folder), model)]
    mask = padded(21)["attention_mask"].bool()
    near(*([one.start_logits[mask], one.end_logits[mask]] for one in outputs), 1e-5)


@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_classifier_after_another_head_is_new(family, tmp_path):
    folder, _ = saved(tmp_path, family, "ModelForSequenceClassification", num_labels=3)
    _, info = BertForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    report = info["report"]
    layers = ("bert.pooler.dense", "classifier")
    assert report.missing == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    assert all("classifier" in name or "head" in name for name in report.unexpected)
    assert any(name.startswith("classifier.") for name in report.unexpected)


def test_unsupported_encoder_is_named_before_its_tensors_are_read(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    with raises(
        "CheckpointError: config.json: model_type: expected one of bert, roberta, xlm-roberta, camembert, electra, "
        "modernbert, or an encoder of this package, got 'mpnet'. Use a checkpoint of such an encoder."
    ):
        BertModel.from_pretrained(tmp_path)


@error_cases(
    {
        "CheckpointError: config.json: pad_token_id: expected an integer, got None": (
            "roberta",
            {"pad_token_id": None},
        ),
        "CheckpointError: config.json: rope_parameters: expected rope_type 'default', got 'linear'": (
            "modernbert",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        "CheckpointError: config.json: ...vocab_size": ("roberta", {"vocab_size": "many"}),
        "CheckpointError: config.json: ...": ("roberta", {"id2label": ["a"]}),
        "CheckpointError: config.json: model_type: expected that of the encoder with ElectraModel": (
            "electra",
            {"model_type": None},
        ),
        "CheckpointError: config.json: model_type: expected that of the encoder with RobertaModel": (
            "roberta",
            {"model_type": "bert"},
        ),
        "CheckpointError: config.json: position_embedding_type: expected 'absolute'": (
            "electra",
            {"position_embedding_type": "relative_key"},
        ),
    }
)
def test_bad_config_of_a_family_is_named(error, given, tmp_path):
    family, fields = given
    folder, _ = saved(tmp_path, family)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with raises(error):
        BertModel.from_pretrained(folder)


@error_cases(
    {
        "ValueError: modernbert: expected None or a dict with rotary_theta, ..., got {}": {"modernbert": {}},
        "ValueError: modernbert.rotary_theta: expected at least 1": {"modernbert": MODERN | {"rotary_theta": 0.5}},
        "ValueError: modernbert.local_attention: expected at least 0": {"modernbert": MODERN | {"local_attention": -1}},
        "TypeError: modernbert.local_layers: expected a list": {"modernbert": MODERN | {"local_layers": 1}},
        "ValueError: modernbert.local_layers: expected less than 12": {"modernbert": MODERN | {"local_layers": [12]}},
        "ValueError: modernbert: expected heads of an even size": {"modernbert": MODERN, "hidden_size": 36},
        "ValueError: embedding_size: expected at least 1, got 0": {"embedding_size": 0},
    }
)
def test_invalid_fields_of_layers_are_named(error, given):
    with raises(error):
        PlainBertConfig(**given)


@torch.no_grad()
def test_roberta_converted_for_transformers_is_a_bert(tmp_path):
    folder, model = saved(tmp_path / "roberta", "roberta")
    convert(folder, tmp_path / "bert", to="huggingface")
    near(states(transformers.BertModel.from_pretrained(tmp_path / "bert"), padded(21)), states(model, padded(21)), 1e-5)


@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_layers_that_bert_lacks_are_not_converted(family, tmp_path):
    folder, _ = saved(tmp_path / "start", family)
    with raises("CheckpointError: to: expected 'own' for ..., whose layers are not those of BERT, got 'huggingface'"):
        convert(folder, tmp_path / "new", to="huggingface")
    assert not (tmp_path / "new").exists()


def test_what_modernbert_lacks_raises():
    config = PlainBertConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, modernbert=MODERN)
    model, ids = BertForSequenceClassification(config), torch.tensor([[2, 5, 3]])
    message = "expected 0, 1, 2, ... in every sequence, since positions are rotary, got others. Omit position_ids."
    with raises(f"ValueError: position_ids: {message}"):
        model(ids, position_ids=torch.tensor([[0, 2, 3]]))
    with raises(f"ValueError: position_ids: {message}"):
        model(ids[0], position_ids=torch.tensor([1, 2, 3]), cu_seqlens=torch.tensor([0, 3]))
    with raises("ValueError: model: expected layers of BERT, got those of ModernBERT"):
        layerwise_relevance(model, {"input_ids": ids})


@pytest.mark.parametrize("kind", ["qacg-bert", "aspect-bert"])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_names_have_the_norm_of_the_states_that_read_them(kind, side, tmp_path):
    model_class, fields = MODELS[kind]
    tokenizer = train_tokenizer(["food price"] * 2, vocab_size=100)
    tokenizer.padding_side = side
    folder, _ = saved(tmp_path, "modernbert", vocab_size=100)
    model = model_class.from_pretrained(folder, contexts=["food"], context_from_layer=2, **fields)
    start_from_names(model, tokenizer)
    ids = torch.tensor([tokenizer("food")["input_ids"]])
    read = model.bert(ids, context_ids=torch.tensor([0]), output_hidden_states=True).hidden_states[2][0, 1:-1]
    if kind == "qacg-bert":
        read = model.bert.encoder.layer[2].attention_norm(read)
    torch.testing.assert_close(model.bert.context_embeddings.weight.norm(), read.norm(dim=1).mean())
