"""Resumed runs: a run that was killed at any moment gives the model of an uninterrupted one."""

import logging
import os
import shutil
import stat
from dataclasses import replace

import pytest
import torch
from errors import raises
from full_members import member
from interrupted_runs import FLAGS, OPTIONS, assert_same_run, interrupt_at, interrupted
from qacg_models.cli import program
from qacg_models.cli.program import main
from qacg_models.sentiment import training
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.trained_model import load_trained
from qacg_models.sentiment.training import train, train_seeds, trainer
from qacg_models.sentiment.training.trainer import AspectTrainer
from qacg_models.utils import files, machine


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    return train(dataset, tmp_path_factory.mktemp("whole") / "model", OPTIONS)


@pytest.mark.full
def test_train_interrupted_prints_how_to_resume(small_data, tmp_path, undisturbed, monkeypatch, capsys):
    command = ["train", "--data", str(small_data), *FLAGS, "--output", str(tmp_path / "my model")]
    with monkeypatch.context() as patch:
        interrupt_at(patch, AspectTrainer, "_save_checkpoint", 3, error=KeyboardInterrupt)
        assert main(command) == program.INTERRUPTED
    hint = "qacg train: interrupted; the same command with --resume continues it"
    assert capsys.readouterr().err.splitlines()[-1] == hint
    assert main([*command, "--resume"]) == 0
    assert "resuming from checkpoint-14" in capsys.readouterr().out
    assert_same_run(load_trained(tmp_path / "my model"), undisturbed)


# Function, call, whether the kill is after the call, and step from which the run resumes. The run writes checkpoints at
# steps 7, 14, 21, 28 and 30, keeps two of them, and evaluates at steps 20 and 30.
MOMENTS = {
    "before the first checkpoint": (AspectTrainer, "_save_checkpoint", 1, False, None),
    "in a checkpoint, weights written": (AspectTrainer, "_save_optimizer_and_scheduler", 4, False, 21),
    "in a checkpoint, random state written": (AspectTrainer, "_save_rng_state", 4, True, 21),
    "checkpoint not renamed": (trainer, "replace_folder", 4, False, 21),
    "checkpoint renamed": (trainer, "replace_folder", 4, True, 28),
    "last step not evaluated": (AspectTrainer, "_determine_best_metric", 2, False, 28),
    "training ended": (training, "_write_model", 1, False, 30),
    "model written": (training, "_metrics", 1, True, 30),
    "model not renamed": (files, "replace_folder", 1, False, 30),
    "model renamed": (files, "replace_folder", 1, True, 30),
}
IN_DEFAULT_RUN = "in a checkpoint, random state written"


