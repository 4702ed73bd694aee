"""Pytest plugins that record the outcome of each test as a JSON line, and that stop after a time limit."""

import json
import time
import zlib
from dataclasses import asdict
from pathlib import Path

import pytest

LEFT_OUT = "not run: the time limit is reached"
_LONGEST_MESSAGE = 2000


class Rows:
    """A file of JSON lines, each of which is written immediately; the first is the origin of the run."""

    def __init__(self, path: Path) -> None:
        from benchmarks import records

        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        self.add({"kind": "origin"} | asdict(records.origin()))

    def add(self, record: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def read(path: Path) -> list[dict[str, object]]:
    """Reads the rows of a file, without an incomplete last line of a killed process; [] if there is no file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def not_reached(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Makes a row for each collected test that has none, because its process ended early."""
    reached = {row["test"] for row in rows if row["kind"] == "test"}
    collected = [name for row in rows if row["kind"] == "collected" for name in row["tests"]]
    message = "its process ended early or was stopped at the time limit"
    return [
        dict(kind="test", test=name, outcome="left out", seconds=0.0, message=message)
        for name in collected
        if name not in reached
    ]


class Recorder:
    """A pytest plugin that writes a row with all collected tests, then one per test."""

    def __init__(self, path: Path) -> None:
        self._rows = Rows(path)

    def pytest_collection_finish(self, session) -> None:
        self._rows.add({"kind": "collected", "tests": [item.nodeid for item in session.items]})

    def pytest_runtest_logreport(self, report) -> None:
        if report.when != "call" and report.outcome == "passed":
            return  # record setup and teardown only if they fail
        outcome, message = report.outcome, ""
        if outcome == "skipped":
            message = report.longrepr[2].removeprefix("Skipped: ")
            outcome = "left out" if message == LEFT_OUT else outcome
        elif outcome == "failed":
            message = str(report.longrepr)[-_LONGEST_MESSAGE:]
        row = dict(kind="test", test=report.nodeid, outcome=outcome, seconds=round(report.duration, 3), message=message)
        self._rows.add(row)


class Budget:
    """A pytest plugin that skips tests that would start after a time limit in seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def pytest_runtest_setup(self, item) -> None:
        if time.monotonic() >= self._end:
            pytest.skip(LEFT_OUT)


def in_shard(name: str, shard: str) -> bool:
    """Whether a test belongs to a shard such as "2/8". Each test belongs to exactly one shard, the same in every run.

    Raises:
        ValueError: the shard is not of the form K/N.
    """
    number, _, count = shard.partition("/")
    if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise ValueError(f"shard: expected K/N with K from 0 to N - 1, got {shard!r}")
    return zlib.crc32(name.encode()) % int(count) == int(number)
