"""Behaviour of training on the sample: the saved model, its record, when training ends, and the effect of options."""

import math
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import transformers
import yaml
from errors import raises
from full_members import member
from model_sizes import SMALL, SMALL_FLAGS
from qacg_models import QACGBertForSequenceClassification
from qacg_models.cli.program import main
from qacg_models.models.auto import BACKBONES
from qacg_models.sentiment import training
from qacg_models.sentiment.encoding import FeatureTable, load_tokenizer, train_tokenizer
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.record import Selection
from qacg_models.sentiment.report.tables import selection_note
from qacg_models.sentiment.trained_model import load_trained
from qacg_models.sentiment.training.rows import EpochSampler, JoinedTexts, WordDropout
from qacg_models.sentiment.training.start import begin_model, begin_tokenizer
from qacg_models.sentiment.training.trainer import (
    POWER,
    AspectTrainer,
    BertAdam,
    CastWeights,
    EvaluationMetrics,
    WeightAverage,
    label_offsets,
    warmup_then_linear,
)
from safetensors.torch import load_file
from tokenizer_kinds import KINDS, write_tokenizer
from transformers import CONFIG_MAPPING
from untrained import OWN, write_model

TINY = TrainingOptions(**SMALL, epochs=4, batch_size=16, learning_rate=3e-3, balance=0.0)
OPEN = TrainingOptions(**SMALL, batch_size=16, learning_rate=3e-3, eval_every=5, patience=2, checkpoint_every=7)


def losses(trained):
    return [loss for _, loss in trained.record.loss]


def train(dataset, folder, options, **more):
    return training.train(dataset, folder, options, **{"say": lambda line: None} | more)


def set_dev_results(monkeypatch, *values, losses=()):
    """Makes the evaluations on dev return these metrics and losses, one after another."""
    metrics, dev_losses = iter(values), iter(losses)
    plain = AspectTrainer.evaluation_loop

    def loop(self, *args, **kwargs):
        output = plain(self, *args, **kwargs)
        if losses:
            output.metrics["eval_loss"] = next(dev_losses)
        return output

    monkeypatch.setattr(EvaluationMetrics, "__call__", lambda *_: {"strict_accuracy": next(metrics)})
    monkeypatch.setattr(AspectTrainer, "evaluation_loop", loop)


