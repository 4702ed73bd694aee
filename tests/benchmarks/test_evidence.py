"""The evidence study: its trainings, intervals, stored results, and a run from end to end."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from qacg_models.data import Example, load_data, sample_directory
from qacg_models.inference.trained_model import load_trained
from qacg_models.metrics.sentihood import SentiHoodMetrics
from qacg_models.runs.options import TrainingOptions
from untrained import OWN, TEXTS, write_model

from benchmarks.command import INTERRUPTED
from benchmarks.evidence import __main__ as program, study, training
from benchmarks.evidence.comparison import Draws
from benchmarks.evidence.results import Result, as_scores, load, store
from benchmarks.evidence.study import CONTESTANTS, DATA, Trial, chosen_settings, evaluated, every_trial, searches
from benchmarks.evidence.tables import NOT_YET, checks_table, settings_table
from benchmarks.evidence.training import gate_statistics


def row(value, seconds=60.0):
    return {"selected": {"value": value}, "seconds": seconds, "metrics": {}}


def test_every_model_has_the_same_number_of_settings():
    tries = {}
    for trial in searches():
        assert isinstance(trial.options, TrainingOptions)
        assert trial.is_search
        tries.setdefault(trial.contestant, set()).add(trial.setting)
    assert {len(settings) for settings in tries.values()} == {6}
    assert set(tries) == {name for name, one in CONTESTANTS.items() if one.settings_of is None}


def test_chosen_settings_are_shared_with_variants():
    dev = {trial.name: 0.5 for trial in searches() if trial.contestant == "qacg-bert"}
    best = Trial("sentihood", "qacg-bert", "documents", 0)
    last = Trial("sentihood", "qacg-bert", "released", 0)
    del dev[last.name]
    assert chosen_settings(dev | {best.name: 0.9}) == {}
    chosen = chosen_settings(dev | {best.name: 0.9, last.name: 0.1})
    assert chosen == {"qacg-bert": "documents", "lambda-0": "documents"}
    found = evaluated(chosen)
    assert {trial.seed for trial in found if trial.data == "sentihood"} == set(DATA["sentihood"].seeds)
    assert not any(trial.is_search for trial in found)
    assert len({trial.name for trial in found}) == len(found)
    # The variant differs from its model in one option only.
    one, other = (Trial("sentihood", name, "documents", 3).options for name in ("qacg-bert", "lambda-0"))
    assert dataclasses.replace(other, quasi_scale=None) == one
    assert other.quasi_scale == 0
    assert len(every_trial()) == 18 + 4 * (5 + 3) + 3 + 3 * 3
    quasi_options = {one.check: one.options.quasi_attention for one in found if one.check in study.HYPOTHESES}
    assert quasi_options == {
        "scale-8": {"quasi_scale": 8.0},
        "lambda-half": {"beta": 0.5, "gamma": 0.5},
        "lambda-sixteenth": {"beta": 0.9375, "gamma": 0.9375},
    }


def test_search_has_no_test_split(monkeypatch):
    monkeypatch.setitem(study.DATA, "sentihood", dataclasses.replace(DATA["sentihood"], format="auto"))
    folder = sample_directory()
    monkeypatch.setattr(training, "load_data", lambda path, *given: load_data(folder, *given))
    seen = [set(training.dataset_of(Trial("sentihood", "bert", "released", seed), folder).splits) for seed in (0, 1)]
    assert seen == [{"train", "dev"}, {"train", "dev", "test"}]


class Shares:
    """A metric with a known distribution: the share of correct examples."""

    def __init__(self, right):
        self.right = np.asarray(right, float)

    def __call__(self, weights):
        weights = np.ones(len(self.right)) if weights is None else weights
        return type("Found", (), {"right": float((self.right * weights).sum() / weights.sum())})


def test_intervals_match_the_theory():
    """For a share p of N sentences the deviation of the bootstrap is sqrt(p (1 - p) / N); for equal models it is 0."""
    generator = np.random.default_rng(5)
    one = generator.random(400) < 0.7
    draws = Draws({"one": [Shares(one)], "same": [Shares(one)], "none": [Shares(one * 0)]}, range(400), ["right"], 4000)
    same, all_ = draws.difference("one", "same", "right"), draws.difference("one", "none", "right")
    assert (same.mean, same.low, same.high, same.above) == (0, 0, 0, 0)
    share = one.mean()
    expected = 1.96 * np.sqrt(share * (1 - share) / 400)
    assert all_.mean == pytest.approx(share)
    assert all_.above == 1
    assert (all_.high - all_.low) / 2 == pytest.approx(expected, rel=0.1)
    # Examples of one sentence are drawn together: four equal ones per sentence give the interval of a quarter as many.
    of_four = Draws({"one": [Shares(one)], "none": [Shares(one * 0)]}, np.arange(400) // 4, ["right"], 4000)
    sorted_ = Draws({"one": [Shares(np.sort(one))], "none": [Shares(one * 0)]}, np.arange(400) // 4, ["right"], 4000)
    width = sorted_.difference("one", "none", "right")
    assert (width.high - width.low) / 2 == pytest.approx(2 * expected, rel=0.1)
    assert of_four.difference("one", "none", "right").mean == pytest.approx(share)


def test_intervals_include_the_seeds():
    """One seed is always correct, one never: the mean of two draws is 0, 1/2 or 1 with probability 1/4, 1/2 and 1/4."""
    draws = Draws({"two": [Shares([1] * 8), Shares([0] * 8)], "none": [Shares([0] * 8)]}, range(8), ["right"], 4000)
    found = draws.difference("two", "none", "right")
    assert (found.mean, found.low, found.high) == (0.5, 0, 1)
    assert found.above == pytest.approx(0.75, abs=0.03)
    assert draws.deviation("two", "right") == pytest.approx(np.std([0, 1], ddof=1))
    assert np.isnan(draws.deviation("none", "right"))


def test_results_are_stored_and_loaded(tmp_path):
    logits = np.random.default_rng(3).normal(scale=6, size=(300, 3))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    trial = Trial("sentihood", "bert", "released", 2)
    store(
        tmp_path,
        Result(trial, row(0.5), as_scores(probabilities), processor_seconds=30.0, gates=[{"lambda_mean": 0.5}]),
    )
    store(tmp_path, Result(search := searches()[0], row(0.25)))
    (tmp_path / f"{trial.name}-half.npy").write_bytes(b"")  # without metrics it is ignored
    found = load(tmp_path)
    assert set(found) == {trial.name, search.name}
    assert found[search.name].scores is None
    assert (found[trial.name].processor_seconds, found[search.name].processor_seconds) == (30.0, None)
    assert (found[trial.name].gates, found[search.name].gates) == ([{"lambda_mean": 0.5}], None)
    assert found[trial.name].trial == trial
    assert found[trial.name].dev == 0.5
    scores = found[trial.name].scores
    assert scores.shape == (300, 3)
    assert (scores.argmax(axis=1) == probabilities.argmax(axis=1)).all()
    assert np.abs(np.exp(scores.astype(float)) - probabilities).max() < 2e-3


def test_gate_statistics_of_a_uniform_map(tmp_path):
    """Without context projections every entry of the map is 1/2, and without gates lambda is 1 - (1/2 + 1/2)."""
    trained = load_trained(write_model(tmp_path / "m"))
    rows = [Example(str(n), text, name, "", name, 0, n) for n, (text, name) in enumerate(zip(TEXTS, OWN.aspects))]
    usual = gate_statistics(trained, rows)
    assert len(usual) == 2
    assert all(layer["deviation_over_keys"] > 0.01 for layer in usual)
    for layer in usual:
        quantiles = layer["lambda_quantiles"]
        assert sorted(quantiles) == quantiles
        assert -1 <= quantiles[0] < layer["lambda_mean"] < quantiles[-1] <= 1
    attentions = [layer.attention.self for layer in trained.model.bert.encoder.layer]
    with torch.no_grad():
        for attention in attentions:
            for parameter in attention.context_for_q.parameters():
                parameter.zero_()
    assert all(layer["deviation_over_keys"] == pytest.approx(0, abs=1e-6) for layer in gate_statistics(trained, rows))
    shutil.rmtree(tmp_path / "m")
    assert gate_statistics(load_trained(write_model(tmp_path / "m", fields={"quasi_scale": 0.0})), rows) is None
    assert gate_statistics(load_trained(write_model(tmp_path / "bert", kind="bert")), rows) is None


def test_settings_table_marks_missing_settings():
    first = searches()[0]
    table = settings_table({first.name: Result(first, row(0.753))})
    assert "75.3" in table
    assert NOT_YET in table
    assert "**" not in table


def test_checks_table_has_minutes_of_one_cpu():
    first = Trial("sentihood", "qacg-bert", "rate-1e-4", 1)
    others = [dataclasses.replace(first, check=name) for name in study.CHECKS]
    made = {one.name: Result(one, row(0.5)) for one in searches()}
    made["sentihood_qacg-bert_rate-1e-4_0"] = Result(searches()[0], row(0.6))
    for trial, name, seconds in zip((first, *others), ("A", "B", "B", "C"), (60.0, 120.0, 180.0, 240.0), strict=True):
        metrics = dict.fromkeys(SentiHoodMetrics.TITLES, 0.5)
        of = row(0.5) | {"metrics": {"test": metrics}, "machine": {"cpu": {"model": name}}}
        made[trial.name] = Result(trial, of, None, seconds)
    lines = checks_table(made).splitlines()
    assert [line.split(" | ")[-1] for line in lines[2:6]] == ["n/a |", "2.0 |", "3.0 |", "n/a |"]
    assert lines[-1].startswith("Minutes: the median of trainings on B without")


def kill_once(monkeypatch, name):
    """Makes the next call of a function of `training` raise KeyboardInterrupt."""
    original = getattr(training, name)

    def killed(*_):
        monkeypatch.setattr(training, name, original)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, name, killed)


@pytest.mark.full
def test_evidence_from_nothing_to_tables_and_figure(small_data, tmp_path, monkeypatch, capsys):
    """The whole study with tiny data and models; the second run trains nothing."""
    small = {"layers": 1, "hidden_size": 16, "heads": 2, "intermediate_size": 16, "max_steps": 2}
    of_trial = Trial.options.fget

    def options(trial):
        return dataclasses.replace(of_trial(trial), from_checkpoint=None, epochs=None, **small)

    monkeypatch.setattr(Trial, "options", property(options))
    monkeypatch.setattr(study, "TRIED_ON", "sentihood")
    for settings, kept_ones in ((study.SETTINGS, 1), (study.CONTEXT_SETTINGS, 1), (study.PLAIN_SETTINGS, 0)):
        for name in list(settings)[kept_ones:]:
            monkeypatch.delitem(settings, name)
    monkeypatch.setattr(study, "HYPOTHESIS_SEEDS", (1,))
    one = dataclasses.replace(DATA["sentihood"], format="auto", seeds=(1,))
    for name in [*DATA]:
        monkeypatch.delitem(study.DATA, name)
    monkeypatch.setitem(study.DATA, "sentihood", one)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sentihood").symlink_to(small_data, target_is_directory=True)
    arguments = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]

    # Killed after a model is published but not loaded, and before its result is stored.
    for name in ("load_trained", "store"):
        kill_once(monkeypatch, name)
        assert program.main(arguments) == INTERRUPTED
        assert "--out has the records so far; the same command resumes" in capsys.readouterr().out
    assert program.main(arguments) == 0
    printed = capsys.readouterr().out
    assert len(every_trial()) == 5 + 4 + 3 + 3
    assert "15 of 15" in printed
    assert NOT_YET not in printed.split("### Settings")[-1]
    results = load(tmp_path / "out")
    resumed = [one.trial for one in results.values() if one.processor_seconds is None]
    assert resumed == searches()[:1]
    assert not list((tmp_path / "out" / program.UNFINISHED).iterdir())
    text = (tmp_path / "out" / "evidence.md").read_text()
    assert text.count("**") == 2 * 3
    assert "QACG-BERT, lambda 0" in text
    assert "TF-IDF" in text
    weights = text.split("### Weight of the quasi-attention map")[1].split("###")[0]
    assert [line.split(" | ")[0] for line in weights.splitlines() if "| 1 |" in line] == [
        "| no quasi-attention map",
        "| as published",
        "| quasi-attention map times 8",
        "| lambda from 1/2",
        "| lambda from 1/16",
    ]
    assert weights.count("| as published | ") == 1 + 4
    assert "QACG-BERT, lambda from 1/2" in text
    picture = (tmp_path / "out" / "evidence.svg").read_text()
    assert picture.startswith("<?xml")
    monkeypatch.setattr(training, "train_seeds", None)
    assert program.main(arguments) == 0
    assert (tmp_path / "out" / "evidence.md").read_text() == text, "the draws must have a seed"
    assert (tmp_path / "out" / "evidence.svg").read_text() == picture


def test_evidence_with_unknown_trial_or_no_data(tmp_path, capsys):
    arguments = ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert program.main([*arguments, "--only", "nothing"]) == 1
    assert "--only: expected one of sentihood_bert_rate-2e-4_0" in capsys.readouterr().err
    store(tmp_path / "out", Result(searches()[0], row(1)))
    assert program.main([*arguments, "--table"]) == 0, "searches need no data"
    assert "1 of 62" in capsys.readouterr().out
