"""Training without a number of steps: how long it goes on, what is judged, and that a kill changes nothing."""

import math
from dataclasses import replace

import pytest
import torch
from qacg_models import training
from qacg_models.cli import main
from qacg_models.data import load_data
from qacg_models.errors import InputError
from qacg_models.reporting.result_tables import selection_note
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.recipes import RECIPES
from qacg_models.training.averaging import POWER, WeightAverage
from qacg_models.training.callbacks import EvaluationMetrics
from qacg_models.training.resolve_options import resolve_options
from qacg_models.training.run import plan
from qacg_models.training.trainer import AspectTrainer

OPEN = TrainingOptions(
    batch_size=16,
    hidden_size=16,
    layers=1,
    heads=2,
    intermediate_size=32,
    learning_rate=3e-3,
    eval_every=5,
    patience=2,
    checkpoint_every=7,
)


@pytest.fixture(scope="module")
def dataset(small_data):
    return load_data(small_data)


def dev_gives(monkeypatch, *values, losses=()):
    """Evaluations on dev give these figures, and these losses, one after another."""
    figures, given = iter(values), iter(losses)
    watched = {"predicted_classes": 3, "most_predicted": 0}
    plain = AspectTrainer.evaluation_loop

    def judged(self, prediction):
        return {"strict_accuracy": next(figures), **watched}

    def loop(self, *args, **kwargs):
        output = plain(self, *args, **kwargs)
        if losses:
            output.metrics["eval_loss"] = next(given)
        return output

    monkeypatch.setattr(EvaluationMetrics, "__call__", judged)
    monkeypatch.setattr(AspectTrainer, "evaluation_loop", loop)


def trained(dataset, folder, options=OPEN, **more):
    return training.train(dataset, folder, options, **{"say": lambda line: None} | more)


def test_what_is_chosen_where_nothing_is_said(dataset):
    chosen = resolve_options(TrainingOptions(), dataset)
    assert (chosen.schedule, chosen.minutes, chosen.epochs, chosen.max_steps) == ("steady", 60, None, None)
    assert chosen.eval_every == 50 and chosen.patience == RECIPES["scratch"]["patience"]
    # 40,000 rows are 625 steps an epoch, and half an epoch lies between evaluations; of 500,000 rows, 500 steps.
    for times, wanted in ((167, 313), (2084, 500)):
        large = replace(dataset, splits={"train": [*dataset.splits["train"]] * times})
        assert resolve_options(TrainingOptions(), large).eval_every == wanted
    assert "while dev improves, at most 60 minutes (--minutes), until 20 evaluations in a row are no better" in plan(
        chosen, 240, "dev"
    )


def test_selection_note_of_a_single_evaluation_names_the_last_step(dataset, tmp_path):
    options = replace(OPEN, patience=None, eval_every=3, max_steps=3)
    record = trained(dataset, tmp_path / "m", options).record
    value = f"{record.selected.value:.1%}"
    assert selection_note(record) == f"weights of the last step, 3, without selection (strict accuracy on dev: {value})"


def test_steps_that_are_given_are_taken_as_ever(dataset):
    chosen = resolve_options(TrainingOptions(epochs=3), dataset)
    assert (chosen.schedule, chosen.minutes, chosen.patience, chosen.eval_every) == ("linear", 0, 0, 0)
    assert plan(chosen, 240, "dev") == "training: 12 steps; dev is evaluated once per epoch"
    assert resolve_options(TrainingOptions(protocol="released"), dataset).epochs == 30
    with_both = resolve_options(TrainingOptions(epochs=3, minutes=5), dataset)
    assert plan(with_both, 240, "dev").startswith("training: 12 steps, at most 5 minutes (--minutes);")


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"schedule": "linear"}, "schedule: expected epochs or max_steps beside 'linear'"),
        (
            {"schedule": "steady", "protocol": "released"},
            "schedule: expected 'linear' or none",
        ),
        ({"minutes": -1.0}, "minutes: expected a number from 0, got -1"),
        ({"minutes": math.nan}, "minutes: expected a number from 0, got nan"),
        ({"fsdp": True}, "fsdp: expected epochs or max_steps, and the schedule 'linear' or none"),
        ({"minutes": 0.0, "patience": 0}, "patience, minutes: expected at least one above 0, got 0 for both"),
    ],
)
def test_choices_that_do_not_go_together(dataset, change, reason):
    with pytest.raises(InputError, match=reason):
        resolve_options(replace(TrainingOptions(), **change), dataset)


def test_training_goes_on_while_dev_rises_and_ends_when_it_no_longer_does(dataset, tmp_path, monkeypatch):
    dev_gives(monkeypatch, 0.1, 0.2, 0.15, 0.3, 0.4, 0.35, 0.4, losses=(1, 1, 1, 1, 1, 1, 1))
    record = trained(dataset, tmp_path / "m").record
    assert (record.steps, record.selected.step, record.ended) == (35, 25, "patience")
    assert record.options.epochs is None and record.options.schedule == "steady", "the run can be repeated"
    assert "the last one" not in selection_note(record)


