"""Kills trainings and predictions, and fills disks; results must be unchanged: `make check-faults`.

    make check-faults                 ten minutes of one core
    make check-faults FAULTS=short    one minute

Kills: SIGKILL at random times, once or several times, then --resume. The weights and metrics of a training and the
bytes of a prediction must be those of the undisturbed run, and no other file may be left.

Full disks: a file system of random size (or, if none can be mounted, a limit on the size of files). The command must
exit with status 2 and one line with the path and the reason, publish nothing, and end correctly with --resume on
another disk.

Power loss is not simulated. The exit status is 1 if any trial is wrong, and the folder of the first such trial is kept.
The seed is printed; --seed repeats the random choices, but not the timing of the machine.
"""

import argparse
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests/support")]

from model_sizes import SMALL_FLAGS  # noqa: E402
from qacg_models.cli.commands import predict  # noqa: E402
from qacg_models.cli.program import main as qacg  # noqa: E402
from qacg_models.sentiment.dataset import sample_directory  # noqa: E402

# Numbers of kills and full disks per subject.
FORMS = {"short": (3, 1), "full": (40, 12)}
MOST_KILLS = 3
ROWS = {"train": 240, "dev": 80, "test": 80}
TEXTS = 400
WINDOW = 24  # texts of a chunk, so that a prediction writes often
SHORT = [*SMALL_FLAGS, "--epochs=2", "--batch-size=16", "--learning-rate=3e-3"]
SHORT += ["--set=eval_every=10", "--set=checkpoint_every=4"]
# Dropout, balanced sampling and the optimizer of the released code each have a state that --resume must restore.
TRAININGS = {
    "training": [*SHORT, "--set=dropout=0.1"],
    "training, released protocol": [*SHORT, "--set=protocol=released", "--set=balance=0.5"],
}
SEEDS = "training, two seeds"
PREDICTIONS = {"prediction, jsonl": "out.jsonl", "prediction, csv": "out.csv"}
# The parts of records that contain no times and so are deterministic.
RECORDS = {
    "training.json": ("metrics", "majority", "selected", "steps", "loss", "data"),
}
ALREADY_THERE = "which exists. Set --overwrite to replace it."
NO_ROOM = ("No space left on device", "File too large")


# Modules that commands import inside functions. Commands run in forks, which have everything imported, so that a kill
# at a random moment interrupts the command and not the start of Python. This process must not have computed anything
# with torch, because a fork would lack torch's threads.
PRELOADED = ("cli", "models.auto", "sentiment.predictor", "sentiment.training.trainer")


@dataclass(frozen=True)
class Outcome:
    """The result of a command: exit status (negative: the signal that ended it), errors, and duration in seconds."""

    status: int
    err: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    @property
    def last_line(self) -> str:
        return (self.err.splitlines() or [""])[-1]


def run(
    arguments: list[str],
    log: Path,
    *,
    kill_after: float | None = None,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> Outcome:
    """Runs `qacg` in a fork, which gets SIGKILL after `kill_after` seconds, if it has not ended by then.

    Its output is written to files beside `log`. The fork calls `before` and `after` before and after the command.
    """
    files = [log.with_suffix(suffix) for suffix in (".out", ".err")]
    sys.stdout.flush()
    started = time.monotonic()
    child = os.fork()
    if not child:
        _in_fork(arguments, files, before, after)
    if kill_after is not None:
        while time.monotonic() - started < kill_after:
            time.sleep(0.0005)
        os.kill(child, signal.SIGKILL)  # the process id stays reserved until waitpid
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Outcome(status, files[1].read_text(encoding="utf-8", errors="replace"), time.monotonic() - started)


def _in_fork(arguments: list[str], files: list[Path], before: Callable, after: Callable) -> None:
    status = 70
    try:
        for number, path in enumerate(files, 1):
            os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644), number)
        before()
        status = qacg(arguments)
        after()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def mount_small_disk(folder: Path, size: int) -> None:
    """Mounts an empty file system of `size` bytes for this process only. The process must have a single thread.

    Raises:
        OSError: new namespaces, or mounts in them, are not allowed here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()

    def call(function: Callable[..., int], *arguments: object) -> None:
        if function(*arguments):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    new_user, new_mounts = 0x10000000, 0x00020000
    call(libc.unshare, new_user | new_mounts)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    call(libc.mount, b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), f"size={size}".encode())


def can_mount(folder: Path) -> bool:
    """Whether `mount_small_disk` works on this machine."""
    child = os.fork()
    if not child:
        try:
            mount_small_disk(folder, 1 << 20)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def limit_files(size: int) -> None:
    """Limits the size of each file that this process writes, which causes errors as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@dataclass
