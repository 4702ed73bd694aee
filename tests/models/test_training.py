"""Training on the sample: the saved model, its record, and the effect of each option."""

import enum
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from errors import raises
from model_sizes import SMALL
from qacg_models import training
from qacg_models.data import DataOptions, load_data
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import load_trained
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.record import Selection
from qacg_models.training import run
from qacg_models.training.callbacks import EvaluationMetrics
from qacg_models.training.sampling import EpochSampler
from qacg_models.training.trainer import AspectTrainer

TINY = TrainingOptions(**SMALL, epochs=4, batch_size=16, learning_rate=3e-3, balance=0.0)


def losses(trained):
    return [loss for _, loss in trained.record.loss]


@pytest.fixture(scope="module")
def folder(dataset, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "model"
    training.train(dataset, output, TINY)
    return output


def test_training_loss_falls(folder):
    curve = losses(load_trained(folder))
    third = len(curve) // 3
    assert sum(curve[-third:]) < 0.8 * sum(curve[:third])


def test_trained_folder_is_complete(folder, dataset):
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "training.json", "run.yaml"} <= names
    assert [path.name for path in folder.parent.iterdir()] == ["model"]  # no temporary folder is left
    trained = load_trained(folder)
    assert trained.model.config.contexts == list(dataset.contexts)
    assert trained.model.config.id2label == {0: "None", 1: "Positive", 2: "Negative"}
    assert trained.record.options.hidden_size == 16
    assert trained.record.selected.split == "dev"
    assert trained.model.config._attn_implementation == "fused"


def test_recorded_metrics_equal_those_of_the_saved_model(folder, dataset):
    trained = load_trained(folder)
    for split in ("dev", "test"):
        assert trained.evaluate(dataset.splits[split]).to_json() == trained.record.metrics[split].to_json()
        assert trained.majority(dataset.splits[split]).to_json() == trained.record.majority[split].to_json()


def test_selected_checkpoint_is_the_best_on_dev(folder):
    record = json.loads((folder / "training.json").read_text())
    assert record["metrics"]["dev"]["strict_accuracy"] == record["selected"]["value"]
    assert 0 < record["selected"]["step"] <= record["steps"] == 4 * 240 // 16


@pytest.mark.full
def test_train_keeps_an_early_best_checkpoint(dataset, tmp_path, monkeypatch):
    values = iter([0.1, 0.7, 0.3])
    watched = {"predicted_classes": 3, "most_predicted": 0}
    monkeypatch.setattr(EvaluationMetrics, "__call__", lambda *_: {"strict_accuracy": next(values), **watched})
    saved = {}
    plain = AspectTrainer._determine_best_metric

    def spy(self, metrics, trial):
        saved[self.state.global_step] = {name: value.clone() for name, value in self.model.state_dict().items()}
        return plain(self, metrics, trial)

    monkeypatch.setattr(AspectTrainer, "_determine_best_metric", spy)
    trained = training.train(dataset, tmp_path / "model", replace(TINY, max_steps=12, eval_every=4))
    assert trained.record.selected == Selection("dev", "strict_accuracy", 8, 0.7)
    kept = trained.model.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in saved[8].items())
    assert not all(torch.equal(kept[name], value) for name, value in saved[12].items())


