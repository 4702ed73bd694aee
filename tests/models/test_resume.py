"""Resumed runs: a killed run gives the model of an uninterrupted one; damaged files are set aside, never used."""

import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from errors import raises
from full_members import member
from interrupted_runs import assert_same_run, interrupt_at, interrupted
from kill_and_resume import OPTIONS
from model_sizes import SMALL_FLAGS
from qacg_models.cli import main
from qacg_models.data import load_data
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import load_trained
from qacg_models.training import run, run_folder, train, train_seeds
from qacg_models.training.run_folder import RunFolder, RunState
from qacg_models.training.trainer import AspectTrainer
from qacg_models.utils import atomic_files, output_lock
from qacg_models.utils.atomic_files import remove_folder

TRAINS = Path(__file__).parents[1] / "support" / "kill_and_resume.py"


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    return train(dataset, tmp_path_factory.mktemp("whole") / "model", OPTIONS)


@pytest.mark.full
def test_resume_after_sigkill_within_an_epoch(dataset, small_data, tmp_path, undisturbed):
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
    trained = train(dataset, output, OPTIONS, resume=True, say=printed.append)
    assert f"resuming from checkpoint-{before}" in printed
    assert not work.exists()
    assert_same_run(trained, undisturbed)
    assert trained.record.seconds > seconds > 0, "the time before the kill is included"


@pytest.mark.parametrize("writer", ["_save_rng_state", "save_model"])
@pytest.mark.full
def test_resume_ignores_a_half_written_checkpoint(dataset, tmp_path, undisturbed, writer):
    with interrupted(AspectTrainer, writer, 4, after=True):
        train(dataset, tmp_path / "model", OPTIONS)
    work = tmp_path / "model.unfinished"
    assert any((work / ".writing").iterdir())
    assert len(RunFolder(tmp_path / "model").checkpoints()) == OPTIONS.keep_checkpoints
    assert_same_run(train(dataset, tmp_path / "model", OPTIONS, resume=True), undisturbed)


def test_resume_prints_no_warning_about_the_best_checkpoint(dataset, tmp_path, caplog):
    options = replace(OPTIONS, eval_every=7)  # the best checkpoint is one of those that are stored
    with interrupted(AspectTrainer, "_save_checkpoint", 3):
        train(dataset, tmp_path / "model", options)
    library = logging.getLogger("transformers")
    library.addHandler(caplog.handler)  # its records do not reach the root logger
    try:
        train(dataset, tmp_path / "model", options, resume=True)
    finally:
        library.removeHandler(caplog.handler)
    assert "best checkpoint" not in caplog.text


@pytest.mark.full
def test_unfinished_run_requires_equal_options_and_data(dataset, small_data, tmp_path, monkeypatch):
    output, work, options = tmp_path / "model", tmp_path / "model.unfinished", replace(OPTIONS, keep_checkpoints=3)
    with interrupted(AspectTrainer, "_save_checkpoint", 5):
        train(dataset, output, options)
    names = {path.name for path in work.iterdir() if not path.name.startswith(".")}
    best = {name for name in names if name.startswith("best-")}
    kept = {"choices.json", "features-train", "features-dev"}
    assert names - best == kept | {"checkpoint-14", "checkpoint-21", "checkpoint-28"}, "the newest are kept"
    # The last evaluation had an equal metric and a lower loss; the run was killed before a checkpoint named it.
    assert best == {"best-20", "best-30"}

    with raises("InputError: is an unfinished run. Continue it with --resume"):
        train(dataset, output, options)
    with raises("InputError: training learning_rate: expected 0.003, as when the run started, got 0.1"):
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
        (b"{", "is not JSON ..."),
        (b"[" * 100_000, "is not JSON ...nested too deep..."),
        (b"[]", "expected an object, got []"),
        (kept.replace(b'"data": {', b'"data": 3, "x": {'), "choices.data: expected an object, got 3"),
        (kept.replace(b'"processes": 1', b'"processes": "1"'), "processes: expected an integer, got '1'"),
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
    with raises("InputError: expected 1 process, as when the run started, got 2. Resume the run without torchrun"):
        train(dataset, output, options, resume=True)
    monkeypatch.delenv("WORLD_SIZE")
    (work / "choices.json").write_bytes(kept.replace(b'"processes": 1', b'"processes": 2'))
    with raises("InputError: expected 2 processes, as when the run started, got 1. Resume the run with ... 2,"):
        train(dataset, output, options, resume=True)
    short = replace(options, max_steps=2)
    train(dataset, output, short, overwrite=True)
    assert load_trained(output).record.steps == 2 and not work.exists()
    printed = []
    train(dataset, tmp_path / "other", short, resume=True, say=printed.append)
    assert "there is no unfinished run; starting a new one" in printed