@pytest.mark.full
def test_of_evaluations_as_good_the_surer_one_is_kept_and_is_no_rise(dataset, tmp_path, monkeypatch):
    """A loss that goes on falling on a dev without fault would otherwise keep a training going for its whole budget."""
    dev_gives(monkeypatch, 0.9, 1, 1, 1, 1, 1, losses=(1.0, 0.9, 0.8, 0.85, 0.7, 0.6))
    record = trained(dataset, tmp_path / "m", replace(OPEN, patience=3)).record
    assert (record.steps, record.selected.step, record.selected.value) == (25, 25, 1)
    assert "the last one" not in selection_note(record), "it is, and dev did not rise"


def test_the_budget_is_told_and_kept(dataset, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(AspectTrainer, "seconds", lambda self: 10.0 * self.state.global_step)
    options = replace(OPEN, minutes=2, patience=0)
    record = trained(dataset, tmp_path / "m", options, say=said.append).record
    assert any("at most 2 minutes (--minutes)" in line for line in said)
    assert (record.steps, record.ended) == (12, "minutes"), (
        "evaluated after its last step, though the fifth is not over"
    )
    dev_gives(monkeypatch, 0.1, 0.2, 0.3)
    record = trained(dataset, tmp_path / "n", options).record
    assert record.selected.step == 12
    assert "dev was still improving when the time limit was reached" in selection_note(record)


def test_the_average_of_the_weights_is_what_is_judged_and_kept(dataset, tmp_path, monkeypatch):
    passed, judged = [], {}
    plain_update, plain_evaluate = WeightAverage.update, AspectTrainer.evaluation_loop

    def update(self, model, step):
        plain_update(self, model, step)
        passed.append(model.classifier.weight.detach().clone())

    def evaluate(self, *args, **kwargs):
        judged[self.state.global_step] = self.model.classifier.weight.detach().clone()
        return plain_evaluate(self, *args, **kwargs)

    monkeypatch.setattr(WeightAverage, "update", update)
    monkeypatch.setattr(AspectTrainer, "evaluation_loop", evaluate)
    done = trained(dataset, tmp_path / "m", replace(OPEN, max_steps=10, schedule="steady"))
    average = passed[0]
    for step, weights in enumerate(passed[1:], 2):
        average = average + (weights - average) * (POWER + 1) / (step + POWER)
        if step in judged:
            torch.testing.assert_close(judged[step], average, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(passed[-1], average, atol=1e-4), "training itself goes on from its own weights"
    kept = done.model.state_dict()["classifier.weight"]
    assert torch.equal(kept, judged[done.record.selected.step]) and set(judged) == {5, 10}


class Died(BaseException):
    """Nothing in between can take this for an error of its own."""


@pytest.mark.parametrize("call", [2, 3])
@pytest.mark.full
def test_a_killed_run_goes_on_to_the_same_end(dataset, tmp_path, monkeypatch, call):
    """Killed before it writes its second or third checkpoint, so the average and the count of patience go on."""
    options = replace(OPEN, patience=4, max_steps=40, schedule="steady")
    whole = trained(dataset, tmp_path / "whole", options)
    plain, calls = AspectTrainer._save_checkpoint, 0

    def dying(self, model, trial):
        nonlocal calls
        calls += 1
        if calls == call:
            raise Died
        plain(self, model, trial)

    with monkeypatch.context() as patch:
        patch.setattr(AspectTrainer, "_save_checkpoint", dying)
        with pytest.raises(Died):
            trained(dataset, tmp_path / "m", options)
    said = []
    # More minutes may be given on the way; any other choice is held to.
    again = trained(dataset, tmp_path / "m", replace(options, minutes=90), resume=True, say=said.append)
    assert f"resuming from checkpoint-{7 * (call - 1)}" in said
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    found, wanted = again.record.to_json(), whole.record.to_json()
    for part in ("metrics", "selected", "steps", "loss", "ended", "tfidf"):
        assert found[part] == wanted[part], part


@pytest.mark.full
def test_minutes_before_a_kill_count(dataset, tmp_path, monkeypatch):
    options = replace(OPEN, minutes=2, patience=0)
    monkeypatch.setattr(AspectTrainer, "seconds", lambda self: self.seconds_before + 10.0 * self.state.global_step)
    plain, calls = AspectTrainer._save_checkpoint, 0

    def dying(self, model, trial):
        nonlocal calls
        plain(self, model, trial)
        calls += 1
        if calls == 1:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(AspectTrainer, "_save_checkpoint", dying)
        with pytest.raises(Died):
            trained(dataset, tmp_path / "m", options)
    monkeypatch.setattr(
        AspectTrainer, "seconds", lambda self: self.seconds_before + 10.0 * (self.state.global_step - 7)
    )
    record = trained(dataset, tmp_path / "m", options, resume=True).record
    assert (record.steps, record.seconds, record.ended) == (12, 120, "minutes")


@pytest.mark.full
def test_a_run_is_repeated_from_its_file(small_data, tmp_path):
    sizes = ["--hidden-size=16", "--layers=1", "--heads=2", "--intermediate-size=32", "--batch-size=16"]
    flags = ["--patience=1", "--eval-every=4", "--learning-rate=3e-3", *sizes]
    assert main(["train", "--data", str(small_data), "--output", str(tmp_path / "a"), *flags]) == 0
    assert main(["train", "--config", str(tmp_path / "a" / "run.yaml"), "--output", str(tmp_path / "b")]) == 0
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second
