"""A row for each test that ran, was skipped or was left out, as JSON lines, written as it ends."""

import json
import time
import zlib
from dataclasses import asdict
from pathlib import Path

import pytest

LEFT_OUT = "left out: the time is spent"
_LONGEST_MESSAGE = 2000


class Rows:
    """A file of rows, each written at once; the first says where they come from."""

    def __init__(self, path: Path) -> None:
        from benchmarks import rows

        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        self.add({"kind": "origin"} | asdict(rows.origin()))

    def add(self, record: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def read(path: Path) -> list[dict[str, object]]:
    """The rows of a file, none if it is not there. A process that was killed may have left part of a line."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def not_reached(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """A row for each test that was collected and has none, since its process ended before."""
    reached = {row["test"] for row in rows if row["kind"] == "test"}
    collected = [name for row in rows if row["kind"] == "collected" for name in row["tests"]]
    message = "its process ended, or was stopped when the time was over"
    return [
        dict(kind="test", test=name, outcome="left out", seconds=0.0, message=message)
        for name in collected
        if name not in reached
    ]


class Recorder:
    """A pytest plugin: a row for all tests that there are to run, then one for each."""

    def __init__(self, path: Path) -> None:
        self._rows = Rows(path)

    def pytest_collection_finish(self, session) -> None:
        self._rows.add({"kind": "collected", "tests": [item.nodeid for item in session.items]})

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
        self._rows.add(row)


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
