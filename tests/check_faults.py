"""Kills trainings and predictions, and fills disks; results must be unchanged: `make check-faults`.

    make check-faults                 ten minutes of one core
    make check-faults FAULTS=short    one minute

Kills: SIGKILL at random times, once or several times, then --resume. The weights and metrics of a training and the
bytes of a prediction must be those of the undisturbed run, and no other file may be left.

Full disks: a file system of random size (or, if none can be mounted, a limit on the size of files). The command must
exit with status 2 and one line with the path and the reason, publish nothing, and end correctly with --resume on
another disk.

First, the checks run on deliberate faults and must find them: random states that are not restored, a chunk of
predictions that is written in part and not cut, and a full disk without an error message.

Power loss is not simulated. The exit status is 1 if any trial is wrong, and the folder of the first such trial is kept.
The seed is printed; --seed repeats the random choices, but not the timing of the machine.
"""

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests/support")]

from fault_subjects import Subject, subjects  # noqa: E402
from fault_trials import Report, Trials  # noqa: E402
from forked_commands import can_mount, preload  # noqa: E402

# Numbers of kills and full disks per subject.
FORMS = {"short": (5, 2), "full": (40, 12)}


def random_numbers_forgotten() -> None:
    from qacg_models.training.trainer import AspectTrainer

    AspectTrainer._load_rng_state = lambda trainer, checkpoint: None


def torn_chunk_kept() -> None:
    os.truncate = lambda path, size: None


def errors_unexplained() -> None:
    from qacg_models.inference import partial_file
    from qacg_models.training import run_folder, trainer

    run_folder.explain_write_errors = trainer.explain_write_errors = lambda folder: contextlib.nullcontext()
    partial_file.PartialFile._writing = lambda file: contextlib.nullcontext()


def show_faults(folder: Path, every: list[Subject], died: dict[str, Path], mounts: bool) -> None:
    """Exits if a check does not find a deliberate fault."""
    training, prediction = (next(s for s in every if s.trains is trains) for trains in (True, False))
    shown: list[tuple[Callable[[], None], Subject, Callable[[Trials], None]]] = [
        (random_numbers_forgotten, training, lambda trials: trials.resume(training, died[training.name])),
        (errors_unexplained, training, lambda trials: trials.fill(training, mounts, 100_000 if mounts else 10_000)),
        (errors_unexplained, prediction, lambda trials: trials.fill(prediction, mounts, 10_000)),
        (torn_chunk_kept, prediction, lambda trials: trials.fill(prediction, mounts, 10_000)),
    ]
    for fault, subject, trial in shown:
        report = Report(folder, quiet=True)
        trial(Trials(folder, random.Random(0), report, before=fault))
        name = f"{fault.__name__.replace('_', ' ')}, {subject.name}"
        if not report.wrong:
            sys.exit(f"the check did not find a deliberate fault: {name}")
        print(f"deliberate fault found: {name}", flush=True)


def check(folder: Path, seed: int, form: str) -> Report:
    """Runs all trials in `folder` and returns their results; `form`, a key of FORMS, sets the numbers of trials."""
    kills, full_disks = FORMS[form]
    generator, report = random.Random(seed), Report(folder)
    mounts = can_mount(folder)
    every = subjects(folder)
    trials = Trials(folder, generator, report, before=lambda: None)
    several = [subject for subject in every if not subject.only_killed]
    died = {subject.name: trials.died(subject) for subject in several if subject.trains}
    show_faults(folder, every, died, mounts)
    for subject in every:
        for _ in range(kills):
            trials.kill(subject)
    disks = "file systems of that size" if mounts else "cannot be mounted here; the size of files is limited"
    print(f"full disks: {disks}", flush=True)
    for subject in several:
        for _ in range(full_disks):
            trials.fill(subject, mounts)
    return report


@contextlib.contextmanager
def working_folder(given: Path | None) -> Iterator[Path]:
    """Yields a new folder in `given` (None: where the system has temporary files), and deletes it at the end.

    The folder is kept if a trial was wrong or an error was raised.
    """
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="check-faults-", dir=given)).resolve()
    yield folder
    if (folder / "wrong").exists():
        print(f"the first wrong trial is kept in {folder / 'wrong'}")
    else:
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=FORMS, default="full", help="how many trials (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="seed of times and sizes; random if not given")
    parser.add_argument("--out", type=Path, help="working folder; a temporary one if not given")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    preload()
    with working_folder(options.out) as folder:
        report = check(folder, seed, options.form)
    counts = report.counts
    print(
        f"\nkills: {counts['kills']} in {counts['killed']} runs, {counts['killed right']} resumed to the same end;"
        f" disks filled: {counts['full disk']}, {counts['full disk right']} reported and resumed to the same end"
    )
    for line in report.wrong:
        print(f"WRONG: {line}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
