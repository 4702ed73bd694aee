"""The folder of an unfinished run, OUTPUT.unfinished, whose content survives a crash.

`RunFolder.new_folder` creates a folder in OUTPUT.unfinished in three steps:

1. Write: files are written to `.writing/NAME`, which nothing reads.
2. Record: `digests.json` stores the SHA-256 of every file, and all files are flushed to the disk.
3. Rename: `.writing/NAME` becomes `NAME`. So a folder with its final name is complete, even if the process is killed.

A resumed run compares the files with their digests before it uses a folder. `RunFolder.finish` renames the complete
model to OUTPUT and deletes the rest.

| path | content |
|---|---|
| `choices.json` | number of processes, options without the time limit, data digests; must not change on resuming |
| `features-SPLIT/` | encoded rows |
| `checkpoint-STEP/` | state of the Trainer, `run_state.json`, and with the schedule steady the average of the weights |
| `best-STEP/` | weights of the best evaluation so far; each checkpoint refers to those that were best at its step |
| `damaged-NAME/` | a folder with a damaged or missing file, or a checkpoint that refers to damaged or missing weights |
| `model/` | the model, once training has ended |
| `done` | marks `model/` as complete |
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from qacg_models.data import file_digest
from qacg_models.errors import InputError
from qacg_models.runs.record import RECORD_NAME
from qacg_models.utils.atomic_files import OLD, atomic_write, explain_write_errors, remove_folder, replace_folder
from qacg_models.utils.distributed import is_main, world_size
from qacg_models.utils.json_fields import convert_json, read_json_as
from qacg_models.utils.output_lock import unfinished_path

CHOICES_NAME = "choices.json"
CHOICES_FORMAT = 1
DIGESTS_NAME = "digests.json"
STATE_NAME = "run_state.json"
WRITING = ".writing"
BEST = "best"
DAMAGED = "damaged-"
MODEL = "model"
DONE = "done"

Say = Callable[[str], None]


@dataclass(frozen=True)
class RunState:
    """State of a run that a checkpoint stores in addition to the Trainer's state.

    Attributes:
        seconds: duration of training up to the checkpoint.
        micro_batches: number of micro-batches into which a batch is split.
    """

    seconds: float = 0.0
    micro_batches: int = 1

    def write(self, folder: Path) -> None:
        """Writes run_state.json into the folder of a checkpoint."""
        (folder / STATE_NAME).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, checkpoint: Path | None) -> RunState:
        """Returns the state of a checkpoint, or the initial state for None; InputError if the file cannot be read."""
        return cls() if checkpoint is None else read_json_as(cls, checkpoint / STATE_NAME)


@dataclass(frozen=True)
class Damage:
    """The path of a file or folder that is missing, unreadable or different from what was written, and the reason."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class RunFolder:
    """The folder OUTPUT.unfinished of a run that trains the model folder `output`.

    Attributes:
        output: folder of the finished model.
    """

    output: Path

    @property
    def path(self) -> Path:
        """The path OUTPUT.unfinished."""
        return unfinished_path(self.output)

    def open(self, choices: dict, *, overwrite: bool, resume: bool, say: Say) -> Path | None:
        """Creates the folder and writes choices.json, or opens the folder of an interrupted run.

        Args:
            choices: all options and data digests on which the result depends: dictionaries of JSON values, by group.
            overwrite: replace an unfinished run.
            resume: continue an unfinished run.
            say: called with each log line.

        Returns:
            The checkpoint to resume from; None to start at the first step.

        Raises:
            InputError: there is an unfinished run and neither flag is given; the run to resume has other choices,
                another number of processes, an unreadable choices.json or an unreadable state of the Trainer; the
                folder is not that of a run; or choices.json cannot be written.
            OSError: the folder cannot be created, or a folder to replace or set aside cannot be renamed or deleted.
        """
        choices = as_json(choices)
        exists = self.path.exists() and not self._is_empty_start()
        if exists and not (self.path / CHOICES_NAME).is_file():
            raise InputError(
                f"{self.path}: expected no folder or an unfinished run, got another folder. Move that folder away."
            )
        if exists and resume:
            (self.path / DONE).unlink(missing_ok=True)
            self._check_choices(choices)
            checkpoint = self.newest_checkpoint(say)
            say(
                f"resuming from {checkpoint.name}"
                if checkpoint
                else "the unfinished run has no checkpoint; starting over"
            )
            return checkpoint
        if exists and not overwrite:
            raise InputError(
                f"{self.path}: is an unfinished run. Continue it with --resume, or start over with --overwrite."
            )
        if resume:
            say("there is no unfinished run; starting a new one")
        if self.path.exists():
            remove_folder(self.path)
        self.path.mkdir(parents=True)
        with atomic_write(self.path / CHOICES_NAME) as handle:
            content = {"format": CHOICES_FORMAT, "processes": world_size(), **choices}
            handle.write(json.dumps(content, indent=1) + "\n")
        return None

    @contextmanager
    def new_folder(self, name: str) -> Iterator[Path]:
        """Yields the path of a new folder, and publishes the folder as `name` when the block ends.

        The folder does not exist yet: the block creates it, with its parents. An existing folder `name` is replaced.

        Several processes can write. All of them enter the block, and must wait for one another before its end. The main
        process publishes the folder. If a write fails, the files are deleted, which frees space on a full disk.

        Raises:
            InputError: a file cannot be written.
        """
        writing = self.path / WRITING
        try:
            with explain_write_errors(writing):
                yield writing / name
                if is_main():
                    publish(writing / name, self.path / name)
        except InputError:
            shutil.rmtree(writing, ignore_errors=True)
            raise

    def checkpoint(self, step: int) -> Path:
        """Returns the path of the checkpoint of a step."""
        return self.path / f"{PREFIX_CHECKPOINT_DIR}-{step}"

    def checkpoints(self) -> list[Path]:
        """Returns the checkpoints, oldest first."""
        found = [path for path in self.path.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
        return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))

    def best_weights(self, step: int) -> Path:
        """Returns the path at which the weights of `step` are stored if they are the best so far; it need not exist."""
        return self.path / f"{BEST}-{step}"

    def best_weights_of(self, checkpoint: Path) -> Path | None:
        """Returns the path of the weights that were best when a checkpoint was written; None if there were none.

        Raises:
            InputError: the Trainer's state in the checkpoint cannot be read.
        """
        path = checkpoint / TRAINER_STATE_NAME
        step = read_json_as(dict[str, object], path).get("best_global_step")
        step = convert_json(int | None, step, f"{path}: best_global_step")
        return None if step is None else self.best_weights(step)

    def newest_checkpoint(self, say: Say) -> Path | None:
        """Returns the newest checkpoint that is undamaged; None if there is none.

        The weights to which the checkpoint refers (`best_weights_of`) must be undamaged too. Newer checkpoints, and
        damaged weights, are renamed to damaged-NAME. Files of an interrupted write are deleted.

        Args:
            say: called with a log line for each renamed folder.

        Raises:
            InputError: the Trainer's state in a checkpoint matches its digest, but cannot be read.
            OSError: a folder cannot be renamed.
        """
        shutil.rmtree(self.path / WRITING, ignore_errors=True)
        for checkpoint in reversed(self.checkpoints()):
            damage = find_damage(checkpoint)
            best = None if damage else self.best_weights_of(checkpoint)
            if best is not None and (damage := find_damage(best)) is not None and best.exists():
                _set_aside(best, damage, say)
                damage = Damage(best, f"is damaged, and {checkpoint.name} requires it")
            if damage is None:
                return checkpoint
            _set_aside(checkpoint, damage, say)
        return None

    def delete_old(self, keep: int, best_step: int | None) -> None:
        """Deletes old checkpoints and weights.

        Kept are the newest `keep` checkpoints, the weights to which each of them refers (`best_weights_of`), and the
        weights of `best_step`.

        Args:
            keep: number of checkpoints to keep, at least 1.
            best_step: step of the best weights so far; None before the first evaluation.

        Raises:
            InputError: the Trainer's state in a kept checkpoint cannot be read.
            OSError: a folder cannot be renamed or deleted.
        """
        for old in self.checkpoints()[:-keep]:
            remove_folder(old)
        needed = {self.best_weights_of(path) for path in self.checkpoints()}
        needed |= {None if best_step is None else self.best_weights(best_step)}
        for old in self.path.glob(f"{BEST}-*"):
            if old not in needed:
                remove_folder(old)

    def finish(self) -> None:
        """Renames the complete model to the output, and deletes the folder OUTPUT.unfinished.

        After an interrupted call, this method can be called again.

        Raises:
            OSError: a folder cannot be renamed or deleted, or the file `done` cannot be written.
            InputError: the previous output cannot be restored; the message has the path of its content.
        """
        (self.path / DONE).touch()
        if (self.path / MODEL).exists():
            replace_folder(self.path / MODEL, self.output)
        remove_folder(self.path)

    def finish_if_done(self) -> None:
        """Completes `finish`, or the deletion of the folder, if a run was killed during either; else does nothing.

        Raises:
            OSError: a folder cannot be renamed or deleted, or the file `done` cannot be written.
            InputError: the previous output cannot be restored; the message has the path of its content.
        """
        if (self.path / DONE).is_file():
            self.finish()
        elif not self.path.exists():
            remove_folder(self.path)  # the deletion may have been interrupted

    def leave(self, say: Say) -> None:
        """Deletes the folder after a failure, unless it has a checkpoint, a damaged folder or the previous model.

        Args:
            say: called with the name of the newest checkpoint, if there is one.
        """
        found = self.checkpoints()
        if found:
            say(f"{self.path} still has {found[-1].name}; --resume continues from it")
        elif not any(self.path.glob(f"{DAMAGED}*")) and not (self.path / OLD).exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def _is_empty_start(self) -> bool:
        """Returns whether the folder is that of a run that was killed before it wrote `choices.json`."""
        return self.path.is_dir() and all(path.name.startswith(f".{CHOICES_NAME}.") for path in self.path.iterdir())

    def _check_choices(self, choices: dict) -> None:
        """Raises InputError unless choices.json has the same choices and number of processes."""
        path = self.path / CHOICES_NAME
        try:
            content = read_json_as(dict[str, object], path)
            written = convert_json(int, content.pop("format", None), f"{path}: format")
            if written != CHOICES_FORMAT:
                raise InputError(f"{path}: format: expected {CHOICES_FORMAT}, got {written}, of another version")
            processes = convert_json(int, content.pop("processes", None), f"{path}: processes")
            before = convert_json(dict[str, dict[str, object]], content, f"{path}: choices")
        except InputError as error:
            raise InputError(f"{error}. Start over with --overwrite.") from None
        # Another number of processes means other batches, another order and other random numbers.
        if processes != world_size():
            how = "without torchrun" if processes == 1 else f"with torchrun --nproc-per-node {processes}"
            raise InputError(
                f"{self.path}: expected {processes} process{'' if processes == 1 else 'es'}, as when the run started,"
                f" got {world_size()}. Resume the run {how}, or start over with --overwrite."
            )
        for part in sorted(choices.keys() | before.keys()):
            was, now = before.get(part, {}), choices.get(part, {})
            for name in sorted(was.keys() | now.keys()):
                if was.get(name) != now.get(name):
                    raise InputError(
                        f"{self.path}: {part} {name}: expected {was.get(name)!r}, as when the run started, got"
                        f" {now.get(name)!r}. Resume the run with the same value, or start over with --overwrite."
                    )