class Subject:
    """A command with a deterministic output, which is a file or folder in the working folder.

    Attributes:
        name: name in reports.
        command: arguments of qacg, without the output.
        output: name of the output in the working folder.
        expected: `contents` of the undisturbed run.
        seconds: duration of the undisturbed run.
    """

    name: str
    command: list[str]
    output: str
    expected: dict[str, object] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def trains(self) -> bool:
        return self.command[0] == "train"

    def arguments(self, folder: Path, *more: str) -> list[str]:
        return [*self.command, "--output", str(folder / self.output), *more]

    def contents(self, folder: Path) -> dict[str, object]:
        """The contents of the output's files, by name; of records, only the parts that contain no times."""
        output = folder / self.output
        if not self.trains:
            return {output.name: output.read_bytes()}
        found: dict[str, object] = {}
        for path in output.rglob("*"):
            name = path.relative_to(output).as_posix()
            if path.name in RECORDS:
                record = json.loads(path.read_text(encoding="utf-8"))
                found |= {f"{part} of {name}": record[part] for part in RECORDS[path.name]}
            elif path.is_file():
                found[name] = path.read_bytes()
        return found

    def wrong_end(self, folder: Path) -> str | None:
        """What is wrong in the working folder after a run; None if it has exactly the expected files."""
        names = sorted(path.name for path in folder.iterdir())
        if names != [self.output]:
            return f"left {', '.join(names) or 'nothing'}"
        found = self.contents(folder)
        names = sorted(self.expected.keys() | found.keys())
        other = [name for name in names if self.expected.get(name) != found.get(name)]
        return f"{', '.join(other)} differ from the undisturbed run" if other else None