def test_failure_before_the_first_checkpoint_leaves_nothing(dataset, tmp_path):
    with interrupted(AspectTrainer, "_determine_best_metric"):
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
    with raises("InputError: expected only folders of seeds"):
        train_seeds(dataset, output, short, [0, 1], resume=True)


@pytest.fixture(scope="module")
def killed(dataset, tmp_path_factory):
    """The folder of a run that was killed; it has the checkpoints of steps 21 and 28."""
    folder = tmp_path_factory.mktemp("killed")
    with interrupted(AspectTrainer, "_save_checkpoint", 5):
        train(dataset, folder / "model", OPTIONS)
    assert [path.name for path in RunFolder(folder / "model").checkpoints()] == ["checkpoint-21", "checkpoint-28"]
    return folder / "model.unfinished"


@pytest.fixture
def work(killed, tmp_path):
    return shutil.copytree(killed, tmp_path / "model.unfinished")


def resume(dataset, work):
    """Resumes the run; returns what it trained and the lines it printed."""
    printed = []
    return train(dataset, work.with_name("model"), OPTIONS, resume=True, say=printed.append), printed


def gone(path):
    path.unlink()


def emptied(path):
    path.write_bytes(b"")


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path):
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(255 - byte for byte in content[middle : middle + 64])
    path.write_bytes(content)


IN_DEFAULT_RUN = ("model.safetensors", flipped)
DAMAGES = [
    IN_DEFAULT_RUN,
    ("optimizer.pt", cut),
    ("rng_state.pth", gone),
    ("optimizer.pt", gone),
    ("optimizer.pt", flipped),
    ("model.safetensors", cut),
    ("model.safetensors", gone),
    ("trainer_state.json", cut),
    ("scheduler.pt", emptied),
    ("run_state.json", emptied),
    ("digests.json", gone),
    ("digests.json", cut),
]


@pytest.mark.parametrize(
    ("name", "damage"), [member(*one, id=f"{one[0]}-{one[1].__name__}", fast=one == IN_DEFAULT_RUN) for one in DAMAGES]
)
def test_resume_skips_a_damaged_checkpoint(dataset, work, undisturbed, name, damage):
    damage(work / "checkpoint-28" / name)
    trained, printed = resume(dataset, work)
    (line,) = [one for one in printed if "set aside" in one]
    assert line.startswith(f"{work / 'checkpoint-28' / name}: ") and "as damaged-checkpoint-28" in line
    assert "resuming from checkpoint-21" in printed
    assert_same_run(trained, undisturbed)


@pytest.mark.full
def test_resume_without_sound_checkpoint_starts_over(dataset, work, undisturbed):
    flipped(work / "checkpoint-28" / "optimizer.pt")
    gone(work / "checkpoint-21" / "model.safetensors")
    trained, printed = resume(dataset, work)
    assert [one.partition(":")[0].rpartition("/")[2] for one in printed if "set aside" in one] == [
        "optimizer.pt",
        "model.safetensors",
    ]
    assert "the unfinished run has no checkpoint; starting over" in printed
    assert_same_run(trained, undisturbed)


@pytest.mark.parametrize("damage", [member(gone, id="gone", fast=True), member(flipped, id="flipped", fast=False)])
@pytest.mark.full
def test_resume_checks_the_best_weights(dataset, work, undisturbed, damage):
    best = json.loads((work / "checkpoint-28" / "trainer_state.json").read_text())["best_global_step"]
    damage(work / f"best-{best}" / "model.safetensors")
    trained, printed = resume(dataset, work)
    lines = [one for one in printed if "set aside" in one]
    assert str(work / f"best-{best}" / "model.safetensors") in lines[0]
    assert not any("resuming" in one for one in printed), "both checkpoints require these weights"
    assert_same_run(trained, undisturbed)


@pytest.mark.full
def test_train_does_not_publish_damaged_weights(dataset, tmp_path, monkeypatch):
    plain = run._write_model

    def damaging(started, trainer, *rest):
        flipped(started.folder.best_weights(trainer.state.best_global_step) / "model.safetensors")
        plain(started, trainer, *rest)

    monkeypatch.setattr(run, "_write_model", damaging)
    with raises("InputError: best-.../model.safetensors: ...Use --resume"):
        train(dataset, tmp_path / "model", OPTIONS)
    assert not (tmp_path / "model").exists()


