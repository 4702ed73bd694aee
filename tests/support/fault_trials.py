"""The trials of check_faults.py: each disturbs one run, resumes it, and compares it with the undisturbed run."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fault_subjects import Subject
from forked_commands import Outcome, run, run_with_little_room

MOST_KILLS = 3
ALREADY_THERE = "which exists. Set --overwrite to replace it."
NO_ROOM = ("No space left on device", "File too large")


@dataclass
class Report:
    """Collects results of trials: counts by kind, and a line for each wrong one. Prints each trial unless quiet."""

    folder: Path
    quiet: bool = False
    counts: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def take(self, kind: str, trial: str, wrong: str | None, place: Path) -> None:
        """Counts and prints a trial. Deletes its folder, except that of the first wrong trial."""
        self.counts[kind] += 1
        self.counts[f"{kind} right"] += wrong is None
        if not self.quiet:
            print(f"{kind}: {trial}: {'as undisturbed' if wrong is None else f'WRONG: {wrong}'}", flush=True)
        if wrong is not None:
            self.wrong.append(f"{kind}: {trial}: {wrong}")
            if not self.quiet and not (self.folder / "wrong").exists():
                place.rename(self.folder / "wrong")
        shutil.rmtree(place, ignore_errors=True)


class Trials:
    """The trials of one run of check_faults.py.

    Args:
        folder: working folder.
        generator: random number generator of the trials.
        report: collects the results.
        before: a function that the process of each command in a trial calls first.
    """

    def __init__(self, folder: Path, generator: random.Random, report: Report, before: Callable[[], None]):
        self.folder, self.random, self.report, self.before = folder, generator, report, before
        self.log = folder / "log"

    def place(self) -> Path:
        path = self.folder / "trial" / "work"
        path.mkdir(parents=True)
        return path

    def end(self, subject: Subject, place: Path) -> tuple[Outcome, str | None]:
        """Resumes a run to its end; returns its Outcome, and what is wrong with it or None."""
        outcome = run(subject.arguments(place, "--resume"), self.log, before=self.before)
        if outcome.status and not was_done(subject, outcome):
            return outcome, f"--resume: expected status 0, got {outcome.status}: {outcome.last_line}"
        return outcome, subject.wrong_end(place)

    def kill(self, subject: Subject) -> None:
        """A trial that kills a run once or several times, at random times within the undisturbed run's duration."""
        place, kills, wrong = self.place(), [], None
        for number in range(self.random.randint(1, MOST_KILLS)):
            after = self.random.uniform(0, subject.seconds)
            more = ["--resume"] if number else []
            outcome = run(subject.arguments(place, *more), self.log, kill_after=after, before=self.before)
            if not outcome.killed:
                if outcome.status and not was_done(subject, outcome):
                    wrong = f"ended with {outcome.status}: {outcome.last_line}"
                break
            self.report.counts["kills"] += 1
            kills.append(f"{after:.2f} s ({state(subject, place)})")
            if subject.wrong_end(place) is None:  # complete; a complete prediction cannot be resumed
                break
        if wrong is None and subject.wrong_end(place) is not None:
            _, wrong = self.end(subject, place)
        kind = "killed" if kills else "ended before it was killed"
        self.report.take(kind, f"{subject.name}{', after ' if kills else ''}{', '.join(kills)}", wrong, place.parent)

    def fill(self, subject: Subject, mounts: bool, size: int | None = None) -> None:
        """A trial that runs on a disk of `size` bytes (None: random), and resumes on a disk with enough space."""
        place = self.place()
        size = self.disk_size(subject, mounts) if size is None else size
        outcome = run_with_little_room(subject.arguments(place), place, size, self.log, mounts, self.before)
        trial = f"{subject.name}, disk of {size:,} bytes"
        if outcome.status == 0:
            return self.report.take("enough space", trial, subject.wrong_end(place), place.parent)
        wrong = complaint(subject, outcome, place)
        if wrong is None:
            _, wrong = self.end(subject, place)
        self.report.take("full disk", f"{trial} ({outcome.last_line.rpartition('/')[2]})", wrong, place.parent)

    def disk_size(self, subject: Subject, mounts: bool) -> int:
        """A random limit in bytes: on all files if the disk is mounted, else on a single file."""
        files = [path for path in (self.folder / subject.name).rglob("*") if path.is_file()]
        sizes = [path.stat().st_size for path in files]
        # A training run keeps three checkpoints for a moment, each with the best weights and the optimizer's state.
        most = (10 if subject.trains else 1) * sum(sizes) if mounts else 2 * max(sizes)
        return self.random.randint(1, most)

    def resume(self, subject: Subject, unfinished: Path) -> None:
        """Resumes an unfinished run."""
        place = self.place()
        shutil.copytree(unfinished, place / unfinished.name)
        self.report.take("resumed", subject.name, self.end(subject, place)[1], place.parent)

    def died(self, subject: Subject) -> Path:
        """Starts a training that kills itself after several checkpoints; returns the unfinished run's folder."""
        place = self.folder / f"died {subject.name}"
        place.mkdir()
        outcome = run(subject.arguments(place), self.log, before=dying_late)
        if not outcome.killed:
            raise RuntimeError(f"{subject.name}: expected a killed process, got status {outcome.status}: {outcome.err}")
        return place / subject.unfinished


def was_done(subject: Subject, outcome: Outcome) -> bool:
    """Whether a resumed prediction only reports that its output exists, because the killed run had completed it."""
    return not subject.trains and outcome.status == 2 and outcome.last_line.endswith(ALREADY_THERE)


def state(subject: Subject, place: Path) -> str:
    """Describes the progress of a killed run, by the files that it has written."""
    work = place / subject.unfinished
    if work.exists() and work.name == subject.output:
        return ", ".join(sorted(path.name for path in work.iterdir())) or "no file"
    if (place / subject.output).exists():
        return "published"
    if not work.exists():
        return "no file"
    if not subject.trains:
        return f"{work.stat().st_size:,} bytes"
    writing = ", writing" if (work / ".writing").exists() else ""
    found = sorted((int(path.name.rpartition("-")[2]) for path in work.glob("checkpoint-*")), reverse=True)
    return (f"checkpoint {found[0]}" if found else "no checkpoint") + writing


def complaint(subject: Subject, outcome: Outcome, place: Path) -> str | None:
    """What is wrong with how a run ended on a full disk; None if nothing is."""
    line = outcome.last_line
    if outcome.status != 2 or "Traceback" in outcome.err:
        return f"expected status 2 and no traceback, got {outcome.status}: {outcome.err[-2000:]}"
    if not line.startswith(f"qacg {subject.verb}: ") or str(place) not in line:
        return f"expected the place in the last line, got {line}"
    if not any(reason in line for reason in NO_ROOM):
        return f"expected the reason in the last line, got {line}"
    if (place / subject.output).exists():
        return "expected no output, got one"
    return None


def dying_late() -> None:
    """Makes this process's training kill itself at its fifth checkpoint."""
    from qacg_models.training.trainer import AspectTrainer

    plain, calls = AspectTrainer._save_checkpoint, []

    def dying(trainer, model, trial):
        calls.append(trial)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        plain(trainer, model, trial)

    AspectTrainer._save_checkpoint = dying
