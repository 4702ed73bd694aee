"""Atomic files and folders, and one run per output: a second one raises an error while the first process runs."""

import errno
import os
import signal
import subprocess
import sys

import filelock
import pytest
from errors import raises
from interrupted_runs import OPTIONS
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.training import train, train_seeds
from qacg_models.utils.files import (
    atomic_write,
    follow_umask,
    lock_output,
    lock_path,
    remove_folder,
    replace_folder,
    staged_file,
)

from qacg_kernels.backends.triton import tile_tables

NAME = "out.txt"


def write_text(path):
    with atomic_write(path) as handle:
        handle.write("new")


def write_by_path(path):
    with staged_file(path) as made:
        made.write_text("new")


def write_table(path):
    tile_tables.save(tile_tables.shipped("sm_80"), path)


def write_permissions(path):
    path.write_text("new")
    path.chmod(0o600)
    follow_umask([path])


@pytest.mark.parametrize("write", [write_text, write_by_path, write_table, write_permissions])
def test_written_file_has_default_permissions(write, tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / NAME)
    finally:
        os.umask(before)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_atomic_write_without_folder_names_the_file(tmp_path):
    with raises("InputError: gone/out.txt: cannot be written (No such file"):
        write_text(tmp_path / "gone" / NAME)


def test_atomic_write_that_fails_keeps_the_old_file(tmp_path):
    (tmp_path / NAME).write_text("old")
    with pytest.raises(RuntimeError), atomic_write(tmp_path / NAME) as handle:
        handle.write("half")
        raise RuntimeError
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(NAME, "old")]


def test_replaced_folder_remains_beside_the_new_one(tmp_path):
    new, output = tmp_path / "work" / "new", tmp_path / "output"
    for text in ("old", "new"):
        new.mkdir(parents=True)
        (new / "file").write_text(text)
        replace_folder(new, output)
        assert (output / "file").read_text() == text
        new.parent.rename(tmp_path / f"after {text}")
    assert not list((tmp_path / "after old").iterdir())
    assert (tmp_path / "after new" / "old" / "file").read_text() == "old"


def test_folder_that_cannot_be_renamed_keeps_the_old_one(tmp_path, monkeypatch):
    new, output, rename = tmp_path / "new", tmp_path / "output", os.rename
    for path in (new, output):
        path.mkdir()
        (path / "file").write_text(path.name)

    def failing(source, target):
        if source == new:
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with raises("OSError: no"):
        replace_folder(new, output)
    assert (output / "file").read_text() == "output"


def test_removed_folder_leaves_nothing_of_an_interrupted_call(tmp_path):
    for name in ("folder", ".deleting-folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    remove_folder(tmp_path / "folder")
    assert not list(tmp_path.iterdir())


HOLDER = """
import sys, time
from pathlib import Path
from qacg_models.utils.files import lock_output
with lock_output(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(600)
"""


def quiet(line):
    raise AssertionError(line)


@pytest.fixture
def holder():
    """Starts a process that locks an output until it is killed."""
    begun = []

    def begin(output):
        process = subprocess.Popen([sys.executable, "-c", HOLDER, str(output)], stdout=subprocess.PIPE, text=True)
        begun.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def test_lock_output_of_a_running_process_raises(holder, tmp_path):
    output = tmp_path / "new" / "model"
    process = holder(output)
    for same in (output, output.parent / ".." / "new" / "model"):
        with (
            raises("InputError: model: another run is writing to it. Wait until it ends"),
            lock_output(same, quiet),
        ):
            pass
    with lock_output(output.with_name("other"), quiet):
        pass
    assert [path.name for path in output.parent.iterdir()] == [lock_path(output).name]
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock_output(output, quiet):
            assert lock_path(output).exists()
            raise ZeroDivisionError
        assert not any(output.parent.iterdir())


def test_train_beside_a_running_one_changes_nothing(holder, small_data, tmp_path):
    """The second run can neither resume nor start over."""
    dataset, output = load_data(small_data), tmp_path / "model"
    work = tmp_path / "model.unfinished"
    work.mkdir()
    (work / "choices.json").write_text("{}")
    process = holder(output)
    for choice in ({"resume": True}, {"overwrite": True}, {}):
        with raises("InputError: another run is writing to it"):
            train(dataset, output, OPTIONS, **choice)
    holder(tmp_path / "seed-0")
    with raises("InputError: seed-0: another run is writing to it"):
        train_seeds(dataset, tmp_path, OPTIONS, [0, 1], resume=True)
    assert [path.name for path in work.iterdir()] == ["choices.json"] and not output.exists()
    process.kill()
    process.wait()
    with raises("InputError: is an unfinished run. Continue it with --resume"):
        train(dataset, output, OPTIONS)


def test_lock_output_without_file_locks_warns(tmp_path, monkeypatch):
    printed = []

    def fails(self, *_, **__):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", fails)
    with lock_output(tmp_path / "model", printed.append):
        pass
    assert printed == [
        f"warning: the file system of {tmp_path} has no locks; do not start another run with the same output"
    ]
