"""The evidence: which trainings there are and in what order, intervals, what is kept, and a run from end to end."""

import dataclasses
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from qacg_models.data import Example, load_data, sample_directory
from qacg_models.inference.trained_model import load_trained
from qacg_models.metrics.sentihood import SentiHoodMetrics
from qacg_models.runs.options import TrainingOptions
from untrained import OWN, TEXTS, write_model

from benchmarks.cli.options import INTERRUPTED
from benchmarks.evidence import __main__ as program, jobs, plan, trials
from benchmarks.evidence.gates import gates_of
from benchmarks.evidence.intervals import Draws
from benchmarks.evidence.plan import CONTESTANTS, DATA, Trial, chosen_settings, every_trial, judged, searches
from benchmarks.evidence.results import Result, as_scores, keep, kept
from benchmarks.evidence.tables import NOT_YET, of_checks, of_settings


def row(value, seconds=60.0):
    return {"selected": {"value": value}, "seconds": seconds, "metrics": {}}


def test_every_model_has_as_many_tries_and_all_options_fit():
    tries = {}
    for trial in searches():
        assert isinstance(trial.options, TrainingOptions) and trial.is_search
        tries.setdefault(trial.contestant, set()).add(trial.setting)
    assert {len(settings) for settings in tries.values()} == {6}
    assert set(tries) == {name for name, told in CONTESTANTS.items() if told.settings_of is None}


def test_a_setting_is_chosen_once_all_are_tried_and_a_variant_takes_that_of_its_model():
    dev = {trial.name: 0.5 for trial in searches() if trial.contestant == "qacg-bert"}
    best = Trial("sentihood", "qacg-bert", "documents", 0)
    last = Trial("sentihood", "qacg-bert", "released", 0)
    del dev[last.name]
    assert chosen_settings(dev | {best.name: 0.9}) == {}
    chosen = chosen_settings(dev | {best.name: 0.9, last.name: 0.1})
    assert chosen == {"qacg-bert": "documents", "lambda-0": "documents"}
    found = judged(chosen)
    assert {trial.seed for trial in found if trial.data == "sentihood"} == set(DATA["sentihood"].seeds)
    assert not any(trial.is_search for trial in found) and len({trial.name for trial in found}) == len(found)
    # The variant differs from its model in the one point.
    one, other = (Trial("sentihood", name, "documents", 3).options for name in ("qacg-bert", "lambda-0"))
    assert dataclasses.replace(other, quasi_scale=None) == one and other.quasi_scale == 0
    assert len(every_trial()) == 18 + 4 * (5 + 3) + 3 + 3 * 3
    let_in = {one.check: one.options.quasi_attention for one in found if one.check in plan.HYPOTHESES}
    assert let_in == {
        "scale-8": {"quasi_scale": 8.0},
        "lambda-half": {"beta": 0.5, "gamma": 0.5},
        "lambda-sixteenth": {"beta": 0.9375, "gamma": 0.9375},
    }


def test_a_search_never_sees_the_test_split(monkeypatch):
    monkeypatch.setitem(plan.DATA, "sentihood", dataclasses.replace(DATA["sentihood"], format="auto"))
    folder = sample_directory()
    monkeypatch.setattr(trials, "load_data", lambda path, *given: load_data(folder, *given))
    seen = [set(trials.data_of(Trial("sentihood", "bert", "released", seed), folder).splits) for seed in (0, 1)]
    assert seen == [{"train", "dev"}, {"train", "dev", "test"}]


class Shares:
    """A metric whose distribution is known: the share of rows that are right."""

    def __init__(self, right):
        self.right = np.asarray(right, float)

    def __call__(self, weights):
        weights = np.ones(len(self.right)) if weights is None else weights
        return type("Found", (), {"right": float((self.right * weights).sum() / weights.sum())})


