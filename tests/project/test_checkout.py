"""The commit of a checkout, which records of measurements and trainings contain."""

import subprocess

import pytest

from qacg_kernels.utils.source_revision import checkout_of


@pytest.fixture
def checkout(tmp_path):
    """A file in a new checkout, and its commit."""

    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    file = tmp_path / "package" / "module.py"
    file.parent.mkdir()
    file.write_text("x = 1\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    return file, git("rev-parse", "HEAD")


def test_checkout_has_commit_and_changes(checkout):
    file, commit = checkout
    results = file.parent.parent / "results"
    without_results = ("--", ":/", ":(top,exclude)results")
    assert checkout_of(file) == (commit, False)
    results.mkdir()
    (results / "row").write_text("{}")
    assert [checkout_of(file, *flags)[1] for flags in ((), ("-uno",), without_results)] == [True, False, False]
    file.write_text("x = 2\n")
    assert [checkout_of(file, *flags)[1] for flags in (("-uno",), without_results)] == [True, True]


def test_file_outside_a_checkout_has_no_commit(checkout, tmp_path_factory, monkeypatch):
    file, _ = checkout
    (file.parent / "copied.py").write_text("")
    assert checkout_of(file.parent / "copied.py") is None
    elsewhere = tmp_path_factory.mktemp("installed") / "module.py"
    elsewhere.write_text("")
    assert checkout_of(elsewhere) is None
    monkeypatch.setenv("PATH", "")
    assert checkout_of(file) is None