@pytest.mark.full
def test_train_seed_determines_the_model(dataset, tmp_path):
    options = replace(TINY, max_steps=4, seed=5)
    first, again, other = (
        training.train(dataset, tmp_path / name, chosen).model.state_dict()
        for name, chosen in (("a", options), ("b", options), ("c", replace(options, seed=6)))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


def few_steps(dataset, path, **changes):
    return losses(training.train(dataset, path, replace(TINY, dropout=0.0, **{"epochs": 2} | changes)))


@pytest.mark.full
def test_train_fused_equals_eager(dataset, tmp_path):
    fused = few_steps(dataset, tmp_path / "fused")
    eager = few_steps(dataset, tmp_path / "eager", attention="eager")
    assert fused == pytest.approx(eager, rel=1e-3)
    assert load_trained(tmp_path / "eager").model.config._attn_implementation == "eager"
    assert load_trained(tmp_path / "eager", "fused").model.config._attn_implementation == "fused"


@pytest.mark.full
def test_train_fused_equals_eager_on_sentihood(sentihood, tmp_path):
    """Two layers are trained for 48 steps on real sentences: the loss falls, and both implementations agree."""
    whole = load_data(sentihood, ("train", "dev"))
    rows = {"train": whole.splits["train"][:384], "dev": whole.splits["dev"][:40]}
    few = replace(whole, splits=rows)
    sizes = {"layers": 2, "epochs": 4, "batch_size": 32, "learning_rate": 5e-3}
    curves = [few_steps(few, tmp_path / name, attention=name, **sizes) for name in ("fused", "eager")]
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)
    assert sum(curves[0][-10:]) < 0.85 * sum(curves[0][:10])


def test_train_never_loses_an_existing_output(dataset, folder, tmp_path, monkeypatch):
    folder = shutil.copytree(folder, tmp_path / "model")
    with raises("InputError: which exists"):
        training.train(dataset, folder, TINY)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("text")
    with raises("InputError: output: expected a new or empty folder, or a model folder to replace, got"):
        training.train(dataset, other, TINY, overwrite=True)

    before = (folder / "model.safetensors").read_bytes()
    unfinished = folder.with_name("model.unfinished")
    monkeypatch.setattr(run, "_metrics", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    printed, short = [], replace(TINY, max_steps=5, seed=9)
    with raises("OSError: disk full"):
        training.train(dataset, folder, short, overwrite=True, say=printed.append)
    assert (folder / "model.safetensors").read_bytes() == before
    # The last step is a checkpoint, so the training is not lost either.
    assert printed[-1] == f"{unfinished} still has checkpoint-5; --resume continues from it"
    monkeypatch.undo()
    trained = training.train(dataset, folder, short, overwrite=True, resume=True)
    assert (trained.record.options.seed, load_trained(folder).record.options.seed) == (9, 9)
    assert not unfinished.exists()


def test_long_sentences_are_truncated_and_counted(dataset, tmp_path):
    printed = []
    training.train(dataset, tmp_path / "m", replace(TINY, max_steps=2, max_length=8), say=printed.append)
    assert any(line.startswith("truncated to 8 tokens: ") for line in printed)


def test_train_without_a_split_raises(dataset, tmp_path):
    only = replace(dataset, splits={"train": dataset.splits["train"]})
    with raises("InputError: expected the split 'dev'"):
        training.train(only, tmp_path / "m", TINY)
    with raises("InputError: expected the split 'test'"):
        training.train(only, tmp_path / "m", replace(TINY, protocol="released"))


@pytest.mark.full
def test_train_without_quasi_attention_ignores_lambda(dataset, tmp_path):
    """If quasi_scale is 0, lambda does not change the logits."""
    trained = training.train(
        dataset, tmp_path / "m", replace(TINY, max_steps=1, quasi_scale=0.0), say=lambda line: None
    )
    assert trained.model.config.quasi_scale == 0 and trained.record.options.quasi_scale == 0
    rows = dataset.splits["dev"][:4]
    before = trained.logits(rows)
    with torch.no_grad():
        for name, parameter in trained.model.named_parameters():
            if "lambda" in name:
                parameter.add_(3.0)
    assert (trained.logits(rows) == before).all()


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"epochs": 0}, "epochs: expected at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate: expected a positive number"),
        ({"learning_rate": math.nan}, "learning_rate: expected a positive number"),
        ({"dropout": 1.0}, r"dropout: expected a number in \[0, 1\)"),
        ({"balance": 1.5}, "balance: expected a number from 0 to 1"),
        ({"heads": 3}, "hidden_size: expected a multiple of 3, the number of heads, got 16"),
        ({"seed": -1}, "seed: expected at least 0"),
        ({"quasi_scale": math.inf}, "quasi_scale: expected a finite number, got inf"),
        ({"quasi_scale": 10**400}, "quasi_scale: expected a number that a float can store, got a larger one"),
        (
            {"quasi_scale": 0.0, "model": "bert"},
            "quasi_scale: expected none for the model 'bert'",
        ),
        ({"beta": math.nan}, "beta: expected a finite number, got nan"),
        (
            {"gamma": 0.5, "model": "cg-bert"},
            "gamma: expected none for the model 'cg-bert', which has no quasi-attention",
        ),
    ],
)
def test_training_option_out_of_range_raises(change, reason):
    with pytest.raises(InputError, match=reason):
        replace(TINY, **change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"epochs": "3"}, "epochs: expected an integer, got '3'."),
        ({"epochs": 2.0}, "epochs: expected an integer, got 2.0."),
        ({"epochs": True}, "epochs: expected an integer, got True."),
        ({"learning_rate": "1e-3"}, "learning_rate: expected a number, got '1e-3'."),
        ({"cased": "no"}, "cased: expected True or False, got 'no'."),
        ({"tokenizer": 3}, "tokenizer: expected a str, got 3."),
    ],
)
def test_training_option_of_another_type_raises(change, reason):
    with raises(f"InputError: {reason}"):
        TrainingOptions(**change)


