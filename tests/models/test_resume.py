"""A killed run resumes from its newest checkpoint and gives the same model as an uninterrupted one."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from errors import raises
from kill_and_resume import OPTIONS
from qacg_models.data import load_data
from qacg_models.inference.trained_model import load_trained
from qacg_models.training import run, train, train_seeds
from qacg_models.training.run_folder import RunFolder, RunState, publish
from qacg_models.training.trainer import AspectTrainer
from qacg_models.utils import output_lock
from qacg_models.utils.atomic_files import remove_folder

TRAINS = Path(__file__).parents[1] / "support" / "kill_and_resume.py"


@pytest.fixture(scope="module")
def dataset(small_data):
    return load_data(small_data)


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    return train(dataset, tmp_path_factory.mktemp("whole") / "model", OPTIONS)


def same_end(trained, undisturbed):
    weights, truth = trained.model.state_dict(), undisturbed.model.state_dict()
    assert all(torch.equal(weights[name], truth[name]) for name in truth)
    found, expected = trained.record.to_json(), undisturbed.record.to_json()
    for part in ("metrics", "selected", "steps", "loss"):
        assert found[part] == expected[part], part
    assert trained.tokenizer.backend_tokenizer.to_str() == undisturbed.tokenizer.backend_tokenizer.to_str()


@pytest.mark.full
def test_resume_after_sigkill_within_an_epoch(small_data, tmp_path, undisturbed):
    output, work = tmp_path / "model", tmp_path / "model.unfinished"
    process = subprocess.Popen(
        [sys.executable, str(TRAINS), str(small_data), str(output)],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 900
    # An epoch has 15 steps, so the checkpoints of steps 7, 14, 21 lie inside one.
    while len(RunFolder(output).checkpoints()) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not output.exists()
    newest = RunFolder(output).checkpoints()[-1]
    before = json.loads((newest / "trainer_state.json").read_text())["global_step"]
    assert before % 15 and before >= 14
    seconds = RunState.read(newest).seconds

    printed = []
    trained = train(load_data(small_data), output, OPTIONS, resume=True, say=printed.append)
    assert f"resuming from checkpoint-{before}" in printed
    assert not work.exists()
    same_end(trained, undisturbed)
    assert trained.record.seconds > seconds > 0, "the time before the kill is included"


class Died(BaseException):
    """No code catches this exception by mistake."""


def die_at(monkeypatch, owner, name, call, *, after=False):
    """Makes the `call`-th call of a method raise `Died`, before or after it runs."""
    plain, count = getattr(owner, name), 0

    def dying(*args, **kwargs):
        nonlocal count
        count += 1
        if count == call and not after:
            raise Died
        result = plain(*args, **kwargs)
        if count == call:
            raise Died
        return result

    monkeypatch.setattr(owner, name, dying)


@pytest.mark.parametrize("writer", ["_save_rng_state", "save_model"])
@pytest.mark.full
def test_resume_ignores_a_half_written_checkpoint(dataset, tmp_path, monkeypatch, undisturbed, writer):
    with monkeypatch.context() as dying:
        die_at(dying, AspectTrainer, writer, 4, after=True)
        with pytest.raises(Died):
            train(dataset, tmp_path / "model", OPTIONS)
    work = tmp_path / "model.unfinished"
    assert any((work / ".writing").iterdir())
    assert len(RunFolder(tmp_path / "model").checkpoints()) == OPTIONS.keep_checkpoints
    same_end(train(dataset, tmp_path / "model", OPTIONS, resume=True), undisturbed)


@pytest.mark.full
def test_unfinished_run_requires_equal_options_and_data(dataset, small_data, tmp_path, monkeypatch):
    output, work, options = tmp_path / "model", tmp_path / "model.unfinished", replace(OPTIONS, keep_checkpoints=3)
    with monkeypatch.context() as dying:
        die_at(dying, AspectTrainer, "_save_checkpoint", 5)
        with pytest.raises(Died):
            train(dataset, output, options)
    names = {path.name for path in work.iterdir() if not path.name.startswith(".")}
    best = {name for name in names if name.startswith("best-")}
    kept = {"choices.json", "features-train", "features-dev"}
    assert names - best == kept | {"checkpoint-14", "checkpoint-21", "checkpoint-28"}, "the newest are kept"
    # The last evaluation had an equal metric and a lower loss; the run died before a checkpoint named it.
    assert best == {"best-20", "best-30"}

    with raises("InputError: is an unfinished run. Continue it with --resume"):
        train(dataset, output, options)
    with raises("InputError: training learning_rate: expected 0.003, as at its start, got 0.1"):
        train(dataset, output, replace(options, learning_rate=0.1), resume=True)
    changed = tmp_path / "changed"
    changed.mkdir()
    for split in ("train", "dev", "test"):
        text = (small_data / f"{split}.tsv").read_text(encoding="utf-8")
        (changed / f"{split}.tsv").write_text(text + ("\n" if split == "dev" else ""), encoding="utf-8")
    with raises("InputError: files dev: expected"):
        train(load_data(changed), output, options, resume=True)
    kept = (work / "choices.json").read_bytes()
    for content, wrong in (
        (b"{", r"is not JSON .*"),
        (b"[" * 100_000, r"is not JSON .*nested too deep.*"),
        (b"[]", r"expected an object, got \[\]"),
        (kept.replace(b'"data": {', b'"data": 3, "x": {'), r"choices\.data: expected an object, got 3"),
        (kept.replace(b'"processes": 1', b'"processes": "1"'), r"processes: expected an integer, got '1'"),
    ):
        (work / "choices.json").write_bytes(content)
        with raises(f"InputError: choices.json: {wrong}. Start over with --overwrite"):
            train(dataset, output, options, resume=True)
    (work / "choices.json").write_bytes(kept.replace(b'"format": 1', b'"format": 99'))
    with raises("InputError: choices.json: format: expected 1, got 99, of another version"):
        train(dataset, output, options, resume=True)
    (work / "choices.json").write_bytes(kept)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(run, "join_group", lambda: None)
    for module in (run, output_lock):
        monkeypatch.setattr(module, "run_on_main", lambda action: action())
    with raises("InputError: expected 1 process, as at its start, got 2. Resume it without torchrun"):
        train(dataset, output, options, resume=True)
    monkeypatch.delenv("WORLD_SIZE")
    (work / "choices.json").write_bytes(kept.replace(b'"processes": 1', b'"processes": 2'))
    with raises("InputError: expected 2 processes, as at its start, got 1. Resume it with ... 2,"):
        train(dataset, output, options, resume=True)
    short = replace(options, max_steps=2)
    train(dataset, output, short, overwrite=True)
    assert load_trained(output).record.steps == 2 and not work.exists()
    printed = []
    train(dataset, tmp_path / "other", short, resume=True, say=printed.append)
    assert "there is no unfinished run; starting a new one" in printed


def test_failure_before_the_first_checkpoint_leaves_nothing(dataset, tmp_path, monkeypatch):
    die_at(monkeypatch, AspectTrainer, "_determine_best_metric", 1)
    with pytest.raises(Died):
        train(dataset, tmp_path / "model", replace(OPTIONS, eval_every=2, checkpoint_every=1000))
    assert not list(tmp_path.iterdir())


def test_publish_and_remove_folder_are_atomic(tmp_path):
    written, name = tmp_path / "written", tmp_path / "name"
    for text in ("old", "new"):
        written.mkdir()
        (written / "file").write_text(text)
        publish(written, name)
        assert (name / "file").read_text() == text
    remove_folder(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_train_seeds_ignores_leftovers_of_a_kill(dataset, tmp_path):
    output, short = tmp_path / "seeds", replace(OPTIONS, max_steps=2)
    train_seeds(dataset, output, short, [0, 1])
    names = sorted(path.name for path in output.iterdir())
    (output / ".seeds.json.x1_y2z3a").mkdir()
    (output / ".run.yaml.123").write_text("")
    (output / ".deleting-seed-1.unfinished").mkdir()
    (output / ".deleting-seed-1.unfinished" / "checkpoint-1").mkdir()
    train_seeds(dataset, output, short, [0, 1], resume=True)
    assert sorted(path.name for path in output.iterdir()) == names
    (output / ".notes").write_text("somebody's own")
    with raises("InputError: expected only seeds"):
        train_seeds(dataset, output, short, [0, 1], resume=True)
