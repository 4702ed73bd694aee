"""Aspect-BERT against its formulas, in training from a checkpoint, and in conversion."""

import pytest
import torch
from errors import raises
from model_judging import SDPA_GRADIENT_BAND, check_against_formulas, flat
from model_sizes import CONTEXTS, LABELS, TINY, TOKENS
from oracle import classifiers as oracle
from parity import strengthen
from qacg_models import (
    AspectBertConfig,
    AspectBertForSequenceClassification,
    AspectSentiment,
    BertForSequenceClassification,
    PlainBertConfig,
)
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from qacg_models.sentiment.training import train
from qacg_models.sentiment.training.start import begin_model, begin_tokenizer, resolve_options
from untrained import OWN, write_model

SIZES = {**TINY, "contexts": ["price", "safety", "general"], "num_labels": 3}
VARIANTS = {
    "embeddings": {},
    "last layer": {"context_from_layer": 1},
    "attention pooler": {"context_from_layer": 1, "pooler": "attention"},
}
BATCH = TOKENS | CONTEXTS | LABELS


def build(implementation="sdpa", dtype=torch.float32, **settings):
    torch.manual_seed(0)
    config = AspectBertConfig(**{**SIZES, **settings}, attn_implementation=implementation)
    return strengthen(AspectBertForSequenceClassification(config)).eval().to(dtype)


def results(model):
    out = model(**BATCH, output_hidden_states=True)
    # A separate call: with maps requested, sdpa would not run.
    maps = model(**BATCH, output_attentions=True).attentions
    return {"logits": out.logits, "loss": out.loss, "hidden": out.hidden_states, "a": maps}


def truth(weights, config):
    return oracle.outputs(weights, config, BATCH)


@pytest.mark.parametrize("implementation", ["sdpa", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_outputs_and_gradients_match_the_formulas(variant, dtype, implementation):
    def make(implementation, dtype):
        return build(implementation, dtype, **variant)

    check_against_formulas(make, implementation, dtype, results, truth, SDPA_GRADIENT_BAND)


@pytest.mark.parametrize("implementation", ["sdpa", "fused", "eager"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_float64_matches_the_formulas(variant, implementation):
    model = build(implementation, torch.float64, **variant)
    true = flat(truth(model.state_dict(), model.config))
    for name, mine in flat(results(model)).items():
        torch.testing.assert_close(mine, true[name], rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def test_zero_vectors_give_the_outputs_of_bert():
    model = build(context_from_layer=1)
    torch.nn.init.zeros_(model.bert.context_embeddings.weight)
    state = {name: value for name, value in model.state_dict().items() if "context" not in name}
    bert = BertForSequenceClassification(PlainBertConfig(**TINY, num_labels=3)).eval()
    bert.load_state_dict(state)
    assert torch.equal(model(**BATCH).logits, bert(**TOKENS, **LABELS).logits)


def test_gates_are_refused():
    for name in ("output_gates", "output_lambda"):
        with raises("ValueError: output_gates: expected False, got True. Aspect-BERT has no gates."):
            build()(**BATCH, **{name: True})


@pytest.fixture(scope="module")
def trained(small_data, tmp_path_factory):
    """A model that training started from a BERT without contexts, and the lines that were logged."""
    folder, lines = tmp_path_factory.mktemp("aspect"), []
    write_model(folder / "bert", OWN, kind="bert", layers=3)
    dataset = load_data(small_data, ("train", "dev", "test"), DataOptions())
    options = TrainingOptions(
        model="aspect-bert", from_checkpoint=str(folder / "bert"), max_steps=4, max_length=48, batch_size=16, threads=1
    )
    train(dataset, folder / "model", options, say=lines.append)
    return folder / "model", lines


def test_training_adds_the_aspect_in_the_last_layer(trained):
    options = AspectSentiment.from_pretrained(trained[0]).trained.record.options
    assert (options.context_from_layer, options.context_standalone) == (2, True)


def test_training_again_keeps_the_layer(small_data, tmp_path):
    contexts = list(load_data(small_data, ("train", "dev"), DataOptions()).contexts)
    write_model(
        tmp_path / "model", OWN, kind="aspect-bert", layers=4, fields={"contexts": contexts, "context_from_layer": 1}
    )
    options = TrainingOptions(model="aspect-bert", from_checkpoint=str(tmp_path / "model"), max_steps=1, max_length=48)
    dataset = load_data(small_data, ("train", "dev"), DataOptions())
    assert resolve_options(options, dataset).context_from_layer == 1


def test_layers_that_read_the_aspect_can_be_frozen(trained, small_data):
    dataset = load_data(small_data, ("train", "dev"), DataOptions())
    checkpoint = str(trained[0].parent / "bert")
    options = TrainingOptions(
        model="aspect-bert", from_checkpoint=checkpoint, frozen_layers=3, max_steps=1, max_length=48
    )
    resolved = resolve_options(options, dataset)
    model = begin_model(dataset, resolved, begin_tokenizer(dataset, resolved), lambda line: None)
    trained_names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not [name for name in trained_names if ".layer." in name]
    assert "bert.context_embeddings.weight" in trained_names


def test_training_starts_from_names(trained):
    assert "aspects: their initial vectors come from their names" in trained[1]


def test_prediction_shares_lower_layers(trained):
    ask, sizes = AspectSentiment.from_pretrained(trained[0]), []
    layers = ask.trained.model.bert.encoder.layer
    for layer in (layers[1], layers[2]):
        layer.register_forward_hook(lambda module, args, out: sizes.append(args[0].shape[0]))
    (answers,) = ask(["location - 1 is safe"])
    below, last = sizes
    assert last == len(answers) * below
