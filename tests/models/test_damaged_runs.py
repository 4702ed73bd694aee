"""Files of an unfinished run are verified: a damaged checkpoint is named, set aside and never resumed from."""

import json
import os
import shutil
import stat
from dataclasses import replace

import pytest
import torch
from errors import raises
from full_members import member
from kill_and_resume import OPTIONS
from qacg_models.cli import main
from qacg_models.data import load_data
from qacg_models.errors import InputError
from qacg_models.training import run, run_folder, train
from qacg_models.training.run_folder import RunFolder, find_damage, publish
from qacg_models.training.trainer import AspectTrainer
from qacg_models.utils import atomic_files


@pytest.fixture(scope="module")
def dataset(small_data):
    return load_data(small_data)


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    return train(dataset, tmp_path_factory.mktemp("whole") / "model", OPTIONS)


@pytest.fixture(scope="module")
def died(dataset, tmp_path_factory):
    """The folder of a run that was killed; it has the checkpoints of steps 21 and 28."""
    folder = tmp_path_factory.mktemp("died")
    plain, calls = AspectTrainer._save_checkpoint, []

    def dying(trainer, model, trial):
        calls.append(trainer.state.global_step)
        if len(calls) == 5:
            raise KeyboardInterrupt
        plain(trainer, model, trial)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(AspectTrainer, "_save_checkpoint", dying)
        train(dataset, folder / "model", OPTIONS)
    assert [path.name for path in RunFolder(folder / "model").checkpoints()] == ["checkpoint-21", "checkpoint-28"]
    return folder / "model.unfinished"


@pytest.fixture
def work(died, tmp_path):
    return shutil.copytree(died, tmp_path / "model.unfinished")


def resume(dataset, work):
    """Resumes the run; returns what it trained and the lines it printed."""
    printed = []
    return train(dataset, work.with_name("model"), OPTIONS, resume=True, say=printed.append), printed


def same_end(trained, undisturbed):
    weights, truth = trained.model.state_dict(), undisturbed.model.state_dict()
    assert all(torch.equal(weights[name], truth[name]) for name in truth)
    found, expected = trained.record.to_json(), undisturbed.record.to_json()
    for part in ("metrics", "selected", "steps", "loss"):
        assert found[part] == expected[part], part


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
    same_end(trained, undisturbed)


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
    same_end(trained, undisturbed)


@pytest.mark.parametrize("damage", [member(gone, id="gone", fast=True), member(flipped, id="flipped", fast=False)])
@pytest.mark.full
def test_resume_checks_the_best_weights(dataset, work, undisturbed, damage):
    best = json.loads((work / "checkpoint-28" / "trainer_state.json").read_text())["best_global_step"]
    damage(work / f"best-{best}" / "model.safetensors")
    trained, printed = resume(dataset, work)
    lines = [one for one in printed if "set aside" in one]
    assert str(work / f"best-{best}" / "model.safetensors") in lines[0]
    assert not any("resuming" in one for one in printed), "both checkpoints require these weights"
    same_end(trained, undisturbed)


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
def test_weights_that_a_checkpoint_names_are_kept(dataset, tmp_path):
    """The second evaluation is the best; the older checkpoint names the weights of the first."""
    values = iter([0.1, 0.9, 0.0])
    plain = AspectTrainer._determine_best_metric

    def chosen(trainer, metrics, trial):
        return plain(trainer, metrics | {f"eval_{trainer.args.metric_for_best_model}": next(values)}, trial)

    def dying(trainer, model, trial, saved=AspectTrainer._save_checkpoint):
        if trainer.state.global_step == OPTIONS.checkpoint_every * 3:
            raise KeyboardInterrupt
        saved(trainer, model, trial)

    options = replace(OPTIONS, eval_every=OPTIONS.checkpoint_every)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(AspectTrainer, "_determine_best_metric", chosen)
        patch.setattr(AspectTrainer, "_save_checkpoint", dying)
        train(dataset, tmp_path / "model", options)
    names = {path.name for path in (tmp_path / "model.unfinished").iterdir()}
    assert {"checkpoint-7", "checkpoint-14", "best-7", "best-14"} <= names


@pytest.mark.full
def test_resume_after_a_kill_before_the_first_file(dataset, tmp_path, monkeypatch):
    short, work = replace(OPTIONS, max_steps=2), tmp_path / "model.unfinished"

    def dying(*args, **kwargs):
        raise KeyboardInterrupt

    for resumes in (True, False):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(run_folder, "atomic_write", dying)
            RunFolder(tmp_path / "model").open({"training": {}}, overwrite=False, resume=False, say=print)
        assert work.is_dir() and not list(work.iterdir())
        (work / ".choices.json.1").write_text("{")
        train(dataset, tmp_path / "model", short, resume=resumes)
        assert not work.exists()
        shutil.rmtree(tmp_path / "model")


def test_resume_of_a_finished_run_prints_a_notice(small_data, tmp_path, capsys, monkeypatch):

    output = tmp_path / "model"
    flags = ["train", "--data", str(small_data), "--output", str(output), "--max-steps", "2", "--layers", "1"]
    flags += ["--hidden-size", "16", "--heads", "2", "--intermediate-size", "32"]
    with monkeypatch.context() as patch:

        def dying(*args):
            raise KeyboardInterrupt

        patch.setattr(run_folder, "remove_folder", dying)
        assert main(flags) == 130  # killed after the model was published, before the checkpoints were deleted
    assert output.is_dir() and (tmp_path / "model.unfinished").is_dir()
    weights = (output / "model.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(atomic_files.shutil, "rmtree", lambda path, **_: path.exists() and dying())
        assert main([*flags, "--resume"]) == 130  # and again while they are deleted
    assert sorted(path.name for path in tmp_path.iterdir()) == [".deleting-model.unfinished", "model"]
    for _ in range(2):
        capsys.readouterr()
        assert main([*flags, "--resume"]) == 0
        assert f"{output}: is finished; nothing is left to resume" in capsys.readouterr().out
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
    """Several processes write their shards there."""
    written, name = tmp_path / "written", tmp_path / "name"
    (written / "optimizer_0").mkdir(parents=True)
    (written / "optimizer_0" / "__1_0.distcp").write_bytes(bytes(500))
    publish(written, name)
    assert find_damage(name) is None
    flipped(name / "optimizer_0" / "__1_0.distcp")
    assert str(find_damage(name)).startswith(f"{name / 'optimizer_0' / '__1_0.distcp'}: differs from what was written")


@pytest.mark.parametrize(
    ("processes", "ending"),
    [
        (1, "model: does not fit into memory with its gradients and moments. Use a smaller model."),
        (2, "--batch-size 8 --gradient-accumulation 2, which computes the same steps."),
    ],
)
def test_train_out_of_memory_prints_advice(dataset, tmp_path, monkeypatch, processes, ending):
    """Micro-batches (test_batch_parts.py) are not enough, or several processes cannot use them."""

    def raising(*args, **kwargs):
        monkeypatch.setattr(run, "world_size", lambda: processes)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(AspectTrainer, "training_step", raising)
    with pytest.raises(InputError) as caught:
        train(dataset, tmp_path / "model", OPTIONS)
    assert str(caught.value).endswith(ending)


def test_run_folder_keeps_a_model_that_was_not_put_back(tmp_path):
    folder = RunFolder(tmp_path / "model")
    kept = folder.path / atomic_files.OLD
    kept.mkdir(parents=True)
    folder.leave(print)
    assert kept.is_dir()