def as_json(choices: dict) -> dict:
    """Returns choices as a JSON file would store them, such as lists for tuples."""
    return json.loads(json.dumps(choices))


def check_output(output: Path | str, overwrite: bool) -> None:
    """Checks that a run would not destroy an existing folder.

    Args:
        output: folder that the run is going to write.
        overwrite: whether a model there may be replaced.

    Raises:
        InputError: `output` is a file, a model folder that may not be replaced, or another folder with files.
    """
    output = Path(output)
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / RECORD_NAME).is_file():
        raise InputError(
            f"output: expected a new or empty folder, or a model folder to replace, got {output}, which is none of"
            " these. Set another --output."
        )
    if not overwrite:
        raise InputError(
            f"output: expected a new folder, got {output}, which exists. Set another --output, or use --overwrite."
        )


def publish(written: Path, name: Path) -> None:
    """Writes digests.json to a complete folder, flushes all to the disk, and renames the folder to `name`."""
    paths = sorted(path for path in written.rglob("*") if path.is_file() and path.name != DIGESTS_NAME)
    digests = {path.relative_to(written).as_posix(): file_digest(path) for path in paths}
    with atomic_write(written / DIGESTS_NAME) as handle:
        handle.write(json.dumps(digests, indent=1) + "\n")
    for path in (*paths, written):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    if name.exists():  # from an earlier run, which went beyond the checkpoint from which this run resumed
        remove_folder(name)
    os.rename(written, name)


def find_damage(folder: Path) -> Damage | None:
    """Returns the first file of a folder that is missing or differs from its digest; None if all files match.

    A missing or unreadable digests.json counts as damage. Files without a digest are ignored.
    """
    listing = folder / DIGESTS_NAME
    if not listing.is_file():
        return Damage(listing, "is missing")
    try:
        digests = read_json_as(dict[str, str], listing)
    except InputError as error:
        return Damage(listing, str(error).removeprefix(f"{listing}: "))
    for name, expected in digests.items():
        path = folder / name
        try:
            found = file_digest(path)
        except FileNotFoundError:
            return Damage(path, "is missing")
        except OSError as error:
            return Damage(path, f"cannot be read ({error.strerror})")
        if found != expected:
            return Damage(path, "differs from what was written (SHA-256)")
    return None


def _set_aside(path: Path, damage: Damage, say: Say) -> None:
    aside = path.with_name(f"{DAMAGED}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    say(f"{damage}; set aside as {aside.name}")