def test_intervals_are_those_of_the_theory():
    """Of a share p of N sentences the bootstrap's deviation is sqrt(p (1 - p) / N); of equal ones it is 0."""
    generator = np.random.default_rng(5)
    one = generator.random(400) < 0.7
    draws = Draws({"one": [Shares(one)], "same": [Shares(one)], "none": [Shares(one * 0)]}, range(400), ["right"], 4000)
    same, all_ = draws.difference("one", "same", "right"), draws.difference("one", "none", "right")
    assert (same.mean, same.low, same.high, same.above) == (0, 0, 0, 0)
    share = one.mean()
    wanted = 1.96 * np.sqrt(share * (1 - share) / 400)
    assert all_.mean == pytest.approx(share) and all_.above == 1
    assert (all_.high - all_.low) / 2 == pytest.approx(wanted, rel=0.1)
    # Rows of one sentence are drawn together: with four alike in each, the interval is that of a quarter of the rows.
    of_four = Draws({"one": [Shares(one)], "none": [Shares(one * 0)]}, np.arange(400) // 4, ["right"], 4000)
    sorted_ = Draws({"one": [Shares(np.sort(one))], "none": [Shares(one * 0)]}, np.arange(400) // 4, ["right"], 4000)
    width = sorted_.difference("one", "none", "right")
    assert (width.high - width.low) / 2 == pytest.approx(2 * wanted, rel=0.1)
    assert of_four.difference("one", "none", "right").mean == pytest.approx(share)


def test_seeds_are_part_of_the_interval():
    """Two seeds, right everywhere and nowhere: a mean over two drawn ones is 0, 1/2 and 1 with 1/4, 1/2 and 1/4."""
    draws = Draws({"two": [Shares([1] * 8), Shares([0] * 8)], "none": [Shares([0] * 8)]}, range(8), ["right"], 4000)
    found = draws.difference("two", "none", "right")
    assert (found.mean, found.low, found.high) == (0.5, 0, 1) and found.above == pytest.approx(0.75, abs=0.03)
    assert draws.deviation("two", "right") == pytest.approx(np.std([0, 1], ddof=1))
    assert np.isnan(draws.deviation("none", "right"))


def test_what_is_kept_comes_back_and_ranks_as_it_did(tmp_path):
    logits = np.random.default_rng(3).normal(scale=6, size=(300, 3))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    trial = Trial("sentihood", "bert", "released", 2)
    keep(
        tmp_path,
        Result(trial, row(0.5), as_scores(probabilities), processor_seconds=30.0, gates=[{"lambda_mean": 0.5}]),
    )
    keep(tmp_path, Result(search := searches()[0], row(0.25)))
    (tmp_path / f"{trial.name}-half.npy").write_bytes(b"")  # without figures it is not there
    found = kept(tmp_path)
    assert set(found) == {trial.name, search.name} and found[search.name].scores is None
    assert (found[trial.name].processor_seconds, found[search.name].processor_seconds) == (30.0, None)
    assert (found[trial.name].gates, found[search.name].gates) == ([{"lambda_mean": 0.5}], None)
    assert found[trial.name].trial == trial and found[trial.name].dev == 0.5
    scores = found[trial.name].scores
    assert scores.shape == (300, 3) and (scores.argmax(axis=1) == probabilities.argmax(axis=1)).all()
    assert np.abs(np.exp(scores.astype(float)) - probabilities).max() < 2e-3


def test_what_is_left_counts_passes_over_the_data():
    """18 tries of 2 passes took a minute each, so 44 trainings of 4 passes take two minutes each."""
    assert program.seconds_left({one.name: Result(one, row(0.5)) for one in searches()}) == 44 * 120


def test_gates_that_are_shut_and_a_map_that_tells_no_keys_apart(tmp_path):
    """Without context projections every cell of the map is 1/2, and without gates lambda is 1 - (1/2 + 1/2)."""
    trained = load_trained(write_model(tmp_path / "m"))
    rows = [Example(str(n), text, name, "", name, 0, n) for n, (text, name) in enumerate(zip(TEXTS, OWN.aspects))]
    usual = gates_of(trained, rows)
    assert len(usual) == 2 and all(layer["deviation_over_keys"] > 0.01 for layer in usual)
    for layer in usual:
        quantiles = layer["lambda_quantiles"]
        assert sorted(quantiles) == quantiles and -1 <= quantiles[0] < layer["lambda_mean"] < quantiles[-1] <= 1
    attentions = [layer.attention.self for layer in trained.model.bert.encoder.layer]
    with torch.no_grad():
        for attention in attentions:
            for parameter in attention.context_for_q.parameters():
                parameter.zero_()
    assert all(layer["deviation_over_keys"] == pytest.approx(0, abs=1e-6) for layer in gates_of(trained, rows))
    shutil.rmtree(tmp_path / "m")
    assert gates_of(load_trained(write_model(tmp_path / "m", fields={"quasi_scale": 0.0})), rows) is None
    assert gates_of(load_trained(write_model(tmp_path / "bert", kind="bert")), rows) is None


def test_settings_not_tried_are_said_to_be_so():
    first = searches()[0]
    table = of_settings({first.name: Result(first, row(0.753))})
    assert "75.3" in table and NOT_YET in table and "**" not in table


def test_minutes_are_of_one_processor_alone():
    first = Trial("sentihood", "qacg-bert", "rate-1e-4", 1)
    others = [dataclasses.replace(first, check=name) for name in plan.CHECKS]
    made = {one.name: Result(one, row(0.5)) for one in searches()}
    made["sentihood_qacg-bert_rate-1e-4_0"] = Result(searches()[0], row(0.6))
    for trial, name, seconds in zip((first, *others), ("A", "B", "B", "C"), (60.0, 120.0, 180.0, 240.0), strict=True):
        metrics = dict.fromkeys(SentiHoodMetrics.TITLES, 0.5)
        of = row(0.5) | {"metrics": {"test": metrics}, "machine": {"cpu": {"model": name}}}
        made[trial.name] = Result(trial, of, None, seconds)
    lines = of_checks(made).splitlines()
    assert [line.split(" | ")[-1] for line in lines[2:6]] == ["n/a |", "2.0 |", "3.0 |", "n/a |"]
    assert lines[-1].startswith("Minutes: the median of trainings on B that")


def test_jobs_end_in_order_and_a_failure_says_its_last_line(tmp_path):
    waiting, ended = [Trial("sentihood", "bert", "released", seed) for seed in range(4)], []

    def next_one(busy):
        busy = set(busy)
        return next((trial for trial in waiting if trial.name not in busy and trial not in ended), None)

    code = "import time; print('said'); time.sleep(0.2)"
    assert jobs.run(
        next_one, lambda trial: [sys.executable, "-c", code], tmp_path, at_once=2, seconds=None, ended=ended.append
    )
    assert sorted(ended, key=lambda one: one.seed) == waiting
    ended.clear()
    slow = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"  # as in the background
    assert not jobs.run(
        next_one, lambda trial: [sys.executable, "-c", slow], tmp_path, at_once=2, seconds=0.5, ended=ended.append
    )
    assert not ended, "those under way were ended"
    failing = "import sys; print('first'); sys.exit('no weights')"
    with pytest.raises(jobs.Failed, match=r"sentihood_bert_released_0: no weights \("):
        jobs.run(
            next_one,
            lambda trial: [sys.executable, "-c", failing],
            tmp_path,
            at_once=1,
            seconds=None,
            ended=ended.append,
        )


def test_trainings_end_with_the_process_that_began_them(tmp_path):
    code = (
        "import sys; from pathlib import Path; from benchmarks.evidence import jobs; "
        "from benchmarks.evidence.plan import Trial; "
        "trial = Trial('sentihood', 'bert', 'released', 1); "
        "child = [sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(600)']; "
        "jobs.run(lambda busy: None if set(busy) else trial, lambda trial: child, Path(sys.argv[1]), at_once=1, "
        "seconds=None, ended=print)"
    )
    log = tmp_path / "sentihood_bert_released_1.log.txt"
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_text().endswith("\n")) and time.monotonic() < deadline:
            time.sleep(0.05)
        child = int(log.read_text())
        parent.terminate()
        assert parent.wait(60) != 0
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
    finally:
        parent.kill()


def kill_once(monkeypatch, name):
    through = getattr(trials, name)

    def killed(*_):
        monkeypatch.setattr(trials, name, through)
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, name, killed)


