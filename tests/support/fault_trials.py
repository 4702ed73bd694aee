"""The trials of check_faults.py: one run each, disturbed, gone on with, and held to the undisturbed one."""

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
from qacg_models.training.checkpoints import best_of, checkpoints

MOST_KILLS = 3
ALREADY_THERE = "is already there; --overwrite replaces it"
NO_ROOM = ("No space left on device", "File too large")


@dataclass
class Report:
    """What came of the trials: counts by name, and a line for whatever was wrong. If not quiet it tells each."""

    folder: Path
    quiet: bool = False
    counts: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def take(self, kind: str, trial: str, wrong: str | None, place: Path) -> None:
        """Counts a trial, says what it was, and deletes its folder; that of the first wrong one is kept."""
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
    """The trials of one call.

    Args:
        folder: to work in.
        before: is called in every command's process first.
    """

    def __init__(self, folder: Path, generator: random.Random, report: Report, before: Callable[[], None]):
        self.folder, self.random, self.report, self.before = folder, generator, report, before
        self.log = folder / "log"

    def place(self) -> Path:
        path = self.folder / "trial" / "work"
        path.mkdir(parents=True)
        return path

    def end(self, subject: Subject, place: Path) -> tuple[Outcome, str | None]:
        """The run gone on with to its end, and what is wrong with that."""
        outcome = run(subject.arguments(place, "--resume"), self.log, before=self.before)
        if outcome.status and not was_done(subject, outcome):
            return outcome, f"--resume ended with {outcome.status}: {outcome.last_line}"
        return outcome, subject.wrong_end(place)

    def kill(self, subject: Subject) -> None:
        """One run killed once or more, at moments drawn from the time that the undisturbed one takes."""
        place, met, wrong = self.place(), [], None
        for number in range(self.random.randint(1, MOST_KILLS)):
            after = self.random.uniform(0, subject.seconds)
            more = ["--resume"] if number else []
            outcome = run(subject.arguments(place, *more), self.log, kill_after=after, before=self.before)
            if not outcome.killed:
                if outcome.status and not was_done(subject, outcome):
                    wrong = f"ended with {outcome.status}: {outcome.last_line}"
                break
            self.report.counts["kills"] += 1
            met.append(f"{after:.2f} s ({state(subject, place)})")
            if subject.wrong_end(place) is None:  # it was done, and a prediction that is has nothing to go on with
                break
        if wrong is None and subject.wrong_end(place) is not None:
            _, wrong = self.end(subject, place)
        kind = "killed" if met else "not killed, it was done before"
        self.report.take(kind, f"{subject.name}{', after ' if met else ''}{', '.join(met)}", wrong, place.parent)

    def fill(self, subject: Subject, mounts: bool, size: int | None = None) -> None:
        """One run with little room, at random if not given, and gone on with where there is more."""
        place = self.place()
        size = self.room(subject, mounts) if size is None else size
        outcome = run_with_little_room(subject.arguments(place), place, size, self.log, mounts, self.before)
        trial = f"{subject.name}, room for {size:,} bytes"
        if outcome.status == 0:
            return self.report.take("enough room", trial, subject.wrong_end(place), place.parent)
        wrong = complaint(subject, outcome, place)
        if wrong is None:
            _, wrong = self.end(subject, place)
        self.report.take("full disk", f"{trial} ({outcome.last_line.rpartition('/')[2]})", wrong, place.parent)

    def room(self, subject: Subject, mounts: bool) -> int:
        """Bytes of a file system, at random up to what the undisturbed run needs; of a file, up to the largest one."""
        files = [path for path in (self.folder / subject.name).rglob("*") if path.is_file()]
        sizes = [path.stat().st_size for path in files]
        # A training has two checkpoints and the best weights at a time, each with an optimizer of twice its weights.
        most = (10 * sum(sizes) if subject.trains else 2 * sum(sizes)) if mounts else 2 * max(sizes)
        return self.random.randint(1, most)

    def go_on(self, subject: Subject, unfinished: Path) -> None:
        """One unfinished run, gone on with."""
        place = self.place()
        shutil.copytree(unfinished, place / unfinished.name)
        self.report.take("gone on", subject.name, self.end(subject, place)[1], place.parent)

    def damage(self, subject: Subject, unfinished: Path, file: Path, way: str) -> None:
        """One unfinished run with one damaged file, gone on with."""
        place = self.place()
        work = shutil.copytree(unfinished, place / unfinished.name)
        path = work / file
        WAYS[way](path, self.random)
        outcome, wrong = self.end(subject, place)
        said = [line for line in outcome.out.splitlines() if " set aside as " in line or "it is made again" in line]
        # A digest that is damaged tells of the file whose digest it was.
        named = path.parent if path.name == "digests.json" else path
        # A part that is not there is one that has not been made yet.
        noticed = any(line.startswith(str(named)) for line in said) or (way == "missing" and not subject.trains)
        if wrong is None and not noticed:
            wrong = "the damage was not named"
        self.report.counts["noticed"] += noticed
        self.report.take("damaged", f"{subject.name}, {file} {way}", wrong, place.parent)

    def died(self, subject: Subject) -> Path:
        """What a run leaves that is killed with several checkpoints, or parts, there."""
        place = self.folder / f"died {subject.name}"
        place.mkdir()
        outcome = run(subject.arguments(place), self.log, before=dying_late)
        if not outcome.killed:
            raise RuntimeError(f"{subject.name}: wanted to be killed, ended with {outcome.status}: {outcome.err}")
        return place / subject.unfinished


