"""A row for each test that ran, was skipped or was left out, as JSON lines, written as it ends."""

import json
import time
import zlib
from dataclasses import asdict
from pathlib import Path

import pytest

LEFT_OUT = "left out: the time is spent"
_LONGEST_MESSAGE = 2000


class Recorder:
    """A pytest plugin: the first line of its file is where the rows come from, then one for each test."""

    def __init__(self, path: Path) -> None:
        from benchmarks import rows

        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write(path, "w", {"kind": "origin"} | asdict(rows.origin()))

    @staticmethod
    def _write(path: Path, mode: str, record: dict[str, object]) -> None:
        with path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def pytest_runtest_logreport(self, report) -> None:
        if report.when != "call" and report.outcome == "passed":
            return  # setup and teardown tell only what went wrong
        outcome, message = report.outcome, ""
        if outcome == "skipped":
            message = report.longrepr[2].removeprefix("Skipped: ")
            outcome = "left out" if message == LEFT_OUT else outcome
        elif outcome == "failed":
            message = str(report.longrepr)[-_LONGEST_MESSAGE:]
        row = dict(kind="test", test=report.nodeid, outcome=outcome, seconds=round(report.duration, 3), message=message)
        self._write(self._path, "a", row)


class Budget:
    """A pytest plugin: skips what is not begun when the seconds are over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def pytest_runtest_setup(self, item) -> None:
        if time.monotonic() >= self._end:
            pytest.skip(LEFT_OUT)


def in_shard(name: str, shard: str) -> bool:
    """Whether a test belongs to a shard such as "2/8": each test to one of them, the same in every run.

    Raises:
        ValueError: the shard is not of that form.
    """
    number, _, count = shard.partition("/")
    if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise ValueError(f"shard: got {shard!r}, wanted K/N with K from 0 to N - 1")
    return zlib.crc32(name.encode()) % int(count) == int(number)