@pytest.mark.full
def test_from_nothing_to_tables_and_a_picture(small_data, tmp_path, monkeypatch, capsys):
    """All of it, with data and models so small that only the way is tested; the second time nothing is trained."""
    small = {"layers": 1, "hidden_size": 16, "heads": 2, "intermediate_size": 16, "max_steps": 2}
    of_trial = Trial.options.fget

    def options(trial):
        return dataclasses.replace(of_trial(trial), from_checkpoint=None, epochs=None, **small)

    monkeypatch.setattr(Trial, "options", property(options))
    monkeypatch.setattr(plan, "TRIED_ON", "sentihood")
    for settings, kept_ones in ((plan.SETTINGS, 1), (plan.CONTEXT_SETTINGS, 1), (plan.PLAIN_SETTINGS, 0)):
        for name in list(settings)[kept_ones:]:
            monkeypatch.delitem(settings, name)
    monkeypatch.setattr(plan, "HYPOTHESIS_SEEDS", (1,))
    one = dataclasses.replace(DATA["sentihood"], format="auto", seeds=(1,))
    for name in [*DATA]:
        monkeypatch.delitem(plan.DATA, name)
    monkeypatch.setitem(plan.DATA, "sentihood", one)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sentihood").symlink_to(small_data, target_is_directory=True)
    arguments = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]

    def in_this_process(waiting, command, logs, *, ended, **_):
        while (trial := waiting(())) is not None:
            if (code := program.main(command(trial)[4:])) == INTERRUPTED:
                raise KeyboardInterrupt
            assert code == 0
            ended(trial)
        return True

    monkeypatch.setattr(jobs, "run", in_this_process)
    # Once a model is in its place and not yet looked at; once its result is not yet kept.
    for name in ("load_trained", "keep"):
        kill_once(monkeypatch, name)
        assert program.main(arguments) == INTERRUPTED
    assert program.main(arguments) == 0
    said = capsys.readouterr().out
    assert (
        len(every_trial()) == 5 + 4 + 3 + 3
        and "15 of 15" in said
        and "about 0.0 h left" in said
        and NOT_YET not in said.split("### Settings")[1]
    )
    results = kept(tmp_path / "out")
    gone_on_with = [one.trial for one in results.values() if one.processor_seconds is None]
    assert gone_on_with == searches()[:1] and not list((tmp_path / "out" / program.UNFINISHED).iterdir())
    text = (tmp_path / "out" / "evidence.md").read_text()
    assert text.count("**") == 2 * 3 and "QACG-BERT, lambda 0" in text and "TF-IDF" in text
    let_in = text.split("### By how the second map is let in")[1].split("###")[0]
    assert [line.split(" | ")[0] for line in let_in.splitlines() if "| 1 |" in line] == [
        "| no second map",
        "| as published",
        "| second map times 8",
        "| lambda from 1/2",
        "| lambda from 1/16",
    ]
    assert let_in.count("| as published | ") == 1 + 4, "each of the others stands beside the published one"
    assert "QACG-BERT, lambda from 1/2" in text
    picture = (tmp_path / "out" / "evidence.svg").read_text()
    assert picture.startswith("<?xml")
    monkeypatch.setattr(trials, "train_seeds", None)
    assert program.main(arguments) == 0
    assert (tmp_path / "out" / "evidence.md").read_text() == text, "the draws have a seed"
    assert (tmp_path / "out" / "evidence.svg").read_text() == picture


def test_what_is_not_there_is_told_in_a_line(tmp_path, capsys):
    arguments = ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert program.main([*arguments, "--only", "nothing"]) == 1
    assert "--only: got 'nothing', wanted one of sentihood_bert_rate-2e-4_0" in capsys.readouterr().err
    keep(tmp_path / "out", Result(searches()[0], row(1)))
    assert program.main([*arguments, "--table"]) == 0, "searches alone need no data"
    assert "1 of 62" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        program.main([*arguments, "--jobs", "0"])