@pytest.mark.full
def test_weights_that_a_checkpoint_names_are_kept(dataset, tmp_path, monkeypatch):
    """The second evaluation is the best; the older checkpoint names the weights of the first."""
    values = iter([0.1, 0.9, 0.0])
    plain = AspectTrainer._determine_best_metric

    def chosen(trainer, metrics, trial):
        return plain(trainer, metrics | {f"eval_{trainer.args.metric_for_best_model}": next(values)}, trial)

    options = replace(OPTIONS, eval_every=OPTIONS.checkpoint_every)
    monkeypatch.setattr(AspectTrainer, "_determine_best_metric", chosen)
    with interrupted(AspectTrainer, "_save_checkpoint", 3):
        train(dataset, tmp_path / "model", options)
    names = {path.name for path in (tmp_path / "model.unfinished").iterdir()}
    assert {"checkpoint-7", "checkpoint-14", "best-7", "best-14"} <= names


@pytest.mark.full
def test_resume_after_a_kill_before_the_first_file(dataset, tmp_path):
    short, work = replace(OPTIONS, max_steps=2), tmp_path / "model.unfinished"
    for resumes in (True, False):
        with interrupted(run_folder, "atomic_write"):
            RunFolder(tmp_path / "model").open({"training": {}}, overwrite=False, resume=False, say=print)
        assert work.is_dir() and not list(work.iterdir())
        (work / ".choices.json.1").write_text("{")
        train(dataset, tmp_path / "model", short, resume=resumes)
        assert not work.exists()
        shutil.rmtree(tmp_path / "model")


def test_resume_of_a_finished_run_prints_a_notice(small_data, tmp_path, capsys, monkeypatch):
    output = tmp_path / "model"
    flags = ["train", "--data", str(small_data), "--output", str(output), "--max-steps=2", *SMALL_FLAGS]
    with monkeypatch.context() as patch:
        interrupt_at(patch, run_folder, "remove_folder", error=KeyboardInterrupt)
        assert main(flags) == 130  # killed after the model was published, before the checkpoints were deleted
    assert output.is_dir() and (tmp_path / "model.unfinished").is_dir()
    weights = (output / "model.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        interrupt_at(patch, atomic_files.shutil, "rmtree", 2, error=KeyboardInterrupt)
        assert main([*flags, "--resume"]) == 130  # and again while they are deleted
    assert sorted(path.name for path in tmp_path.iterdir()) == [".deleting-model.unfinished", "model"]
    for _ in range(2):
        capsys.readouterr()
        assert main([*flags, "--resume"]) == 0
        assert f"{output}: the run is finished; nothing is left to resume" in capsys.readouterr().out
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (output / "model.safetensors").read_bytes() == weights


@pytest.mark.full
def test_published_model_follows_the_umask(dataset, tmp_path):
    before = os.umask(0o027)
    try:
        train(dataset, tmp_path / "model", replace(OPTIONS, max_steps=2))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert set(modes.values()) == {0o640}, modes
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o750


def test_find_damage_checks_nested_files(tmp_path):
    """Several processes write their shards to nested folders."""
    written, name = tmp_path / "written", tmp_path / "name"
    (written / "optimizer_0").mkdir(parents=True)
    (written / "optimizer_0" / "__1_0.distcp").write_bytes(bytes(500))
    publish(written, name)
    assert find_damage(name) is None
    flipped(name / "optimizer_0" / "__1_0.distcp")
    assert str(find_damage(name)).startswith(f"{name / 'optimizer_0' / '__1_0.distcp'}: differs from what was written")


@pytest.mark.parametrize(
    ("processes", "rows", "ending"),
    [
        (1, 16, "gradients and the optimizer's state. Use a smaller model or a smaller --max-length."),
        (2, 16, "--batch-size 8 --gradient-accumulation 2, which computes the same steps."),
        (2, 15, "--batch-size 7 --gradient-accumulation 2."),
    ],
)
def test_train_out_of_memory_prints_advice(dataset, tmp_path, monkeypatch, processes, rows, ending):
    """A single row does not fit, or several processes cannot use micro-batches (see test_micro_batches.py)."""

    def raising(*args, **kwargs):
        monkeypatch.setattr(run, "world_size", lambda: processes)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(AspectTrainer, "training_step", raising)
    with pytest.raises(InputError) as caught:
        train(dataset, tmp_path / "model", replace(OPTIONS, batch_size=rows))
    assert str(caught.value).endswith(ending)


def test_run_folder_keeps_a_model_that_was_not_put_back(tmp_path):
    folder = RunFolder(tmp_path / "model")
    kept = folder.path / atomic_files.OLD
    kept.mkdir(parents=True)
    folder.leave(print)
    assert kept.is_dir()
