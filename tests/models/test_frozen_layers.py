"""The option frozen_layers: the first layers and the embeddings of tokens keep the weights of the checkpoint."""

import pytest
import torch
from errors import raises
from interrupted_runs import assert_same_run, interrupted
from qacg_models.data import load_data
from qacg_models.runs.options import TrainingOptions
from qacg_models.training import train
from qacg_models.training.trainer import AspectTrainer
from safetensors.torch import load_file
from untrained import OWN, write_model


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("frozen") / "bert", OWN, kind="bert", layers=3)


@pytest.fixture(scope="module")
def dataset(small_data):
    return load_data(small_data)


def changed(trained, start):
    """The names of the encoder's weights that training has changed."""
    before, after = load_file(start / "model.safetensors"), trained.model.state_dict()
    names = [name for name in before if name.startswith("bert.")]
    return {name.removeprefix("bert.") for name in names if not torch.equal(before[name], after[name])}


SHORT = dict(max_steps=3, batch_size=8, max_length=48, learning_rate=1e-2, eval_every=3)
STANDALONE = dict(context_standalone=True, context_from_layer=2)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("qacg-bert", STANDALONE),
        ("qacg-bert", STANDALONE | {"schedule": "steady"}),
        ("bert", {}),
        ("bert", {"protocol": "released"}),
    ],
    ids=["standalone", "average", "bert", "released"],
)
def test_frozen_layers_keep_their_weights(bert, dataset, tmp_path, model, options):
    given = TrainingOptions(model=model, from_checkpoint=str(bert), frozen_layers=2, **SHORT | options)
    names = changed(train(dataset, tmp_path / "model", given), bert)
    assert names
    assert not any(name.startswith(("embeddings.", "encoder.layer.0.", "encoder.layer.1.")) for name in names)
    assert any(name.startswith("encoder.layer.2.") for name in names)


def test_resumed_training_keeps_frozen_layers(bert, dataset, tmp_path):
    options = TrainingOptions(from_checkpoint=str(bert), frozen_layers=2, checkpoint_every=1, **SHORT, **STANDALONE)
    with interrupted(AspectTrainer, "training_step", 3):
        train(dataset, tmp_path / "model", options)
    resumed = train(dataset, tmp_path / "model", options, resume=True)
    assert_same_run(resumed, train(dataset, tmp_path / "whole", options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            STANDALONE | {"frozen_layers": 3},
            "frozen_layers: expected at most 2, the number of layers below context_from_layer",
        ),
        ({"frozen_layers": 1}, "frozen_layers: expected at most 0, the number of layers below context_from_layer"),
        ({"model": "bert", "frozen_layers": 4}, "frozen_layers: expected at most 3, the number of layers of"),
        ({"frozen_layers": -1}, "frozen_layers: expected at least 0, got -1"),
    ],
)
def test_frozen_layers_out_of_range_raise(bert, dataset, tmp_path, options, message):
    with raises(f"InputError: {message}"):
        train(dataset, tmp_path / "model", TrainingOptions(from_checkpoint=str(bert), **SHORT | options))


def test_frozen_layers_of_random_weights_raise():
    with raises("InputError: frozen_layers: expected 0 for random weights, got 1. Name a checkpoint with --from."):
        TrainingOptions(from_checkpoint="scratch", frozen_layers=1)