def write_inputs(folder: Path) -> tuple[Path, Path]:
    """Writes a small data set and a file of texts; returns their paths."""
    data, texts = folder / "data", folder / "texts.txt"
    data.mkdir()
    for split, rows in ROWS.items():
        lines = (sample_directory() / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        (data / f"{split}.tsv").write_text("\n".join(lines[: 1 + rows]) + "\n", encoding="utf-8")
    rows = (sample_directory() / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    sentences = dict.fromkeys(row.split("\t")[1] for row in rows)
    texts.write_text("\n".join([*sentences][:TEXTS]) + "\n", encoding="utf-8")
    return data, texts


def subjects(folder: Path) -> list[Subject]:
    """Makes all subjects (training runs, and predictions by the first trained model) and runs each once undisturbed."""
    data, texts = write_inputs(folder)
    every = [Subject(name, ["train", "--data", str(data), *flags], "model") for name, flags in TRAININGS.items()]
    every.append(Subject(SEEDS, [*every[0].command, "--seeds", "0", "1"], "model"))
    command = ["predict", str(folder / "training" / "model"), "--input", str(texts)]
    every += [Subject(name, command, output) for name, output in PREDICTIONS.items()]
    for subject in every:
        place = folder / subject.name
        place.mkdir()
        outcome = run(subject.arguments(place), folder / "log")
        if outcome.status:
            sys.exit(f"{subject.name}: expected status 0 of the undisturbed run, got {outcome.status}\n{outcome.err}")
        subject.expected, subject.seconds = subject.contents(place), outcome.seconds
    return every


class Trials:
    """Trials in a folder: each disturbs one run, resumes it, and compares it with the undisturbed run.

    Attributes:
        counts: number of trials by kind.
        wrong: a line for each wrong trial. The folder of the first one is kept.
    """

    def __init__(self, folder: Path, generator: random.Random) -> None:
        self.folder, self.random = folder, generator
        self.log = folder / "log"
        self.counts: Counter = Counter()
        self.wrong: list[str] = []

    def place(self) -> Path:
        path = self.folder / "trial" / "work"
        path.mkdir(parents=True)
        return path

    def record(self, kind: str, trial: str, wrong: str | None) -> None:
        """Counts a trial and deletes its folder."""
        self.counts[kind] += 1
        if wrong is not None:
            self.wrong.append(f"{kind}: {trial}: {wrong}")
            if not (self.folder / "wrong").exists():
                (self.folder / "trial").rename(self.folder / "wrong")
        shutil.rmtree(self.folder / "trial", ignore_errors=True)

    def resume(self, subject: Subject, place: Path) -> str | None:
        """Resumes a run to its end; returns what is wrong with it, or None."""
        outcome = run(subject.arguments(place, "--resume"), self.log)
        if outcome.status and not was_done(subject, outcome):
            return f"--resume: expected status 0, got {outcome.status}: {outcome.last_line}"
        return subject.wrong_end(place)

    def kill(self, subject: Subject) -> None:
        """Kills a run once or several times, at random times within the undisturbed run's duration."""
        place, kills, wrong = self.place(), [], None
        for number in range(self.random.randint(1, MOST_KILLS)):
            after = self.random.uniform(0, subject.seconds)
            more = ["--resume"] if number else []
            outcome = run(subject.arguments(place, *more), self.log, kill_after=after)
            if not outcome.killed:
                if outcome.status and not was_done(subject, outcome):
                    wrong = f"ended with {outcome.status}: {outcome.last_line}"
                break
            kills.append(f"{after:.2f} s")
            if subject.wrong_end(place) is None:  # complete; a complete prediction cannot be resumed
                break
        if wrong is None and subject.wrong_end(place) is not None:
            wrong = self.resume(subject, place)
        self.record("killed" if kills else "not killed", f"{subject.name} after {', '.join(kills)}", wrong)

    def fill(self, subject: Subject, mounts: bool) -> None:
        """Runs on a disk of random size, and resumes on a disk with enough space."""
        place, size = self.place(), self.disk_size(subject, mounts)
        kept = place.with_name("kept")

        def confined() -> None:
            if mounts:
                mount_small_disk(place, size)
            else:
                limit_files(size)

        def keep() -> None:  # the file system ends with the process
            if mounts:
                shutil.copytree(place, kept)

        outcome = run(subject.arguments(place), self.log, before=confined, after=keep)
        if kept.exists():
            place.rmdir()
            kept.rename(place)
        if outcome.status == 0:
            return self.record("enough space", subject.name, subject.wrong_end(place))
        wrong = complaint(subject, outcome, place) or self.resume(subject, place)
        self.record("full disk", f"{subject.name}, disk of {size:,} bytes", wrong)

    def disk_size(self, subject: Subject, mounts: bool) -> int:
        """A random limit in bytes: on all files if the disk is mounted, else on a single file."""
        sizes = [path.stat().st_size for path in (self.folder / subject.name).rglob("*") if path.is_file()]
        # A training run keeps three checkpoints for a moment, each with the best weights and the optimizer's state.
        most = (10 if subject.trains else 1) * sum(sizes) if mounts else 2 * max(sizes)
        return self.random.randint(1, most)


def was_done(subject: Subject, outcome: Outcome) -> bool:
    """Whether a resumed prediction only reports that its output exists, because the killed run had completed it."""
    return not subject.trains and outcome.status == 2 and outcome.last_line.endswith(ALREADY_THERE)


def complaint(subject: Subject, outcome: Outcome, place: Path) -> str | None:
    """What is wrong with how a run ended on a full disk; None if nothing is."""
    line = outcome.last_line
    if outcome.status != 2 or "Traceback" in outcome.err:
        return f"expected status 2 and no traceback, got {outcome.status}: {outcome.err[-2000:]}"
    if str(place) not in line or not any(reason in line for reason in NO_ROOM):
        return f"expected the place and the reason in the last line, got {line}"
    return "expected no output, got one" if (place / subject.output).exists() else None


def check(folder: Path, seed: int, form: str) -> Trials:
    """Runs all trials in `folder`; `form`, a key of FORMS, sets the numbers of trials."""
    kills, full_disks = FORMS[form]
    mounts = can_mount(folder)
    every = subjects(folder)
    disks = "file systems of that size" if mounts else "cannot be mounted here; the size of files is limited"
    print(f"full disks: {disks}", flush=True)
    trials = Trials(folder, random.Random(seed))
    for subject in every:
        print(subject.name, flush=True)
        for _ in range(kills):
            trials.kill(subject)
        for _ in range(full_disks if subject.name != SEEDS else 0):
            trials.fill(subject, mounts)
    return trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=FORMS, default="full", help="how many trials (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="seed of times and sizes; random if not given")
    parser.add_argument("--out", type=Path, default=None, help="working folder; a temporary one if not given")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    for name in PRELOADED:
        import_module(f"qacg_models.{name}")
    predict.WINDOW = WINDOW
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="check-faults-", dir=options.out)).resolve()
    trials = check(folder, seed, options.form)
    print(", ".join(f"{count} {kind}" for kind, count in trials.counts.items()))
    print("".join(f"WRONG: {line}\n" for line in trials.wrong), end="")
    if trials.wrong:
        print(f"the first wrong trial is kept in {folder / 'wrong'}")
    else:
        shutil.rmtree(folder)
    return int(bool(trials.wrong))


if __name__ == "__main__":
    sys.exit(main())