@pytest.fixture(scope="module")
def folder(dataset, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "model"
    train(dataset, output, TINY)
    return output


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A checkpoint without contexts."""
    return write_model(tmp_path_factory.mktemp("start") / "bert", OWN, kind="bert", layers=3)


# --- the model folder ---


def test_trained_folder_is_complete_and_has_its_metrics(folder, dataset):
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "training.json", "run.yaml"} <= names
    assert [path.name for path in folder.parent.iterdir()] == ["model"]  # no temporary folder is left
    trained = load_trained(folder)
    assert trained.model.config.contexts == list(dataset.contexts)
    assert trained.model.config.id2label == {0: "None", 1: "Positive", 2: "Negative"}
    assert trained.model.config._attn_implementation == "fused"
    record = trained.record
    for split in ("dev", "test"):
        assert trained.evaluate(dataset.splits[split]).to_json() == record.metrics[split].to_json()
        assert trained.majority(dataset.splits[split]).to_json() == record.majority[split].to_json()
    assert record.selected.split == "dev" and record.steps == 4 * 240 // 16
    assert record.metrics["dev"].strict_accuracy == record.selected.value, "the best on dev"
    assert trained.model.config.task_specific_params["aspect-sentiment"] == {
        "contexts": list(trained.contexts),
        "max_length": record.max_length,
        "temperatures": list(trained.calibration.temperatures),
    }
    front = (folder / "README.md").read_text(encoding="utf-8").split("---\n")[1]
    assert yaml.safe_load(front)["pipeline_tag"] == "aspect-sentiment"


def test_train_never_loses_an_existing_output(dataset, folder, tmp_path, monkeypatch):
    folder = shutil.copytree(folder, tmp_path / "model")
    with raises("InputError: which exists"):
        train(dataset, folder, TINY)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("text")
    with raises("InputError: output: expected a new or empty folder, or a model folder to replace, got"):
        train(dataset, other, TINY, overwrite=True)

    before = (folder / "model.safetensors").read_bytes()
    unfinished = folder.with_name("model.unfinished")
    monkeypatch.setattr(training, "_metrics", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    printed, short = [], replace(TINY, max_steps=5, seed=9)
    with raises("OSError: disk full"):
        train(dataset, folder, short, overwrite=True, say=printed.append)
    assert (folder / "model.safetensors").read_bytes() == before
    # The last step is a checkpoint, so the training is not lost either.
    assert printed[-1] == f"{unfinished} still has checkpoint-5; --resume continues from it"
    monkeypatch.undo()
    trained = train(dataset, folder, short, overwrite=True, resume=True)
    assert (trained.record.options.seed, load_trained(folder).record.options.seed) == (9, 9)
    assert not unfinished.exists()


def test_train_without_a_split_raises(dataset, tmp_path):
    only = replace(dataset, splits={"train": dataset.splits["train"]})
    with raises("InputError: expected the split 'dev'"):
        train(only, tmp_path / "m", TINY)
    with raises("InputError: expected the split 'test'"):
        train(only, tmp_path / "m", replace(TINY, protocol="released"))


# --- steps ---


@pytest.mark.full
@pytest.mark.parametrize("start", ["scratch", "published"])
@pytest.mark.parametrize("model", BACKBONES)
def test_backbone_trains_and_loads(dataset, bert, tmp_path, model, start):
    options = replace(TINY, model=model, epochs=3)
    if start == "published":
        protocol = "released" if model == "qacg-bert" else "dev"
        sizes = dict(epochs=3, batch_size=16, learning_rate=3e-3, max_length=48, balance=0.0)
        options = TrainingOptions(model=model, from_checkpoint=str(bert), protocol=protocol, **sizes)
    trained = train(dataset, tmp_path / "m", options)
    assert trained.record.options.attention == trained.model.config._attn_implementation != "eager"
    pairs = model == "bert" or (start == "published" and model != "aspect-bert")
    assert any(1 in row["token_type_ids"] for row in trained.features(dataset.splits["dev"])) is pairs
    curve = losses(trained)
    third = len(curve) // 3
    assert sum(curve[-third:]) < 0.9 * sum(curve[:third])
    assert trained.evaluate(dataset.splits["test"]).to_json() == trained.record.metrics["test"].to_json()


def few_steps(dataset, path, **changes):
    return losses(train(dataset, path, replace(TINY, dropout=0.0, **{"epochs": 2} | changes)))


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "tolerance"),
    [
        ({"attention": "eager"}, 1e-3),
        ({"batch_size": 8, "gradient_accumulation": 2}, 1e-4),
        ({"precision": "bfloat16"}, 0.02),
    ],
)
def test_train_in_another_way_gives_near_losses(dataset, tmp_path, change, tolerance):
    plain, other = (few_steps(dataset, tmp_path / str(len(one)), **one) for one in ({}, change))
    assert other == pytest.approx(plain, rel=tolerance)
    assert "precision" not in change or other != plain
    model = load_trained(tmp_path / str(len(change))).model
    assert model.config._attn_implementation == change.get("attention", "fused")
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}


def test_long_sentences_are_truncated_and_counted(dataset, tmp_path):
    printed = []
    train(dataset, tmp_path / "m", replace(TINY, max_steps=2, max_length=8), say=printed.append)
    assert any(line.startswith("truncated to 8 tokens: ") for line in printed)


def test_collapse_is_warned_once(dataset, tmp_path):
    printed = []
    options = replace(TINY, learning_rate=1e-9, max_steps=6, eval_every=3, seed=3)
    train(dataset, tmp_path / "m", options, say=printed.append)
    assert sum(line.startswith("collapse: ") and "for every row of dev" in line for line in printed) == 1


def test_label_offsets_are_the_log_shares_of_the_labels():
    offsets = label_offsets([0, 0, 0, 0, 0, 1, 1], 3, 0.5)
    torch.testing.assert_close(offsets, 0.5 * torch.tensor([0.6, 0.3, 0.1]).log())
    assert label_offsets([0, 1], 2, 0.0) is None


def test_adjusted_loss_and_word_dropout_only_in_training(dataset, tmp_path, monkeypatch):
    seen, unknown = [], {True: [], False: []}
    plain = AspectTrainer.compute_loss

    def spy(self, model, inputs, return_outputs=False, **kwargs):
        loss, output = plain(self, model, inputs, return_outputs=True, **kwargs)
        expected = torch.nn.functional.cross_entropy(output["logits"] + model.training * self.offsets, inputs["labels"])
        seen.append((loss.item(), expected.item()))
        unknown[model.training].append((inputs["input_ids"] == 1).float().mean().item())
        return (loss, output) if return_outputs else loss

    monkeypatch.setattr(AspectTrainer, "compute_loss", spy)
    options = TrainingOptions(max_steps=2, **SMALL, logit_adjustment=1.0, word_dropout=0.5)
    assert train(dataset, tmp_path / "m", options).record.options.logit_adjustment == 1
    assert min(unknown[True]) > 0.3 and max(unknown[False]) < 0.1, "the shares of [UNK]"
    for found, expected in seen:
        assert found == pytest.approx(expected, rel=1e-5)


def test_cast_weights_give_the_gradients_of_autocast(bert, dataset):
    model, _, _ = begun(bert, dataset, context_standalone=True, context_from_layer=2, frozen_layers=1)
    model.unused = torch.nn.Linear(2, 2)
    batch = {"input_ids": torch.arange(5, 25), "cu_seqlens": torch.tensor([0, 12, 20]), "max_seqlen": 12}
    batch |= {"context_ids": torch.tensor([1, 0]), "labels": torch.tensor([1, 2])}
    found, before = [], dict(model.named_parameters())
    for cast in (CastWeights(model), nullcontext()):
        with torch.autocast("cpu", torch.bfloat16), cast:
            loss = model.eval()(**batch).loss
        loss.backward()
        found.append({name: weight.grad for name, weight in before.items() if weight.grad is not None})
        model.zero_grad()
    assert all(weight is before[name] for name, weight in model.named_parameters())
    assert found[0].keys() == found[1].keys() < before.keys(), "frozen and unused weights have no gradient"
    one, other = (torch.cat([gradient.flatten() for gradient in by_name.values()]) for by_name in found)
    assert one.dtype == torch.float32
    assert (one - other).norm() < 0.01 * other.norm()


def test_losses_that_are_not_finite_are_left_out(dataset, tmp_path, monkeypatch):
    plain = AspectTrainer.training_step

    def diverge(self, *args, **kwargs):
        loss = plain(self, *args, **kwargs)
        return loss * math.nan if self.state.global_step >= 3 else loss

    monkeypatch.setattr(AspectTrainer, "training_step", diverge)
    record = train(dataset, tmp_path / "m", replace(TINY, max_steps=6)).record
    assert [step for step, _ in record.loss] == [1, 2, 3]


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


def test_train_without_tensorboard_raises(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with raises("InputError: tensorboard: cannot be used ...Install the extra `tensorboard`"):
        train(dataset, tmp_path / "m", replace(TINY, tensorboard=str(tmp_path / "logs")))
    assert not list(tmp_path.iterdir())


def test_tensorboard_logs_equal_the_record(dataset, tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the extra tensorboard"
    )
    options = replace(TINY, max_steps=6, eval_every=3, tensorboard=str(tmp_path / "logs"))
    for record in training.train_seeds(dataset, tmp_path / "m", options, [1, 2]):
        written = reader.EventAccumulator(str(tmp_path / "logs" / f"seed-{record.options.seed}")).Reload()
        curve = [[event.step, event.value] for event in written.Scalars("train/loss")]
        assert curve == [[step, pytest.approx(loss, rel=1e-6)] for step, loss in record.loss]
        figures = written.Scalars("eval/strict_accuracy")
        assert [event.step for event in figures] == [3, 6]
        assert max(event.value for event in figures) == pytest.approx(record.selected.value)


# --- the best weights, and the end of training ---


@pytest.mark.full
def test_train_keeps_an_early_best_checkpoint(dataset, tmp_path, monkeypatch):
    set_dev_results(monkeypatch, 0.1, 0.7, 0.3)
    saved = {}
    plain = AspectTrainer._determine_best_metric

    def spy(self, metrics, trial):
        saved[self.state.global_step] = {name: value.clone() for name, value in self.model.state_dict().items()}
        return plain(self, metrics, trial)

    monkeypatch.setattr(AspectTrainer, "_determine_best_metric", spy)
    trained = train(dataset, tmp_path / "model", replace(TINY, max_steps=12, eval_every=4))
    assert trained.record.selected == Selection("dev", "strict_accuracy", 8, 0.7)
    kept = trained.model.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in saved[8].items())
    assert not all(torch.equal(kept[name], value) for name, value in saved[12].items())


def test_train_stops_when_dev_stops_improving(dataset, tmp_path, monkeypatch):
    set_dev_results(monkeypatch, 0.1, 0.2, 0.15, 0.3, 0.4, 0.35, 0.4, losses=(1, 1, 1, 1, 1, 1, 1))
    record = train(dataset, tmp_path / "m", OPEN).record
    assert (record.steps, record.selected.step, record.ended) == (35, 25, "patience")
    assert record.options.epochs is None and record.options.schedule == "steady", "the run can be repeated"


@pytest.mark.full
def test_equal_metrics_keep_the_lower_loss(dataset, tmp_path, monkeypatch):
    """If the metric on dev is 100 %, a falling loss must not extend training to its time limit."""
    set_dev_results(monkeypatch, 0.9, 1, 1, 1, 1, 1, losses=(1.0, 0.9, 0.8, 0.85, 0.7, 0.6))
    record = train(dataset, tmp_path / "m", replace(OPEN, patience=3)).record
    assert (record.steps, record.selected.step, record.selected.value) == (25, 25, 1)
    assert selection_note(record) == "checkpoint of step 25 of 25, selected by strict accuracy on dev (100.0%)"


def test_train_prints_and_keeps_the_time_limit(dataset, tmp_path, monkeypatch):
    printed = []
    monkeypatch.setattr(AspectTrainer, "seconds", lambda self: 10.0 * self.state.global_step)
    options = replace(OPEN, minutes=2, patience=0)
    record = train(dataset, tmp_path / "m", options, say=printed.append).record
    assert any("at most 2 minutes (--minutes)" in line for line in printed)
    assert (record.steps, record.ended) == (12, "minutes"), "evaluated between two regular evaluations"
    set_dev_results(monkeypatch, 0.1, 0.2, 0.3)
    record = train(dataset, tmp_path / "n", options).record
    assert record.selected.step == 12
    assert "dev was still improving when the time limit was reached" in selection_note(record)


def test_weight_average_is_evaluated_and_kept(dataset, tmp_path, monkeypatch):
    passed, judged = [], {}
    plain_step, plain_evaluate = WeightAverage.on_step_end, AspectTrainer.evaluation_loop

    def step(self, args, state, control, model=None, **kwargs):
        plain_step(self, args, state, control, model=model, **kwargs)
        passed.append(model.classifier.weight.detach().clone())

    def evaluate(self, *args, **kwargs):
        judged[self.state.global_step] = self.model.classifier.weight.detach().clone()
        return plain_evaluate(self, *args, **kwargs)

    monkeypatch.setattr(WeightAverage, "on_step_end", step)
    monkeypatch.setattr(AspectTrainer, "evaluation_loop", evaluate)
    done = train(dataset, tmp_path / "m", replace(OPEN, max_steps=10, schedule="steady"))
    average = passed[0]
    for number, weights in enumerate(passed[1:], 2):
        average = average + (weights - average) * (POWER + 1) / (number + POWER)
        if number in judged:
            torch.testing.assert_close(judged[number], average, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(passed[-1], average, atol=1e-4), "training continues from its own weights"
    kept = done.model.state_dict()["classifier.weight"]
    assert torch.equal(kept, judged[done.record.selected.step]) and set(judged) == {5, 10}


@pytest.mark.full
def test_train_from_a_run_file_repeats_an_open_run(small_data, tmp_path):
    flags = [*SMALL_FLAGS, "--batch-size=16", "--set=patience=1", "--set=eval_every=4", "--learning-rate=3e-3"]
    assert main(["train", "--data", str(small_data), "--output", str(tmp_path / "a"), *flags]) == 0
    assert main(["train", "--config", str(tmp_path / "a" / "run.yaml"), "--output", str(tmp_path / "b")]) == 0
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second


# --- the released protocol ---

RATE, DECAY, CLIP, EPS = 0.01, 0.1, 0.5, 1e-6


def test_bert_adam_matches_the_formulas():
    torch.manual_seed(0)
    start = [torch.randn(4, 3, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    weights = [value.clone().requires_grad_() for value in start]
    groups = [{"params": weights[:1], "weight_decay": DECAY}, {"params": weights[1:], "weight_decay": 0.0}]
    optimizer = BertAdam(groups, RATE, max_grad_norm=CLIP)
    expected, means, squares = [v.clone() for v in start], [0.0, 0.0], [0.0, 0.0]
    for step in range(6):
        # One gradient is above the norm, the other below: each is clipped by its own norm.
        gradients = [torch.randn(4, 3, dtype=torch.float64) * 10, torch.randn(5, dtype=torch.float64) * 0.01]
        for group in optimizer.param_groups:
            group["lr"] = RATE * (step + 1) / 6
        for index, (weight, gradient) in enumerate(zip(weights, gradients)):
            weight.grad = gradient.clone()
            norm = math.sqrt(float((gradient**2).sum()))
            clipped = gradient * min(1.0, CLIP / (norm + 1e-6))
            means[index] = 0.9 * means[index] + 0.1 * clipped
            squares[index] = 0.999 * squares[index] + 0.001 * clipped**2
            update = means[index] / (squares[index] ** 0.5 + EPS) + (DECAY if index == 0 else 0.0) * expected[index]
            expected[index] = expected[index] - RATE * (step + 1) / 6 * update
        optimizer.step()
    for weight, value in zip(weights, expected):
        torch.testing.assert_close(weight.detach(), value, rtol=1e-12, atol=1e-12)


def test_warmup_then_linear_rises_jumps_and_falls_to_zero():
    factors = [warmup_then_linear(step, 100, 0.1) for step in range(120)]
    assert factors[:11] == pytest.approx([step / 10 for step in range(10)] + [0.9])
    assert factors[10:100] == pytest.approx([1 - step / 100 for step in range(10, 100)])
    assert factors[100:] == [0.0] * 20  # the released code goes below 0 here
    assert warmup_then_linear(0, 10, 0.0) == 1.0


def test_released_protocol_uses_bert_adam(dataset, tmp_path, monkeypatch):
    rates, optimizers = [], []
    plain = BertAdam.step

    def spy(self, closure=None):
        rates.append(self.param_groups[0]["lr"])
        optimizers.append(self)
        return plain(self, closure)

    monkeypatch.setattr(BertAdam, "step", spy)
    options = TrainingOptions(protocol="released", max_steps=20, batch_size=16, **SMALL)
    record = train(dataset, tmp_path / "m", options).record
    assert rates == pytest.approx([2e-5 * warmup_then_linear(step, 20, 0.1) for step in range(20)])
    (decayed, other) = optimizers[0].param_groups
    assert (decayed["weight_decay"], other["weight_decay"]) == (0.01, 0.0)
    assert all(value.dim() == 2 for value in decayed["params"])
    assert all(value.dim() == 1 for value in other["params"])
    assert (record.selected.split, record.options.balance) == ("test", 1.0)


# --- augmentation ---

ASPECTS = ("food", "price")
SEPARATOR = 3  # the id of [SEP] in a tokenizer of train_tokenizer
ROWS = [
    Example(str(number), text, aspect, "", aspect, label, number + 2)
    for number, (text, aspect, label) in enumerate(
        [
            ("a fine soup", "food", 1),
            ("a fine soup", "price", 0),
            ("the bill was a shock", "food", 0),
            ("the bill was a shock", "price", 2),
            ("we came by bus", "food", 0),
            ("we came by bus", "price", 2),
        ]
    )
]


def features(standalone, rows=ROWS):
    tokenizer = train_tokenizer([row.sentence for row in ROWS] * 2 + [*ASPECTS] * 2, 200)
    return FeatureTable(rows, tokenizer, ASPECTS, 64, standalone)


@pytest.mark.parametrize("standalone", [True, False])
def test_joined_pair_equals_one_text_of_both(tmp_path, standalone):
    table = features(standalone)
    joined = JoinedTexts(table, 0.5, 64, SEPARATOR)
    expected = [("a fine soup we came by bus", 0, 4, 1), ("we came by bus a fine soup", 4, 0, 1)]
    expected += [("the bill was a shock we came by bus", 2, 4, 0), ("a fine soup the bill was a shock", 1, 3, 2)]
    whole = [replace(ROWS[a], sentence=text, label=label) for text, a, _, label in expected]
    assert [joined[a, b] for _, a, b, _ in expected] == list(features(standalone, whole))
    assert [joined[number] for number in range(len(joined))] == list(table)
    most = len(joined[0, 4]["input_ids"])
    assert JoinedTexts(table, 0.5, most, SEPARATOR)[0, 4] == joined[0, 4]
    short = JoinedTexts(table, 0.5, most - 1, SEPARATOR)
    assert short[0, 4] == table[0], "the one with an opinion stays"
    assert short[4, 0] == table[0], "the one with an opinion stays"


@pytest.mark.parametrize("standalone", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_joined_pair_of_other_tokenizers(kind, tmp_path, standalone):
    tokenizer = load_tokenizer(write_tokenizer(kind, [row.sentence for row in ROWS], tmp_path))
    first, separator, _ = KINDS[kind]
    table = FeatureTable(ROWS, tokenizer, ASPECTS, 64, standalone, token_types=False)
    a, b, name = tokenizer(["a fine soup", "we came by bus", "food"], add_special_tokens=False)["input_ids"]
    between = [separator] * (tokenizer.num_special_tokens_to_add(pair=True) - 2)
    expected = [first, *a, *b, *([] if standalone else [*between, *name]), separator]
    assert JoinedTexts(table, 0.5, 64, separator)[0, 4] == {"input_ids": expected, "labels": 1, "context_ids": 0}


def test_joined_texts_pairs_rows_without_an_opinion():
    table = features(True)
    drawn = torch.arange(6).repeat(2000)
    keys = list(JoinedTexts(table, 0.3, 64, SEPARATOR).pairs(drawn, torch.Generator().manual_seed(0)))
    pairs = [(row, key) for row, key in zip(drawn.tolist(), keys) if isinstance(key, tuple)]
    assert len(pairs) / len(keys) == pytest.approx(0.3, abs=0.02)
    assert all(key == row for row, key in zip(drawn.tolist(), keys) if not isinstance(key, tuple))
    partners = {row: {a if b == row else b for other, (a, b) in pairs if other == row} for row in range(6)}
    # Food rows 2 and 4 and price row 1 have no opinion; row 1 may be joined with itself.
    assert partners == {0: {2, 4}, 2: {2, 4}, 4: {2, 4}, 1: {1}, 3: {1}, 5: {1}}
    assert sum(key[0] == row for row, key in pairs if row in (0, 3, 5)) / len(pairs) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("absent", [(), ("food",)])
def test_joined_texts_without_absent_rows_stay_single(tmp_path, absent):
    rows = [row for row in ROWS if row.aspect in absent or row.label]
    drawn = torch.arange(len(rows)).repeat(50)
    keys = JoinedTexts(features(True, rows), 0.9, 64, SEPARATOR).pairs(drawn, torch.Generator().manual_seed(0))
    assert {rows[number].aspect for key in keys if isinstance(key, tuple) for number in key} == set(absent)


def test_word_dropout_hides_words_of_the_first_segment():
    torch.manual_seed(0)
    unknown, first, separator = 1, 2, 3
    special = (0, unknown, first, separator)
    pieces = torch.randint(4, 50, (40, 200))
    pieces[:, 0], pieces[:, [150, 151, 190]], pieces[:, 191:] = first, separator, 0
    may = ((torch.arange(200) > 0) & (torch.arange(200) < 150)).expand(40, 200)
    for shape in ((40, 200), (-1,)):  # a padded batch, and a packed one
        batch = {"input_ids": pieces.reshape(shape), "labels": torch.zeros(40)}
        found = WordDropout(0.25, unknown, special, first, separator)(batch)
        changed = (found["input_ids"] != batch["input_ids"]).view(40, 200)
        assert (found["input_ids"].view(40, 200)[changed] == unknown).all() and not changed[~may].any()
        assert changed[may].float().mean() == pytest.approx(0.25, abs=0.02)
        assert found["labels"] is batch["labels"]
    assert WordDropout(0.0, None, special, first, separator)(batch) is batch
    with raises("InputError: word_dropout: expected 0 for a tokenizer without an unknown token, got 0.1"):
        WordDropout(0.1, None, special, first, separator)


# --- the start from a checkpoint ---

SHORT = dict(max_steps=3, batch_size=8, max_length=48, learning_rate=1e-2, eval_every=3)
STANDALONE = dict(model="qacg-bert", context_standalone=True, context_from_layer=2)


@pytest.mark.full
def test_train_starts_from_its_own_checkpoint(dataset, folder, tmp_path):
    printed = []
    options = TrainingOptions(from_checkpoint=str(folder), max_steps=3, batch_size=16, learning_rate=1e-9)
    trained = train(dataset, tmp_path / "m", options, say=printed.append)
    before = load_trained(folder).model.state_dict()
    for name, value in trained.model.state_dict().items():
        torch.testing.assert_close(value, before[name], atol=1e-6, rtol=0)
    assert any("loaded" in line for line in printed)
    with raises("InputError: max_length: expected at most 128, the number of positions of ..., got 500"):
        train(dataset, tmp_path / "n", replace(options, max_length=500))


# By model_type of transformers: the model, and training options.
ENCODERS = {
    "roberta": ("qacg-bert", {"context_standalone": False, "word_dropout": 0.1, "join_texts": 0.5}),
    "xlm-roberta": ("aspect-bert", {"context_standalone": True, "frozen_layers": 1}),
    "modernbert": ("qacg-bert", {"context_standalone": True, "word_dropout": 0.1, "join_texts": 0.5}),
    "electra": ("bert", {"frozen_layers": 1}),
}


@pytest.mark.parametrize("kind", [member(kind, id=kind, fast=kind == "modernbert") for kind in ENCODERS])
def test_train_starts_from_encoders_of_transformers(kind, dataset, tmp_path):
    start = write_tokenizer(kind, [row.sentence for row in dataset.splits["train"]], tmp_path / "start")
    tokenizer, positions = load_tokenizer(start), 50 if "roberta" in kind else 48  # RoBERTa does not use two of 50
    first, separator, padding = KINDS[kind]
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    ids = {"pad_token_id": padding, "bos_token_id": first, "eos_token_id": separator}
    ids |= {"vocab_size": len(tokenizer) + 3}  # published vocabularies are padded
    if "roberta" in kind:
        sizes |= {"type_vocab_size": 1}
    config = CONFIG_MAPPING[kind](max_position_embeddings=positions, **sizes, **ids)
    transformers.AutoModel.from_config(config).save_pretrained(start)
    model, options = ENCODERS[kind]
    options = TrainingOptions(model=model, from_checkpoint=str(start), **SHORT | options)
    trained = train(dataset, tmp_path / "m", options)
    assert trained.tokenizer("safe", "price") == tokenizer("safe", "price")
    assert ("token_type_ids" in trained.features(dataset.splits["dev"])[0]) == (kind == "electra")
    assert trained.model.config.max_position_embeddings == 48
    assert trained.evaluate(dataset.splits["dev"]).to_json() == trained.record.metrics["dev"].to_json()
    with raises("InputError: max_length: expected at most 48, the number of positions of ..., got 49"):
        train(dataset, tmp_path / "n", replace(options, max_length=49))


@pytest.mark.parametrize(
    ("names", "order", "note"),
    [
        (["negative", "none", "positive"], [1, 2, 0], None),
        (["1 star", "2 stars", "3 stars"], [0, 1, 2], "1 star as None, 2 stars as Positive, 3 stars as Negative"),
        (["negative", "Negative", "none"], [0, 1, 2], "negative as None, Negative as Positive, none as Negative"),
    ],
)
def test_classifier_of_a_checkpoint_is_mapped_by_label_names(dataset, tmp_path, names, order, note):
    checkpoint = write_model(tmp_path / "checkpoint", kind="bert", fields={"id2label": dict(enumerate(names))})
    options = TrainingOptions(from_checkpoint=str(checkpoint), max_steps=1, learning_rate=1e-9, max_length=48)
    said = []
    found = train(dataset, tmp_path / "m", options, say=said.append).model.classifier
    stored = load_file(checkpoint / "model.safetensors")
    torch.testing.assert_close(found.weight, stored["classifier.weight"][order], atol=1e-6, rtol=0)
    torch.testing.assert_close(found.bias, stored["classifier.bias"][order], atol=1e-6, rtol=0)
    notes = [line for line in said if line.startswith("classifier: ")]
    start = "classifier: the labels of the checkpoint differ, and are used by position: "
    assert notes == ([] if note is None else [start + note])


@pytest.mark.parametrize(
    "options",
    [STANDALONE | {"schedule": "steady"}, {}, {"protocol": "released"}],
    ids=["average", "bert", "released"],
)
def test_frozen_layers_keep_their_weights(bert, dataset, tmp_path, options):
    given = TrainingOptions(from_checkpoint=str(bert), frozen_layers=2, **SHORT | options)
    after, before = train(dataset, tmp_path / "model", given).model.state_dict(), load_file(bert / "model.safetensors")
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert not any(
        name.startswith(("bert.embeddings.", "bert.encoder.layer.0.", "bert.encoder.layer.1.")) for name in changed
    )
    assert any(name.startswith("bert.encoder.layer.2.") for name in changed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (STANDALONE | {"frozen_layers": 3}, "expected at most 2, the number of layers below context_from_layer"),
        ({"model": "bert", "frozen_layers": 4}, "expected at most 3, the number of layers of"),
    ],
)
def test_frozen_layers_out_of_range_raise(bert, dataset, tmp_path, options, message):
    with raises(f"InputError: frozen_layers: {message}"):
        train(dataset, tmp_path / "model", TrainingOptions(from_checkpoint=str(bert), **SHORT | options))


def begun(folder, dataset, **options):
    """The model at the start of training, its tokenizer and the lines that were logged."""
    given = {"model": "qacg-bert"} | options
    resolved = TrainingOptions(
        from_checkpoint=str(folder), max_length=48, attention="fused", learning_rate=1e-3, **given
    ).resolved()
    tokenizer, lines = begin_tokenizer(dataset, resolved), []
    return begin_model(dataset, resolved, tokenizer, lines.append), tokenizer, lines


@pytest.mark.parametrize("layer", [0, 2])
def test_vectors_of_aspects_are_states_of_their_names(bert, dataset, layer):
    model, tokenizer, lines = begun(bert, dataset, context_standalone=True, context_from_layer=layer)
    vectors, states = model.bert.context_embeddings.weight, []
    for name in model.config.contexts:
        ids = torch.tensor([tokenizer(name)["input_ids"]])
        with torch.no_grad():
            hidden = model.bert(ids, context_ids=torch.tensor([0]), output_hidden_states=True).hidden_states[layer]
        states.append(hidden[0, 1:-1])
    norm = torch.cat(states).norm(dim=1).mean()
    expected = torch.stack([one.mean(0) / one.mean(0).norm() * norm for one in states])
    assert torch.allclose(vectors, expected, atol=1e-5)
    assert lines[-1] == "aspects: their initial vectors come from their names"


def test_start_from_names_adds_the_aspect_and_copies_projections(bert, dataset):
    model, _, _ = begun(bert, dataset, context_standalone=True, context_from_layer=1)
    hidden, vector = torch.randn(4, 16), torch.randn(1, 16).expand(4, 16)
    for context_layer in model.bert.encoder.context_layer[1:]:
        mixed = context_layer(torch.cat([vector, hidden], dim=1)) + vector
        assert torch.allclose(mixed, hidden + vector, atol=1e-6)
    for layer in model.bert.encoder.layer[1:]:
        for role in ("query", "key"):
            source, copy = (layer.attention.self.layer(name) for name in (role, f"context_{role}"))
            assert torch.equal(source.weight, copy.weight)
            assert torch.equal(source.bias, copy.bias)
            assert source.weight is not copy.weight


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"context_from_layer": 0}, True),
        ({"context_standalone": False}, False),
        ({"context_standalone": True, "protocol": "released"}, False),
        ({"context_standalone": True, "model": "cg-bert"}, False),
        ({"model": "aspect-bert", "context_from_layer": 2}, True),
    ],
)
def test_start_from_names_depends_on_the_other_options(bert, dataset, options, names):
    model, _, lines = begun(bert, dataset, **options)
    assert any("from their names" in line for line in lines) is names
    assert (model.bert.context_embeddings.weight.std() > 0.05) == names
    if "model" not in options:
        fields = (model.config.quasi_bias, model.config.beta, model.config.gamma)
        assert fields == (("-log(keys)", 0.9, 0.9) if names else (0.0, 1.0, 1.0))


def test_checkpoint_with_aspects_keeps_its_own(dataset, tmp_path):
    fields = {"contexts": list(dataset.contexts), "beta": 0.5, "context_standalone": True, "context_projection": "head"}
    folder = write_model(tmp_path / "model", OWN, fields=fields)
    stored = QACGBertForSequenceClassification.from_pretrained(folder)
    model, _, _ = begun(folder, dataset, context_from_layer=0)
    assert torch.equal(model.bert.context_embeddings.weight, stored.bert.context_embeddings.weight)
    assert (model.config.beta, model.config.context_projection) == (0.5, "head")
