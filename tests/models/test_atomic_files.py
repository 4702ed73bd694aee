"""Atomic files: temporary names cannot be predicted, and planted links are not followed."""

import os

import pytest
from errors import raises
from qacg_models.utils.atomic_files import (
    atomic_write,
    atomic_write_bytes,
    follow_umask,
    remove_folder,
    replace_folder,
    staged_file,
)
from qacg_models.utils.output_lock import lock_output

from qacg_kernels.backends.triton import tile_tables

NAME = "out.txt"


def write_text(path):
    with atomic_write(path) as handle:
        handle.write("new")


def write_bytes(path):
    with atomic_write_bytes(path) as handle:
        handle.write(b"new")


def write_by_path(path):
    with staged_file(path) as made:
        made.path.write_text("new")
        made.publish()


def write_table(path):
    tile_tables.save(tile_tables.shipped("sm_80"), path)


def write_permissions(path):
    path.write_text("new")
    follow_umask([path])


WRITERS = [write_text, write_bytes, write_by_path, write_table, write_permissions]


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "private" / "thesis.docx"
    path.parent.mkdir()
    path.write_text("text")
    return path


@pytest.mark.parametrize("write", WRITERS)
def test_temporary_file_does_not_follow_a_planted_link(write, tmp_path, victim):
    planted = [tmp_path / f".{NAME}.{os.getpid()}", tmp_path / f".{os.getpid()}.{NAME}"]
    for link in planted:
        link.symlink_to(victim)
    write(tmp_path / NAME)
    assert victim.read_text() == "text"
    assert all(link.is_symlink() for link in planted)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([NAME, "private", *(p.name for p in planted)])


@pytest.mark.parametrize("write", [write_text, write_bytes, write_by_path, write_table])
def test_written_file_has_default_permissions(write, tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / NAME)
    finally:
        os.umask(before)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o640


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


def test_lock_at_a_planted_link_raises(tmp_path, victim):
    (tmp_path / f".{NAME}.lock").symlink_to(victim)
    with raises("InputError: .lock: cannot be written"), lock_output(tmp_path / NAME, print):
        pass
    assert victim.read_text() == "text"
