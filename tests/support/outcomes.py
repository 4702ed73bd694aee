"""Pytest plugins that record the outcome of each test as a JSON line, and that stop after a time limit."""

import json
import time
import zlib
from dataclasses import asdict
from pathlib import Path

import pytest

LEFT_OUT = "not run: the time limit is reached"
_LONGEST_MESSAGE = 2000


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
    """A pytest plugin that writes JSON lines: the origin of the run, all collected tests, then a row for each test."""

    def __init__(self, path: Path) -> None:
        from benchmarks import records

        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        self._add(asdict(records.origin()), kind="origin")

    def _add(self, row: dict[str, object], kind: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:  # written immediately
            file.write(json.dumps({"kind": kind} | row) + "\n")

    def pytest_collection_finish(self, session) -> None:
        self._add({"tests": [item.nodeid for item in session.items]}, kind="collected")

    def pytest_runtest_logreport(self, report) -> None:
        if report.when != "call" and report.outcome == "passed":
            return  # record setup and teardown only if they fail
        outcome, message = report.outcome, ""
        if outcome == "skipped":
            message = report.longrepr[2].removeprefix("Skipped: ")
            outcome = "left out" if message == LEFT_OUT else outcome
        elif outcome == "failed":
            message = str(report.longrepr)[-_LONGEST_MESSAGE:]
        row = dict(test=report.nodeid, outcome=outcome, seconds=round(report.duration, 3), message=message)
        self._add(row, kind="test")


class Budget:
    """A pytest plugin that skips tests that would start after a time limit in seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def pytest_runtest_setup(self, item) -> None:
        if time.monotonic() >= self._end:
            pytest.skip(LEFT_OUT)


def in_shard(name: str, shard: str) -> bool:
    """Whether a test belongs to a shard such as "2/8". Each test belongs to one shard, the same in every run."""
    number, count = map(int, shard.split("/"))
    return zlib.crc32(name.encode()) % count == number
