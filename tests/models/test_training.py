import json
import math
from dataclasses import replace

import pytest
import torch
from qacg_models import training
from qacg_models.balanced_trainer import BalancedTrainer
from qacg_models.data import Dataset, load_data
from qacg_models.errors import InputError
from qacg_models.inference import load_trained
from qacg_models.metrics import SentiHoodMetrics, majority_probabilities
from qacg_models.options import TrainingOptions
from transformers import TrainingArguments

TINY = TrainingOptions(
    epochs=8,
    batch_size=16,
    learning_rate=3e-3,
    balance=0.0,
    hidden_size=16,
    layers=1,
    heads=2,
    intermediate_size=32,
)


def losses(trained):
    return [loss for _, loss in trained.record["loss"]]


@pytest.fixture(scope="module")
def dataset(small_data) -> Dataset:
    return load_data(small_data)


@pytest.fixture(scope="module")
def folder(dataset, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "model"
    training.train(dataset, output, TINY)
    return output


def test_the_loss_falls(folder):
    curve = losses(load_trained(folder))
    third = len(curve) // 3
    assert sum(curve[-third:]) < 0.8 * sum(curve[:third])


def test_the_folder_is_complete_and_says_how_it_was_made(folder, dataset):
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "training.json"} <= names
    assert [path.name for path in folder.parent.iterdir()] == ["model"]  # no temporary folder is left
    trained = load_trained(folder)
    assert trained.model.config.contexts == list(dataset.contexts)
    assert trained.model.config.id2label == {0: "None", 1: "Positive", 2: "Negative"}
    assert trained.record["options"]["hidden_size"] == 16
    assert trained.record["selected"]["split"] == "dev"
    assert trained.model.config._attn_implementation == "fused"


def test_figures_on_record_come_from_the_files_on_disk(folder, dataset):
    trained = load_trained(folder)
    for split in ("dev", "test"):
        assert trained.evaluate(dataset.splits[split]).to_json() == trained.record["metrics"][split]
        assert trained.majority(dataset.splits[split]).to_json() == trained.record["majority"][split]


def test_the_kept_checkpoint_is_the_best_one_on_dev(folder):
    record = json.loads((folder / "training.json").read_text())
    assert record["metrics"]["dev"]["strict_accuracy"] == record["selected"]["value"]
    assert 0 < record["selected"]["step"] <= record["steps"] == 8 * 240 // 16


def test_an_early_best_checkpoint_is_kept_over_the_last(dataset, tmp_path, monkeypatch):
    values = iter([0.1, 0.7, 0.3])
    monkeypatch.setattr(training, "_judge_logits", lambda rows, prediction: {"strict_accuracy": next(values)})
    saved = {}
    plain = BalancedTrainer._save_checkpoint

    def spy(self, model, *args, **kwargs):
        saved[self.state.global_step] = {name: value.clone() for name, value in model.state_dict().items()}
        return plain(self, model, *args, **kwargs)

    monkeypatch.setattr(BalancedTrainer, "_save_checkpoint", spy)
    trained = training.train(dataset, tmp_path / "model", replace(TINY, epochs=3))
    assert trained.record["selected"] == {
        "split": "dev",
        "metric": "strict_accuracy",
        "step": 30,
        "value": 0.7,
    }
    kept = trained.model.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in saved[30].items())
    assert not all(torch.equal(kept[name], value) for name, value in saved[45].items())


def test_a_seed_gives_the_same_model_again_and_another_seed_another(dataset, tmp_path):
    options = replace(TINY, epochs=1, seed=5)
    first, again, other = (
        training.train(dataset, tmp_path / name, chosen).model.state_dict()
        for name, chosen in (("a", options), ("b", options), ("c", replace(options, seed=6)))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


def few_steps(dataset, path, **changes):
    return losses(training.train(dataset, path, replace(TINY, dropout=0.0, epochs=4, **changes)))


def test_fused_and_eager_train_alike(dataset, tmp_path):
    fused = few_steps(dataset, tmp_path / "fused")
    eager = few_steps(dataset, tmp_path / "eager", attention="eager")
    assert fused == pytest.approx(eager, rel=1e-3)
    assert load_trained(tmp_path / "eager").model.config._attn_implementation == "eager"
    assert load_trained(tmp_path / "eager", "fused").model.config._attn_implementation == "fused"


def test_sentihood_trains_alike_fused_and_eager(sentihood, tmp_path):
    """200 steps of two layers on real sentences: the loss falls, and both implementations agree."""
    whole = load_data(sentihood, ("train", "dev"))
    rows = {"train": whole.splits["train"][:1600], "dev": whole.splits["dev"][:200]}
    few = replace(whole, splits=rows)
    sizes = {"layers": 2, "hidden_size": 32, "batch_size": 32}
    curves = [few_steps(few, tmp_path / name, attention=name, **sizes) for name in ("fused", "eager")]
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)
    assert sum(curves[0][-10:]) < 0.8 * sum(curves[0][:10])


def test_output_is_never_lost(dataset, folder, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="already exists"):
        training.train(dataset, folder, TINY)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("three years")
    with pytest.raises(InputError, match="no model folder"):
        training.train(dataset, other, TINY, overwrite=True)

    before = (folder / "model.safetensors").read_bytes()
    monkeypatch.setattr(training, "_figures", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        training.train(dataset, folder, replace(TINY, epochs=1, seed=9), overwrite=True)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_overwrite_replaces_a_model(dataset, tmp_path):
    for seed in (1, 2):
        training.train(dataset, tmp_path / "m", replace(TINY, epochs=1, seed=seed), overwrite=True)
    assert load_trained(tmp_path / "m").record["options"]["seed"] == 2


def test_long_sentences_are_cut_and_counted(dataset, tmp_path):
    said = []
    training.train(dataset, tmp_path / "m", replace(TINY, epochs=1, max_length=8), say=said.append)
    assert any(line.startswith("cut to 8 tokens: ") for line in said)


def test_a_split_that_is_missing(dataset, tmp_path):
    only = replace(dataset, splits={"train": dataset.splits["train"]})
    with pytest.raises(InputError, match="needs the split 'dev'"):
        training.train(only, tmp_path / "m", TINY)


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
        ({"learning_rate": math.nan}, "learning_rate must be a positive number"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"balance": 1.5}, "balance must be from 0 to 1"),
        ({"heads": 3}, "hidden_size must be a multiple of heads; got 16 and 3"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_options_out_of_range(change, reason):
    with pytest.raises(InputError, match=reason):
        replace(TINY, **change)


@pytest.mark.parametrize("balance,share", [(0.0, 0.1), (0.5, 0.25), (1.0, 0.5)])
def test_balance_draws_rare_classes_more_often(tmp_path, balance, share):
    features = [{"labels": int(index < 400)} for index in range(4000)]
    trainer = BalancedTrainer(
        model=torch.nn.Linear(1, 1),
        args=TrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True),
        train_dataset=features,
        balance=balance,
    )
    drawn = list(trainer._get_train_sampler(features))
    assert len(drawn) == 4000
    # A weight of count ** -balance makes the shares 0.1 ** (1 - balance) to 0.9 ** (1 - balance).
    assert sum(features[index]["labels"] for index in drawn) / 4000 == pytest.approx(share, abs=0.03)
    if balance == 0:
        assert sorted(drawn) == list(range(4000))


def test_metrics_survive_the_record(dataset):
    shares = majority_probabilities([0.8, 0.1, 0.1], len(dataset.splits["test"]))
    result = training.judge(dataset.splits["test"], shares)
    assert SentiHoodMetrics.from_json(json.loads(json.dumps(result.to_json()))) == result
