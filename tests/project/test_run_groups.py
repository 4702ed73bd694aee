"""The runner of groups: every group runs, and one that fails or has no tests fails the whole."""

import re
import shlex
import sys

import pytest
import run_groups

TOLD = r"{}: {}, \d+ min \d\d s"


def test_every_group_runs_and_is_told_with_its_time(capfd):
    assert run_groups.main(["one: echo first", "two words: exit 3", "three: echo last"]) == 1
    out = capfd.readouterr().out
    assert out.index("first") < out.index("last")
    *_, one, two, three = out.splitlines()
    for line, name, said in ((one, "one", "passed"), (two, "two words", r"failed \(3\)"), (three, "three", "passed")):
        assert re.fullmatch(TOLD.format(name, said), line.strip()), line


def test_groups_that_all_pass(capfd):
    assert run_groups.main(["one: true", "two: true"]) == 0
    assert capfd.readouterr().out.count("passed") == 4


def test_groups_of_one_core_run_after_the_others_and_their_lines_stay_together(capfd):
    slow = "echo {0} begins; sleep 0.2; echo {0} ends >&2; exit {1}"
    commands = ["--one-core", f"two: {slow.format('two', 3)}", f"three: {slow.format('three', 0)}"]
    assert run_groups.main(["one: echo one ends", *commands]) == 1
    out = capfd.readouterr().out
    *_, one, two, three = out.splitlines()
    assert "one: passed" in one and "two: failed (3)" in two and "three: passed" in three
    for name in ("two", "three"):
        assert out.index("one ends") < out.index(f"{name} begins\n{name} ends\n== {name}: ")


def test_no_group_is_refused(capsys):
    with pytest.raises(SystemExit):
        run_groups.main([])
    assert "got no group, wanted at least one" in capsys.readouterr().err


def test_a_group_without_tests_has_failed(tmp_path, capfd):
    command = shlex.join([sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)])
    assert run_groups.main([f"empty: {command}"]) == 1
    assert "empty: failed (5)" in capfd.readouterr().out


@pytest.mark.parametrize("text", ["", "name", "name:", ": command"])
def test_what_is_no_group_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        run_groups.main([text])
    assert f"got {text!r}, wanted 'NAME: COMMAND'" in capsys.readouterr().err
