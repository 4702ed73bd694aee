"""Training of Aspect-BERT: its start, and the layers that texts share."""

import pytest
from qacg_models import AspectSentiment
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from qacg_models.sentiment.training import train
from qacg_models.sentiment.training.start import begin_model, begin_tokenizer, resolve_options
from untrained import OWN, write_model


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
    assert "aspects: their initial vectors come from their names" in trained[1]


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


def test_prediction_shares_lower_layers(trained):
    ask, sizes = AspectSentiment.from_pretrained(trained[0]), []
    layers = ask.trained.model.bert.encoder.layer
    for layer in (layers[1], layers[2]):
        layer.register_forward_hook(lambda module, args, out: sizes.append(args[0].shape[0]))
    (answers,) = ask(["location - 1 is safe"])
    below, last = sizes
    assert last == len(answers) * below