def was_done(subject: Subject, outcome: Outcome) -> bool:
    """Whether a prediction found its output there: the run before was killed while it removed its parts."""
    return not subject.trains and outcome.status == 2 and outcome.last_line.endswith(ALREADY_THERE)


def state(subject: Subject, place: Path) -> str:
    """How far a killed run had come."""
    work = place / subject.unfinished
    if work.exists() and work.name == subject.output:
        return ", ".join(sorted(path.name for path in work.iterdir())) or "nothing there"
    if (place / subject.output).exists():
        return "published"
    if not work.exists():
        return "nothing there"
    if not subject.trains:
        return f"{len([path for path in work.iterdir() if path.name.isdigit()])} parts"
    writing = ", writing" if (work / ".writing").exists() else ""
    found = sorted((int(path.name.rpartition("-")[2]) for path in work.glob("checkpoint-*")), reverse=True)
    return (f"checkpoint {found[0]}" if found else "no checkpoint") + writing


def complaint(subject: Subject, outcome: Outcome, place: Path) -> str | None:
    """What is wrong with how a run ended that had no room."""
    line = outcome.last_line
    if outcome.status != 2 or "Traceback" in outcome.err:
        return f"ended with {outcome.status}, wanted 2: {outcome.err[-2000:]}"
    if not line.startswith(f"qacg {subject.verb}: ") or str(place) not in line:
        return f"the last line does not name the place: {line}"
    if not any(reason in line for reason in NO_ROOM):
        return f"the last line does not have the reason: {line}"
    if (place / subject.output).exists():
        return "something was published"
    return None


def cut(path: Path, generator: random.Random) -> None:
    os.truncate(path, generator.randrange(path.stat().st_size))


def flip(path: Path, generator: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for place in generator.sample(range(len(content)), min(len(content), generator.choice((1, 1, 8, 64)))):
        content[place] ^= 0xFF
    path.write_bytes(content)


WAYS = {"missing": lambda path, _: path.unlink(), "cut": cut, "flipped": flip}


def dying_late() -> None:
    """Makes a command kill itself when it writes its fifth checkpoint, or its parts are all there."""
    from qacg_models.inference import bulk_prediction
    from qacg_models.training.trainer import AspectTrainer

    plain, calls = AspectTrainer._save_checkpoint, []

    def dying(trainer, model, trial):
        calls.append(trial)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        plain(trainer, model, trial)

    AspectTrainer._save_checkpoint = dying
    bulk_prediction._join = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def damageable(unfinished: Path) -> list[Path]:
    """The files of the newest checkpoint, of the best weights that it names and of the features, or of all parts, by
    their place there."""
    newest = checkpoints(unfinished)[-1:]
    # Better weights than those may lie there, which were written after it: nothing goes on from them.
    folders = [*newest, *(best for path in newest if (best := best_of(path)))]
    folders = [*folders, *unfinished.glob("features-*")] if folders else [unfinished]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sorted(path.relative_to(unfinished) for path in files if path.name not in ("plan.json", "README.md"))