def test_training_option_of_a_text_enumeration_is_accepted():
    class Model(str, enum.Enum):
        BERT = "bert"

    assert TrainingOptions(model=Model.BERT).model == "bert"


def test_training_options_convert_numpy_and_paths():
    options = TrainingOptions(epochs=np.int64(3), minutes=np.float32(2), tokenizer=Path("words"))
    assert type(options.epochs) is int
    assert type(options.minutes) is float
    assert options.tokenizer == "words"


@pytest.mark.parametrize("balance,share", [(0.0, 0.1), (0.5, 0.25), (1.0, 0.5)])
def test_balance_draws_rare_classes_more_often(balance, share):
    labels = [int(index < 400) for index in range(4000)]
    sampler = EpochSampler(labels, balance, seed=1)
    drawn = list(sampler)
    assert (len(drawn), len(sampler)) == (4000, 4000)
    # A weight of count ** -balance makes the shares 0.1 ** (1 - balance) to 0.9 ** (1 - balance).
    assert sum(labels[index] for index in drawn) / 4000 == pytest.approx(share, abs=0.03)
    assert (sorted(drawn) == list(range(4000))) is (balance == 0)
    assert list(sampler) == drawn
    sampler.epoch = 1
    assert list(sampler) != drawn


@pytest.mark.full
@pytest.mark.parametrize("model", ["qacg-bert", "cg-bert", "aspect-bert", "bert"])
def test_backbone_trains_and_loads(dataset, tmp_path, model):
    trained = training.train(dataset, tmp_path / "m", replace(TINY, model=model, epochs=3))
    assert trained.record.options.attention == trained.model.config._attn_implementation != "eager"
    assert trained.record.options.context_standalone is (model != "bert")
    curve = losses(trained)
    third = len(curve) // 3
    assert sum(curve[-third:]) < 0.9 * sum(curve[:third])
    assert trained.evaluate(dataset.splits["test"]).to_json() == trained.record.metrics["test"].to_json()
    with raises("InputError: attention: expected one of ..., got 'flash'"):
        load_trained(tmp_path / "m", "flash")


@pytest.mark.full
def test_train_starts_from_its_own_checkpoint(dataset, folder, tmp_path):
    printed = []
    options = TrainingOptions(from_checkpoint=str(folder), max_steps=3, batch_size=16, pooler="attention")
    options = replace(options, context_standalone=True, learning_rate=1e-9)
    trained = training.train(dataset, tmp_path / "m", options, say=printed.append)
    before = load_trained(folder).model.state_dict()
    for name, value in trained.model.state_dict().items():
        torch.testing.assert_close(value, before[name], atol=1e-6, rtol=0)
    assert any("loaded" in line for line in printed)
    with raises("InputError: max_length: expected at most 128, the number of positions of ..., got 500"):
        training.train(dataset, tmp_path / "n", replace(options, max_length=500))
    with raises("InputError: layers: expected none with the checkpoint ..., which defines it"):
        replace(options, layers=2)


