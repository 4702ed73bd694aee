"""Training without a number of steps: when it ends, which weights are evaluated, and resuming after a kill."""

import math
from dataclasses import replace

import pytest
import torch
from interrupted_runs import assert_same_run, interrupted
from model_sizes import SMALL, SMALL_FLAGS
from qacg_models import training
from qacg_models.cli import main
from qacg_models.errors import InputError
from qacg_models.reporting.tables import selection_note
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.recipes import RECIPES
from qacg_models.training.averaging import POWER, WeightAverage
from qacg_models.training.callbacks import EvaluationMetrics
from qacg_models.training.resolve_options import resolve_options
from qacg_models.training.run import plan
from qacg_models.training.trainer import AspectTrainer

OPEN = TrainingOptions(**SMALL, batch_size=16, learning_rate=3e-3, eval_every=5, patience=2, checkpoint_every=7)


def set_dev_results(monkeypatch, *values, losses=()):
    """Makes the evaluations on dev return these metrics and losses, one after another."""
    metrics, dev_losses = iter(values), iter(losses)
    watched = {"predicted_classes": 3, "most_predicted": 0}
    plain = AspectTrainer.evaluation_loop

    def judged(self, prediction):
        return {"strict_accuracy": next(metrics), **watched}

    def loop(self, *args, **kwargs):
        output = plain(self, *args, **kwargs)
        if losses:
            output.metrics["eval_loss"] = next(dev_losses)
        return output

    monkeypatch.setattr(EvaluationMetrics, "__call__", judged)
    monkeypatch.setattr(AspectTrainer, "evaluation_loop", loop)


def trained(dataset, folder, options=OPEN, **more):
    return training.train(dataset, folder, options, **{"say": lambda line: None} | more)


def test_resolve_options_defaults_have_no_step_limit(dataset):
    chosen = resolve_options(TrainingOptions(), dataset)
    assert (chosen.schedule, chosen.minutes, chosen.epochs, chosen.max_steps) == ("steady", 60, None, None)
    assert chosen.eval_every == 50 and chosen.patience == RECIPES["scratch"]["patience"]
    # 40,000 rows are 625 steps an epoch, and half an epoch lies between evaluations; of 500,000 rows, 500 steps.
    for times, expected in ((167, 313), (2084, 500)):
        large = replace(dataset, splits={"train": [*dataset.splits["train"]] * times})
        assert resolve_options(TrainingOptions(), large).eval_every == expected
    assert "while dev improves, at most 60 minutes (--minutes), until 20 evaluations in a row are no better" in plan(
        chosen, 240, "dev"
    )


def test_plan_without_patience_names_the_time_limit_only(dataset):
    chosen = resolve_options(TrainingOptions(patience=0, minutes=5), dataset)
    assert plan(chosen, 240, "dev").startswith("training: at most 5 minutes (--minutes); dev")


@pytest.mark.parametrize("eval_every", [None, 3, 50])
def test_selection_note_of_one_evaluation_names_the_last_step(dataset, tmp_path, eval_every):
    options = replace(OPEN, patience=None, eval_every=eval_every, max_steps=3)
    record = trained(dataset, tmp_path / "m", options).record
    value = f"{record.selected.value:.1%}"
    assert (
        selection_note(record)
        == f"weights of the last step, 3, without checkpoint selection (strict accuracy on dev: {value})"
    )
    card = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    assert "rows of test. Weights of the last step, 3, without checkpoint selection.\n" in card


def test_resolve_options_given_epochs_are_kept(dataset):
    chosen = resolve_options(TrainingOptions(epochs=3), dataset)
    assert (chosen.schedule, chosen.minutes, chosen.patience, chosen.eval_every) == ("linear", 0, 0, 0)
    assert plan(chosen, 240, "dev") == "training: 12 steps; dev is evaluated once per epoch"
    assert resolve_options(TrainingOptions(protocol="released"), dataset).epochs == 30
    with_both = resolve_options(TrainingOptions(epochs=3, minutes=5), dataset)
    assert plan(with_both, 240, "dev").startswith("training: 12 steps, at most 5 minutes (--minutes);")


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"schedule": "linear"}, "schedule: expected epochs or max_steps with 'linear'"),
        (
            {"schedule": "steady", "protocol": "released"},
            "schedule: expected 'linear' or none",
        ),
        ({"minutes": -1.0}, "minutes: expected a finite number of at least 0, got -1"),
        ({"minutes": math.nan}, "minutes: expected a finite number of at least 0, got nan"),
        (
            {"fsdp": True},
            "fsdp: expected epochs or max_steps, and another schedule than 'steady', got epochs=None, max_steps=None,",
        ),
        ({"minutes": 0.0, "patience": 0}, "patience, minutes: expected at least one above 0, got 0 for both"),
    ],
)
def test_resolve_options_contradictory_options_raise(dataset, change, reason):
    with pytest.raises(InputError, match=reason):
        resolve_options(replace(TrainingOptions(), **change), dataset)


def test_train_stops_when_dev_stops_improving(dataset, tmp_path, monkeypatch):
    set_dev_results(monkeypatch, 0.1, 0.2, 0.15, 0.3, 0.4, 0.35, 0.4, losses=(1, 1, 1, 1, 1, 1, 1))
    record = trained(dataset, tmp_path / "m").record
    assert (record.steps, record.selected.step, record.ended) == (35, 25, "patience")
    assert record.options.epochs is None and record.options.schedule == "steady", "the run can be repeated"
    assert "the last one" not in selection_note(record)


