"""One run per output: a second one raises an error while the first process runs."""

import errno
import signal
import subprocess
import sys

import filelock
import pytest
from errors import raises
from kill_and_resume import OPTIONS
from qacg_models.data import load_data
from qacg_models.training import train, train_seeds
from qacg_models.utils.output_lock import lock_output, lock_path

HOLDER = """
import sys, time
from pathlib import Path
from qacg_models.utils.output_lock import lock_output
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


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
        with lock_output(output, quiet):
            assert lock_path(output).exists()
        assert not any(output.parent.iterdir())


def test_lock_output_is_released_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), lock_output(tmp_path / "model", quiet):
        raise ZeroDivisionError
    assert not any(tmp_path.iterdir())


def test_lock_output_accepts_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with lock_output(type(tmp_path)("."), quiet):
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [".here.lock"]


def test_train_beside_a_running_one_changes_nothing(holder, small_data, tmp_path):
    """The second run can neither resume nor start over."""
    dataset, output = load_data(small_data), tmp_path / "model"
    work = tmp_path / "model.unfinished"
    work.mkdir()
    (work / "choices.json").write_text("{}")
    (work / "checkpoint").write_bytes(b"1")
    process, before = holder(output), contents(tmp_path)
    for choice in ({"resume": True}, {"overwrite": True}, {}):
        for begin in (train, lambda *rest, **choice: train_seeds(*rest, [0], **choice)):
            with raises("InputError: another run is writing to it"):
                begin(dataset, output, OPTIONS, **choice)
    with raises("InputError: another run is writing to it"):
        train_seeds(dataset, output, OPTIONS, [0, 1], resume=True)
    process.kill()
    process.wait()
    assert contents(tmp_path) == before
    with raises("InputError: is an unfinished run. Continue it with --resume"):
        train(dataset, output, OPTIONS)


def test_train_seeds_beside_a_running_seed_raises(holder, small_data, tmp_path):
    (tmp_path / "runs").mkdir()
    holder(tmp_path / "runs" / "seed-0")
    with raises("InputError: seed-0: another run is writing to it"):
        train_seeds(load_data(small_data), tmp_path / "runs", OPTIONS, [0, 1], resume=True)


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


def test_lock_output_in_unwritable_folder_raises(tmp_path):
    (tmp_path / "file").touch()
    with (
        raises("InputError: .model.lock: cannot be written ("),
        lock_output(tmp_path / "file/model", quiet),
    ):
        pass