@pytest.mark.full
def test_gradient_accumulation_equals_a_larger_batch(dataset, tmp_path):
    options = replace(TINY, dropout=0.0, epochs=1)
    whole = training.train(dataset, tmp_path / "whole", options)
    parts = training.train(dataset, tmp_path / "parts", replace(options, batch_size=8, gradient_accumulation=2))
    assert parts.record.steps == whole.record.steps
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)


@pytest.mark.full
def test_bfloat16_stays_near_float32(dataset, tmp_path):
    options = replace(TINY, dropout=0.0, epochs=1)
    single = training.train(dataset, tmp_path / "f", options)
    half = training.train(dataset, tmp_path / "b", replace(options, bf16=True))
    assert losses(half) == pytest.approx(losses(single), rel=0.02)
    assert losses(half) != losses(single)
    assert {value.dtype for value in half.model.state_dict().values()} == {torch.float32}


def test_collapse_is_warned_once_and_recorded(dataset, tmp_path):
    printed = []
    options = replace(TINY, learning_rate=1e-9, max_steps=6, eval_every=3, seed=3)
    record = training.train(dataset, tmp_path / "m", options, say=printed.append).record
    warnings = [line for line in printed if line.startswith("collapse at step ")]
    assert len(warnings) == 1
    assert warnings[0].startswith("collapse at step 3: ")
    assert "is predicted for every row of dev" in warnings[0]
    assert record.collapsed_steps == (3, 6)


def test_train_without_tensorboard_raises_first(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    options = replace(TINY, tensorboard=str(tmp_path / "logs"))
    with raises("InputError: tensorboard: cannot be used ...Install the extra `tensorboard`"):
        training.train(dataset, tmp_path / "m", options)
    assert not list(tmp_path.iterdir())


def test_tensorboard_logs_equal_the_record(dataset, tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the extra tensorboard"
    )
    options = replace(TINY, max_steps=6, eval_every=3, tensorboard=str(tmp_path / "logs"))
    records = training.train_seeds(dataset, tmp_path / "m", options, [1, 2])
    for record in records:
        written = reader.EventAccumulator(str(tmp_path / "logs" / f"seed-{record.options.seed}")).Reload()
        curve = [[event.step, event.value] for event in written.Scalars("train/loss")]
        assert curve == [[step, pytest.approx(loss, rel=1e-6)] for step, loss in record.loss]
        figures = written.Scalars("eval/strict_accuracy")
        assert [event.step for event in figures] == [3, 6]
        assert max(event.value for event in figures) == pytest.approx(record.selected.value)


def test_train_on_a_csv_file_learns_it(tmp_path):
    words = {"food": {"good": "tasty", "bad": "stale"}, "staff": {"good": "kind", "bad": "rude"}}
    lines = ["review,topic,verdict"]
    for number in range(60):
        for topic, verdicts in words.items():
            verdict = ("good", "bad")[(number + (topic == "staff")) % 2]
            lines.append(f"visit {number} was {verdicts[verdict]},{topic},{verdict}")
    (tmp_path / "reviews.csv").write_text("\n".join(lines) + "\n")
    reading = DataOptions(text_column="review", aspect_column="topic", label_column="verdict", dev_fraction=0.2)
    own = load_data(tmp_path / "reviews.csv", options=reading, optional=("test",))
    trained = training.train(own, tmp_path / "m", replace(TINY, epochs=6, batch_size=8))
    assert trained.contexts == ("food", "staff")
    assert trained.data_options == reading
    assert trained.record.metrics.keys() == {"dev"}
    assert trained.evaluate(own.splits["dev"]).accuracy > 0.9