def test_selection_note_of_one_epoch_names_the_last_step(dataset, tmp_path):
    options = replace(OPEN, patience=None, eval_every=0, epochs=1)
    note = selection_note(trained(dataset, tmp_path / "m", options).record)
    assert note.startswith("weights of the last step, 15, without checkpoint selection")


def test_selection_note_of_a_run_cut_short_names_no_selection(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(AspectTrainer, "seconds", lambda self: 10.0 * self.state.global_step)
    options = replace(OPEN, patience=None, eval_every=0, epochs=10, minutes=0.5)
    record = trained(dataset, tmp_path / "m", options).record
    assert (record.ended, record.evaluations) == ("minutes", 1)
    assert selection_note(record).startswith("weights of the last step, 3, without checkpoint selection")


def test_resume_counts_the_evaluations_before_the_kill(dataset, tmp_path):
    options = replace(OPEN, patience=None, max_steps=10)
    with interrupted(AspectTrainer, "_save_checkpoint", after=True):
        trained(dataset, tmp_path / "m", options)
    record = trained(dataset, tmp_path / "m", options, resume=True).record
    assert (record.evaluations, record.has_selection) == (2, True)


def test_selection_note_of_a_perfect_checkpoint_has_no_advice(dataset, tmp_path, monkeypatch):
    set_dev_results(monkeypatch, 0.9, 1, losses=(1.0, 0.9))
    record = trained(dataset, tmp_path / "m", replace(OPEN, max_steps=10)).record
    assert selection_note(record) == "checkpoint of step 10 of 10, selected by strict accuracy on dev (100.0%)"


@pytest.mark.full
def test_equal_metrics_keep_the_lower_loss(dataset, tmp_path, monkeypatch):
    """If the metric on dev is 100 %, a falling loss must not extend training to its time limit."""
    set_dev_results(monkeypatch, 0.9, 1, 1, 1, 1, 1, losses=(1.0, 0.9, 0.8, 0.85, 0.7, 0.6))
    record = trained(dataset, tmp_path / "m", replace(OPEN, patience=3)).record
    assert (record.steps, record.selected.step, record.selected.value) == (25, 25, 1)
    assert "the last one" not in selection_note(record), "it is the last one, but dev did not improve"


def test_train_prints_and_keeps_the_time_limit(dataset, tmp_path, monkeypatch):
    printed = []
    monkeypatch.setattr(AspectTrainer, "seconds", lambda self: 10.0 * self.state.global_step)
    options = replace(OPEN, minutes=2, patience=0)
    record = trained(dataset, tmp_path / "m", options, say=printed.append).record
    assert any("at most 2 minutes (--minutes)" in line for line in printed)
    assert (record.steps, record.ended) == (12, "minutes"), (
        "evaluated after its last step, between two regular evaluations"
    )
    set_dev_results(monkeypatch, 0.1, 0.2, 0.3)
    record = trained(dataset, tmp_path / "n", options).record
    assert record.selected.step == 12
    assert "dev was still improving when the time limit was reached" in selection_note(record)


def test_weight_average_is_evaluated_and_kept(dataset, tmp_path, monkeypatch):
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
    assert not torch.allclose(passed[-1], average, atol=1e-4), "training continues from its own weights"
    kept = done.model.state_dict()["classifier.weight"]
    assert torch.equal(kept, judged[done.record.selected.step]) and set(judged) == {5, 10}


@pytest.mark.parametrize("call", [2, 3])
@pytest.mark.full
def test_resume_of_an_open_run_gives_the_same_model(dataset, tmp_path, call):
    """The run is killed before its second or third checkpoint; the averaged weights and counts must be restored."""
    options = replace(OPEN, patience=4, max_steps=40, schedule="steady")
    whole = trained(dataset, tmp_path / "whole", options)
    with interrupted(AspectTrainer, "_save_checkpoint", call):
        trained(dataset, tmp_path / "m", options)
    printed = []
    # A resumed run accepts more minutes, but no other change of options.
    again = trained(dataset, tmp_path / "m", replace(options, minutes=90), resume=True, say=printed.append)
    assert f"resuming from checkpoint-{7 * (call - 1)}" in printed
    assert_same_run(again, whole)


@pytest.mark.full
def test_resume_counts_the_minutes_before_the_kill(dataset, tmp_path, monkeypatch):
    options = replace(OPEN, minutes=2, patience=0)
    monkeypatch.setattr(AspectTrainer, "seconds", lambda self: self.seconds_before + 10.0 * self.state.global_step)
    with interrupted(AspectTrainer, "_save_checkpoint", after=True):
        trained(dataset, tmp_path / "m", options)
    monkeypatch.setattr(
        AspectTrainer, "seconds", lambda self: self.seconds_before + 10.0 * (self.state.global_step - 7)
    )
    record = trained(dataset, tmp_path / "m", options, resume=True).record
    assert (record.steps, record.seconds, record.ended) == (12, 120, "minutes")


@pytest.mark.full
def test_train_from_a_run_file_repeats_an_open_run(small_data, tmp_path):
    flags = [*SMALL_FLAGS, "--batch-size=16", "--set=patience=1", "--set=eval_every=4", "--learning-rate=3e-3"]
    assert main(["train", "--data", str(small_data), "--output", str(tmp_path / "a"), *flags]) == 0
    assert main(["train", "--config", str(tmp_path / "a" / "run.yaml"), "--output", str(tmp_path / "b")]) == 0
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second
