"""The start of quasi-attention from the names of aspects, in a checkpoint without contexts."""

import pytest
import torch
from errors import raises
from qacg_models import QACGBertForSequenceClassification
from qacg_models.data import load_data
from qacg_models.data.options import DataOptions
from qacg_models.runs.options import TrainingOptions
from qacg_models.training.model_setup import begin_model, begin_tokenizer
from untrained import OWN, write_model


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A BERT without contexts, for a quick start."""
    return write_model(tmp_path_factory.mktemp("start") / "bert", OWN, kind="bert", layers=3)


def begun(folder, small_data, **options):
    """The model at the start of training, its tokenizer and the lines that were logged."""
    dataset = load_data(small_data, ("train", "dev"), DataOptions())
    resolved = TrainingOptions(
        from_checkpoint=str(folder), max_length=48, attention="fused", learning_rate=1e-3, **options
    ).resolved()
    tokenizer, lines = begin_tokenizer(dataset, resolved), []
    return begin_model(dataset, resolved, tokenizer, lines.append), tokenizer, lines


@pytest.mark.parametrize("layer", [0, 2])
def test_vectors_of_aspects_are_states_of_their_names(bert, small_data, layer):
    model, tokenizer, lines = begun(bert, small_data, context_standalone=True, context_from_layer=layer)
    vectors, states = model.bert.context_embeddings.weight, []
    for name in model.config.contexts:
        ids = torch.tensor([tokenizer(name)["input_ids"]])
        with torch.no_grad():
            hidden = model.bert(ids, context_ids=torch.tensor([0]), output_hidden_states=True).hidden_states[layer]
        states.append(hidden[0, 1:-1])
    norm = torch.cat(states).norm(dim=1).mean()
    expected = torch.stack([one.mean(0) / one.mean(0).norm() * norm for one in states])
    assert torch.allclose(vectors, expected, atol=1e-5)
    assert lines[-1].startswith("aspects: their initial vectors come from their names")


def test_context_layers_add_the_vector_to_the_states(bert, small_data):
    model, _, _ = begun(bert, small_data, context_standalone=True, context_from_layer=1)
    hidden, vector = torch.randn(4, 16), torch.randn(1, 16).expand(4, 16)
    for context_layer in model.bert.encoder.context_layer[1:]:
        mixed = context_layer(torch.cat([vector, hidden], dim=1)) + vector
        assert torch.allclose(mixed, hidden + vector, atol=1e-6)


def test_context_projections_are_copies(bert, small_data):
    model, _, _ = begun(bert, small_data, context_standalone=True, context_from_layer=1)
    for layer in model.bert.encoder.layer[1:]:
        attention = layer.attention.self
        for role in ("query", "key"):
            source, copy = attention.layer(role), attention.layer(f"context_{role}")
            assert torch.equal(source.weight, copy.weight)
            assert torch.equal(source.bias, copy.bias)
            assert source.weight is not copy.weight


def test_factors_of_the_map_are_those_of_the_start(bert, small_data):
    config = begun(bert, small_data, context_standalone=True)[0].config
    assert (config.quasi_scale, config.quasi_bias, config.beta, config.gamma) == (1.0, "-log(keys)", 0.9, 0.9)
    config = begun(bert, small_data, context_standalone=True, quasi_scale=2.0, beta=0.5)[0].config
    assert (config.quasi_scale, config.quasi_bias, config.beta, config.gamma) == (2.0, "-log(keys)", 0.5, 0.9)


@pytest.mark.parametrize("options", [{}, {"context_standalone": True, "context_start": "random"}])
def test_random_start_is_the_published_one(bert, small_data, options):
    model, _, lines = begun(bert, small_data, **options)
    config = model.config
    assert (config.quasi_scale, config.quasi_bias, config.beta, config.gamma) == (1.0, 0.0, 1.0, 1.0)
    assert model.bert.context_embeddings.weight.std() < 0.05
    assert not any("names" in line for line in lines)


def test_checkpoint_with_aspects_keeps_its_own(small_data, tmp_path):
    contexts = list(load_data(small_data, ("train", "dev"), DataOptions()).contexts)
    fields = {"contexts": contexts, "beta": 0.5, "context_standalone": True}
    folder = write_model(tmp_path / "model", OWN, fields=fields)
    stored = QACGBertForSequenceClassification.from_pretrained(folder)
    model, _, lines = begun(folder, small_data, context_standalone=True, context_start="names")
    assert torch.equal(model.bert.context_embeddings.weight, stored.bert.context_embeddings.weight)
    assert (model.config.quasi_scale, model.config.beta) == (1.0, 0.5)
    assert lines[0] == "aspects: their initial vectors come from the checkpoint, not from the names of the aspects"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"from_checkpoint": "minilm", "context_standalone": True}, "names"),
        ({"from_checkpoint": "minilm"}, "random"),
        ({"from_checkpoint": "minilm", "context_standalone": True, "context_projection": "head"}, "random"),
        ({"from_checkpoint": "minilm", "protocol": "released", "context_standalone": True}, "random"),
        ({"from_checkpoint": "scratch"}, "random"),
        ({"from_checkpoint": "minilm", "model": "cg-bert", "context_standalone": True}, None),
        ({"from_checkpoint": "minilm", "model": "bert"}, None),
        ({"from_checkpoint": "minilm", "model": "aspect-bert"}, "names"),
        ({"from_checkpoint": "scratch", "model": "aspect-bert"}, "random"),
    ],
)
def test_default_start_depends_on_the_other_options(options, expected):
    resolved = TrainingOptions(**options).resolved()
    assert resolved.context_start == expected
    assert resolved.resolved() == resolved


def test_start_from_names_excludes_other_options():
    reason = "because training starts from random weights, got 'names'. Name a checkpoint with --from."
    with raises(f"InputError: context_start: expected 'random' {reason}"):
        TrainingOptions(from_checkpoint="scratch", context_start="names")
    with raises("InputError: context_start: expected 'random' for the context projection 'head'"):
        TrainingOptions(context_start="names", context_projection="head")
    reason = "for the model 'bert', got 'names'. Omit context_start, or set model to 'qacg-bert' or 'aspect-bert'."
    with raises(f"InputError: context_start: expected none {reason}"):
        TrainingOptions(model="bert", context_start="names")
    with raises("InputError: context_start: expected one of random, names, got 'zero'."):
        TrainingOptions(context_start="zero")
