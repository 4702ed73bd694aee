"""Results and exit status of check_faults.py."""

import sys

import check_faults
import pytest
from fault_subjects import Subject
from fault_trials import Report, complaint
from forked_commands import Outcome


@pytest.fixture
def called(tmp_path, monkeypatch, capsys):
    """Runs the program with given results of trials; returns exit status, output and remaining files."""
    monkeypatch.setattr(check_faults, "preload", lambda: None)

    def call(*outcomes):
        def check(folder, seed, form):
            report = Report(folder)
            for number, wrong in enumerate(outcomes):
                place = folder / "trial"
                place.mkdir()
                (place / "number").write_text(str(number))
                report.take("killed", f"run {number}", wrong, place)
            return report

        monkeypatch.setattr(check_faults, "check", check)
        monkeypatch.setattr(sys, "argv", ["check_faults.py", "--seed", "7", "--out", str(tmp_path)])
        return check_faults.main(), capsys.readouterr().out, list(tmp_path.iterdir())

    return call


def test_correct_trials_exit_with_zero(called):
    status, out, left = called(None, None)
    assert (status, left) == (0, [])
    assert "seed 7" in out
    assert "in 2 runs, 2 resumed to the same end" in out
    assert "WRONG" not in out


def test_wrong_trials_are_printed_and_the_first_kept(called):
    status, out, (left,) = called(None, "left nothing", "other weights", None)
    assert status == 1
    assert "in 4 runs, 2 resumed to the same end" in out
    assert out.splitlines()[-2:] == ["WRONG: killed: run 1: left nothing", "WRONG: killed: run 2: other weights"]
    assert (left / "wrong" / "number").read_text() == "1"
    assert str(left / "wrong") in out


@pytest.mark.parametrize(
    ("status", "err", "wrong"),
    [
        (2, "qacg predict: {}/out.csv.partial: cannot be written (No space left on device)\n", None),
        (
            1,
            "qacg predict: {}/out.csv: cannot be written (No space left on device)\n",
            "expected status 2 and no traceback, got 1",
        ),
        (
            2,
            "Traceback\nqacg predict: {}/out.csv: cannot be written (File too large)\n",
            "expected status 2 and no traceback, got 2",
        ),
        (2, "qacg predict: out.csv: cannot be written (No space left on device)\n", "expected the place"),
        (2, "qacg predict: {}/out.csv: cannot be written\n", "expected the reason"),
    ],
    ids=["right", "status", "traceback", "place", "reason"],
)
def test_message_on_a_full_disk_is_checked(status, err, wrong, tmp_path):
    subject = Subject("prediction", ["predict"], "out.csv", "out.csv.partial")
    found = complaint(subject, Outcome(status, "", err.format(tmp_path), 1.0), tmp_path)
    assert found is None if wrong is None else wrong in found
    (tmp_path / "out.csv").touch()
    assert complaint(subject, Outcome(status, "", err.format(tmp_path), 1.0), tmp_path) is not None