@pytest.mark.parametrize("moment", [member(name, id=name, fast=name == IN_DEFAULT_RUN) for name in MOMENTS])
def test_resume_after_a_kill_equals_an_undisturbed_run(dataset, tmp_path, undisturbed, moment):
    owner, name, call, after, step = MOMENTS[moment]
    with interrupted(owner, name, call, after=after):
        train(dataset, tmp_path / "model", OPTIONS)
    if step is None:  # of a failed run without a checkpoint, nothing is left
        assert not list(tmp_path.iterdir())
    printed = []
    trained = train(dataset, tmp_path / "model", OPTIONS, resume=True, say=printed.append)
    expected = "there is no unfinished run; starting a new one" if step is None else f"resuming from checkpoint-{step}"
    assert [line for line in printed if "resuming" in line or "starting" in line] == [expected]
    assert_same_run(trained, undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.full
def test_resume_after_a_kill_between_the_renames_of_the_model(dataset, tmp_path, undisturbed):
    output, work = tmp_path / "model", tmp_path / "model.unfinished"
    train(dataset, output, replace(OPTIONS, max_steps=2))
    with interrupted(files, "replace_folder"):
        train(dataset, output, OPTIONS, overwrite=True)
    output.rename(work / files.OLD)
    assert_same_run(train(dataset, output, OPTIONS, resume=True), undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.full
def test_resume_keeps_the_best_weights_without_a_warning(dataset, tmp_path, monkeypatch, caplog):
    """The first evaluation is the best, and its checkpoint is deleted before the run is killed."""
    plain = AspectTrainer._determine_best_metric

    def falling(trainer, metrics, trial):
        name = f"eval_{trainer.args.metric_for_best_model}"
        return plain(trainer, metrics | {name: 1 / trainer.state.global_step}, trial)

    monkeypatch.setattr(AspectTrainer, "_determine_best_metric", falling)
    options = replace(OPTIONS, eval_every=7)
    whole = train(dataset, tmp_path / "whole", options)
    assert whole.record.selected.step == 7
    with interrupted(AspectTrainer, "_save_checkpoint", 4):
        train(dataset, tmp_path / "model", options)
    library = logging.getLogger("transformers")
    library.addHandler(caplog.handler)  # its records do not reach the root logger
    try:
        assert_same_run(train(dataset, tmp_path / "model", options, resume=True), whole)
    finally:
        library.removeHandler(caplog.handler)
    assert "best checkpoint" not in caplog.text


def test_unfinished_run_requires_equal_options_and_data(dataset, small_data, tmp_path, monkeypatch):
    output, work = tmp_path / "model", tmp_path / "model.unfinished"
    with interrupted(AspectTrainer, "_save_checkpoint", 4):
        train(dataset, output, OPTIONS)
    assert {path.name for path in work.iterdir() if not path.name.startswith(".")} == {
        "choices.json",
        *("checkpoint-14", "checkpoint-21"),
    }, "the newest checkpoints are kept"

    with raises("InputError: is an unfinished run. Continue it with --resume"):
        train(dataset, output, OPTIONS)
    with raises("InputError: training learning_rate: expected 0.003, as when the run started, got 0.1"):
        train(dataset, output, replace(OPTIONS, learning_rate=0.1), resume=True)
    with raises("InputError: training model: expected 'qacg-bert', as when the run started, got 'aspect-bert'"):
        train(dataset, output, replace(OPTIONS, model="aspect-bert"), resume=True)
    changed = shutil.copytree(small_data, tmp_path / "changed")
    with (changed / "dev.tsv").open("a") as dev:
        dev.write("\n")
    with raises("InputError: files dev: expected"):
        train(load_data(changed), output, OPTIONS, resume=True)
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        patch.setattr(machine, "join_group", lambda: None)
        for module in (machine, files):
            patch.setattr(module, "run_on_main", lambda action: action())
        with raises("InputError: torchrun processes: expected 1, as when the run started, got 2. Use the same value"):
            train(dataset, output, OPTIONS, resume=True)
    (work / "choices.json").write_text('{"format": 1}')  # of an earlier version
    with raises("InputError: choices.json: format: expected an object, got 1"):
        train(dataset, output, OPTIONS, resume=True)
    short = replace(OPTIONS, max_steps=2)
    train(dataset, output, short, overwrite=True)
    assert load_trained(output).record.steps == 2 and not work.exists()


@pytest.mark.full
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json", "best.safetensors"])
def test_resume_survives_an_incomplete_newest_checkpoint(dataset, tmp_path, undisturbed, name):
    with interrupted(AspectTrainer, "_save_checkpoint", 5):
        train(dataset, tmp_path / "model", OPTIONS)
    newest = tmp_path / "model.unfinished" / "checkpoint-28"
    content = (newest / name).read_bytes()
    (newest / name).write_bytes(content[: len(content) // 2])
    printed = []
    assert_same_run(train(dataset, tmp_path / "model", OPTIONS, resume=True, say=printed.append), undisturbed)
    assert "resuming from checkpoint-21" in printed
    assert any(line.startswith(f"{newest} cannot be used: {name} is damaged") for line in printed)


@pytest.mark.full
def test_train_seeds_resumes_after_a_kill_in_the_second_seed(dataset, tmp_path):
    whole, output = tmp_path / "whole", tmp_path / "seeds"
    train_seeds(dataset, whole, OPTIONS, [0, 1])
    with interrupted(AspectTrainer, "_save_checkpoint", 8):  # a seed writes five checkpoints
        train_seeds(dataset, output, OPTIONS, [0, 1])
    assert {path.name for path in output.iterdir()} == {"seed-0", "seed-1.unfinished"}
    finished = (output / "seed-0" / "training.json").read_bytes()
    with raises("InputError: expected a new folder, got files of an earlier run."):
        train_seeds(dataset, output, OPTIONS, [0, 1])
    with raises("InputError: seed-0: expected no model beside those of several seeds, got one."):
        train_seeds(dataset, output / "seed-0", OPTIONS, [0, 1], overwrite=True)
    train_seeds(dataset, output, OPTIONS, [0, 1], resume=True)
    assert (output / "seed-0" / "training.json").read_bytes() == finished
    names = [sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) for folder in (whole, output)]
    assert names[0] == names[1]
    for seed in ("seed-0", "seed-1"):
        assert_same_run(load_trained(output / seed), load_trained(whole / seed))
    with raises("InputError: seed-0: training epochs: expected 2, as when the run started, got 3"):
        train_seeds(dataset, output, replace(OPTIONS, epochs=3), [0, 1], resume=True)


@pytest.mark.full
@pytest.mark.parametrize("resume", [True, False])
def test_train_after_a_kill_before_the_first_file(dataset, tmp_path, resume):
    (tmp_path / "model.unfinished" / ".choices.json.1").mkdir(parents=True)
    train(dataset, tmp_path / "model", replace(OPTIONS, max_steps=2), resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_resume_of_a_finished_run_prints_a_notice(dataset, tmp_path, monkeypatch):
    output, options, printed = tmp_path / "model", replace(OPTIONS, max_steps=2), []
    train(dataset, output, options)
    (tmp_path / ".deleting-model.unfinished").mkdir()  # left by a kill after the model was renamed
    weights = (output / "model.safetensors").read_bytes()
    for _ in range(2):
        train(dataset, output, options, resume=True, say=printed.append)
        assert printed.pop() == f"{output}: the run is finished; nothing is left to resume"
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


def test_train_out_of_memory_prints_advice(dataset, tmp_path, monkeypatch):
    def raising(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(AspectTrainer, "training_step", raising)
    with raises("InputError: batch_size: 16 rows in each process do not fit into memory. Use a smaller --batch-size"):
        train(dataset, tmp_path / "model", OPTIONS)


@pytest.mark.parametrize("call", [2, 3])
@pytest.mark.full
def test_resume_of_an_open_run_gives_the_same_model(dataset, tmp_path, call):
    """The run is killed before its second or third checkpoint; the averaged weights and counts must be restored."""
    options = replace(OPTIONS, epochs=None, eval_every=5, patience=4, max_steps=40, schedule="steady")
    whole = train(dataset, tmp_path / "whole", options)
    with interrupted(AspectTrainer, "_save_checkpoint", call):
        train(dataset, tmp_path / "m", options)
    printed = []
    # A resumed run accepts more minutes, but no other change of options.
    again = train(dataset, tmp_path / "m", replace(options, minutes=90), resume=True, say=printed.append)
    assert f"resuming from checkpoint-{7 * (call - 1)}" in printed
    assert_same_run(again, whole)


@pytest.mark.full
def test_resume_counts_minutes_and_evaluations_before_the_kill(dataset, tmp_path, monkeypatch):
    options = replace(OPTIONS, epochs=None, eval_every=5, minutes=2, patience=0)
    monkeypatch.setattr(AspectTrainer, "seconds", lambda self: self.seconds_before + 10.0 * self.state.global_step)
    with interrupted(AspectTrainer, "_save_checkpoint", after=True):
        train(dataset, tmp_path / "m", options)
    monkeypatch.setattr(
        AspectTrainer, "seconds", lambda self: self.seconds_before + 10.0 * (self.state.global_step - 7)
    )
    record = train(dataset, tmp_path / "m", options, resume=True).record
    assert (record.steps, record.seconds, record.ended, record.evaluations) == (12, 120, "minutes", 3)


@pytest.mark.parametrize("name", ["thesis.txt", ".git", ""])
def test_folder_of_someone_else_is_kept(dataset, tmp_path, name):
    path = tmp_path / "model.unfinished" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("text")
    with raises("InputError: model.unfinished: expected no folder or an unfinished run, got another folder"):
        train(dataset, tmp_path / "model", OPTIONS, overwrite=True)
    assert path.read_text() == "text"
