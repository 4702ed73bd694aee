"""bfloat16 inference: probabilities near float32, the choice of `auto`, and the agreement that training measures."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from errors import raises
from model_sizes import SMALL
from qacg_models import AspectSentiment
from qacg_models.cli.program import main
from qacg_models.models.auto import BACKBONES
from qacg_models.sentiment import trained_model, training
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.record import RECORD_NAME, read_record, write_record
from qacg_models.sentiment.trained_model import load_trained
from untrained import TEXTS, write_model


def probabilities(ask):
    return np.array([list(one.probabilities.values()) for text in ask(list(TEXTS)) for one in text])


@pytest.mark.parametrize("kind", list(BACKBONES))
@pytest.mark.parametrize(
    "options",
    [
        {},
        *(
            pytest.param(options, marks=pytest.mark.full)
            for options in ({"attention": "eager"}, {"fields": {"pooler": "attention"}}, {"context_standalone": True})
        ),
    ],
    ids=str,
)
def test_bfloat16_probabilities_are_near_float32(kind, options, tmp_path):
    if kind == "bert" and "context_standalone" in options:
        pytest.skip("BERT has no context id")
    folder = write_model(tmp_path / "model", kind=kind, heads=4, **options)
    expected = probabilities(AspectSentiment.from_pretrained(folder))
    found = probabilities(AspectSentiment.from_pretrained(folder, precision="bfloat16"))
    # The weights are large, so that a rounding of 2^-9 in every layer changes probabilities by up to 0.04.
    assert 0 < np.abs(found - expected).max() < 0.06
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-12)


@pytest.mark.parametrize("kind", ["qacg-bert", "bert"])
def test_pickled_bfloat16_model_predicts_the_same(kind, tmp_path):
    ask = AspectSentiment.from_pretrained(write_model(tmp_path / "model", kind=kind), precision="bfloat16")
    np.testing.assert_array_equal(probabilities(pickle.loads(pickle.dumps(ask))), probabilities(ask))


def test_bfloat16_keeps_embeddings_and_head_in_float32(tmp_path):
    model = load_trained(write_model(tmp_path / "model"), precision="bfloat16").model
    dtypes = {name: {x.dtype for x in part.parameters()} for name, part in model.bert.named_children()}
    assert dtypes.pop("encoder") == dtypes.pop("context_embeddings") == {torch.bfloat16}
    assert dtypes == {"embeddings": {torch.float32}, "pooler": {torch.float32}}
    assert model.classifier.weight.dtype == torch.float32


def test_bfloat16_fold_comes_from_float32_weights(tmp_path):
    folder = write_model(tmp_path / "model")
    exact = AspectSentiment.from_pretrained(folder).trained.model.bert.encoder.layer[0].fold.weight
    found = (
        AspectSentiment.from_pretrained(folder, precision="bfloat16").trained.model.bert.encoder.layer[0].fold.weight
    )
    assert torch.equal(found, exact.bfloat16())


@pytest.mark.parametrize(
    ("agreement", "fast", "expected"),
    [
        *((1.0, True, "bfloat16"), (0.999, True, "bfloat16"), (0.998, True, "float32")),
        *((None, True, "float32"), (1.0, False, "float32")),
    ],
)
def test_auto_depends_on_record_and_processor(agreement, fast, expected, tmp_path, monkeypatch, capsys):
    folder = write_model(tmp_path / "model")
    write_record(folder / RECORD_NAME, replace(read_record(folder), bfloat16_agreement=agreement))
    monkeypatch.setattr(trained_model, "has_fast_bfloat16", lambda: fast)
    assert main(["predict", str(folder), "--text", TEXTS[0]]) == 0
    assert f"1 CPU thread, {expected} (--batch-size" in capsys.readouterr().err


def test_auto_is_float32_off_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(trained_model, "has_fast_bfloat16", lambda: True)
    trained = load_trained(write_model(tmp_path / "model"))
    trained = replace(trained, record=replace(trained.record, bfloat16_agreement=1.0))
    assert trained_model.automatic_precision(trained) == "bfloat16"
    trained.model.to("meta")
    assert trained_model.automatic_precision(trained) == "float32"


def test_bfloat16_cannot_be_saved(tmp_path):
    ask = AspectSentiment.from_pretrained(write_model(tmp_path / "model"), precision="bfloat16")
    with raises("InputError: precision: expected a model in float32 to save, got one in bfloat16. Load it in float32."):
        ask.save_pretrained(tmp_path / "other")


def test_evaluate_states_the_precision(tmp_path, capsys):
    folder, data = write_model(tmp_path / "model"), tmp_path / "data.csv"
    data.write_text("text,aspect,label\ngood food,food,good\nbad food,food,bad\n")
    assert main(["evaluate", str(folder), "--data", str(data), "--precision=bfloat16"]) == 0
    assert "predicted in bfloat16\n" in capsys.readouterr().out


@pytest.mark.parametrize("fast", [True, False])
def test_training_measures_the_agreement_on_dev(dataset, fast, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "has_fast_bfloat16", lambda: fast)
    printed, options = [], TrainingOptions(**SMALL, max_steps=4, batch_size=16, learning_rate=3e-3)
    record = training.train(dataset, tmp_path / "model", options, say=printed.append).record
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    if not fast:
        assert record.bfloat16_agreement is None and "bfloat16" not in card
        return
    dev = dataset.splits["dev"]
    labels = [
        load_trained(tmp_path / "model", precision=p).probabilities(dev).argmax(1) for p in ("float32", "bfloat16")
    ]
    equal = int((labels[0] == labels[1]).sum())
    assert record.bfloat16_agreement == equal / len(dev)
    note = f"bfloat16: same labels as float32 for {equal} of {len(dev)} rows of dev, so --precision auto is "
    assert sum(line.startswith(note) for line in printed) == 1 and note.removeprefix("b") in card
