"""Which share of the matrices a machine takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import share
from outcomes import in_shard

ROOT = Path(__file__).resolve().parents[2]


def test_a_fast_machine_takes_all_and_the_slowest_a_quarter():
    assert [share.share(slowness, "7") for slowness in (0.6, 1.5, 1.6, 2.2, 2.3, 9)] == [
        "",
        "",
        "1/2",
        "1/2",
        "3/4",
        "3/4",
    ]


@pytest.mark.parametrize(("slowness", "parts"), [(2.0, 2), (3.0, 4)])
def test_commits_take_turns_until_all_has_been_run(slowness, parts):
    taken = {share.share(slowness, f"{commit:040x}") for commit in range(16)}
    assert len(taken) == parts
    tests = [f"test_{number}" for number in range(100)]
    assert all(sum(in_shard(test, part) for part in taken) == 1 for test in tests)


def test_the_command_prints_nothing_but_the_share():
    command = [sys.executable, "tests/share.py", "0123456789abcdef"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in {"", "1/2", "3/4"} and "times the reference's time" in done.stderr


def test_the_pace_is_that_of_all_cores_at_once(monkeypatch):
    begun = []

    class Process:
        def __init__(self, command):
            begun.append("begun")

        def wait(self):
            begun.append("ended")

    monkeypatch.setattr(share.subprocess, "Popen", Process)
    share.slowness()
    cores = len(os.sched_getaffinity(0))
    assert begun == (["begun"] * cores + ["ended"] * cores) * share.TRIES


def test_make_hands_the_share_to_the_great_matrices_alone():
    command = ["make", "-n", "test-all", "SHARE=1/2", "VENV=", f"PYTHON={sys.executable}"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shared = [line.strip().split(":")[0].strip('"') for line in told.splitlines() if "--shard 1/2" in line]
    assert shared == ["operators and models", "CUDA kernels emulated, races"]
