"""Trainings in processes of their own, several at a time, each of them on one core."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.evidence.plan import Trial

LOG = "log.txt"


@dataclass
class Job:
    """A training under way."""

    trial: Trial
    process: subprocess.Popen
    log: Path

    def last_line(self) -> str:
        """What it said last, as of one that failed."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class Failed(Exception):
    """A training that did not come to its end."""


def run(
    waiting: Callable[[Iterable[str]], Trial | None],
    command: Callable[[Trial], list[str]],
    logs: Path,
    *,
    at_once: int,
    seconds: float | None,
    ended: Callable[[Trial], None],
) -> bool:
    """Begins trainings as long as there are any; those under way when the time is up are ended, to go on later.

    So they are where this process is told to end, by SIGTERM too, which then is a KeyboardInterrupt.

    Args:
        waiting: the next training that is not among the names of those under way; None while there is none.
        command: of a training, whole, with the program.
        logs: folder for what they print, a file for each.
        at_once: how many are under way together.
        seconds: until no more is begun and what is under way is ended; None sets no limit.
        ended: told of each that came to its end.

    Returns:
        Whether all came to their end.

    Raises:
        Failed: one ended with an error, with what it said last; the others are ended.
    """
    logs.mkdir(parents=True, exist_ok=True)
    jobs: list[Job] = []
    limit = None if seconds is None else time.monotonic() + seconds
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            while len(jobs) < at_once and (trial := waiting(job.trial.name for job in jobs)) is not None:
                jobs.append(_begin(trial, command(trial), logs))
            if not jobs:
                return True
            if limit is not None and time.monotonic() >= limit:
                return False
            time.sleep(0.5)
            for job in [job for job in jobs if job.process.poll() is not None]:
                jobs.remove(job)
                if job.process.returncode:
                    raise Failed(f"{job.trial.name}: {job.last_line()} ({job.log} has all of it)")
                ended(job.trial)
    finally:
        # Not by SIGINT, which whatever was started in the background ignores; the last checkpoint is gone on from.
        for job in jobs:
            job.process.terminate()
        for job in jobs:
            job.process.wait()
        signal.signal(signal.SIGTERM, before)


def _begin(trial: Trial, command: list[str], logs: Path) -> Job:
    log = logs / f"{trial.name}.{LOG}"
    with log.open("a", encoding="utf-8") as handle:
        process = subprocess.Popen(
            command,
            stdout=handle,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,  # a Ctrl-C is for this process, which ends the others in order
        )
    return Job(trial, process, log)
