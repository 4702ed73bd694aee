"""The folder of an unfinished run, OUTPUT.unfinished, from which a killed run resumes.

A checkpoint is written to `.writing`, flushed to the disk, and renamed. So a checkpoint with its final name is whole,
and it contains all that a resumed run reads.

| path | content |
|---|---|
| `choices.json` | number of processes, options without the time limit, data digests; must not change on resuming |
| `best/` | weights of the best evaluation so far; becomes the model when training has ended |
| `checkpoint-STEP/` | state of the Trainer, `run_state.json`, `best/`, and the average of the weights if steady |
| `done` | marks `best/` as the complete model |
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from qacg_models.errors import InputError
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from qacg_models.sentiment.record import RECORD_NAME
from qacg_models.utils.fields import read_json_as
from qacg_models.utils.files import (
    OLD,
    atomic_write,
    explain_write_errors,
    remove_folder,
    replace_folder,
    unfinished_path,
)
from qacg_models.utils.machine import is_main

CHOICES_NAME = "choices.json"
WRITING = ".writing"
BEST = "best"
DONE = "done"
KEPT = 2  # number of newest checkpoints that are kept

Say = Callable[[str], None]


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

    @property
    def best(self) -> Path:
        """The path of the weights of the best evaluation so far."""
        return self.path / BEST

    @property
    def writing(self) -> Path:
        """The path of the folder in which a checkpoint is written before it gets its final name."""
        return self.path / WRITING

    def open(self, choices: dict, *, overwrite: bool, resume: bool, say: Say) -> Path | None:
        """Creates the folder and writes choices.json, or opens the folder of an interrupted run.

        Args:
            choices: all on which the result depends, from `run_choices`.
            overwrite: replace an unfinished run.
            resume: continue an unfinished run.
            say: called with each log line.

        Returns:
            The checkpoint to resume from, the newest one; None to start at the first step.

        Raises:
            InputError: there is an unfinished run and neither flag is given; the run to resume has other choices; or
                the folder is not that of a run.
        """
        exists = (self.path / CHOICES_NAME).is_file()
        # A run that is killed before it writes choices.json leaves at most a temporary folder.
        others = [path for path in self.path.glob("*") if not path.name.startswith(f".{CHOICES_NAME}.")]
        if not exists and (others or self.path.is_file()):
            raise InputError(
                f"{self.path}: expected no folder or an unfinished run, got another folder. Move that folder away."
            )
        if exists and resume:
            try:
                before = read_json_as(dict[str, dict[str, object]], self.path / CHOICES_NAME)
            except InputError as error:  # such as a file of an earlier version
                raise InputError(f"{error}. Start over with --overwrite.") from None
            check_choices(self.path, before, choices)
            return self._newest(say)
        if exists and not overwrite:
            raise InputError(
                f"{self.path}: is an unfinished run. Continue it with --resume, or start over with --overwrite."
            )
        if resume:
            say("there is no unfinished run; starting a new one")
        remove_folder(self.path)
        self.path.mkdir(parents=True)
        with atomic_write(self.path / CHOICES_NAME) as handle:
            handle.write(json.dumps(choices, indent=1) + "\n")
        return None

    def _newest(self, say: Say) -> Path | None:
        """Returns the newest whole checkpoint, whose best weights become those of the run; None if there is none."""
        (self.path / DONE).unlink(missing_ok=True)
        for name in (self.writing, self.best):  # of the interrupted run, perhaps incomplete
            shutil.rmtree(name, ignore_errors=True)
        for checkpoint in reversed(self.checkpoints()):
            if damage := _damage(checkpoint):
                say(f"{checkpoint} cannot be used: {damage}")
                continue
            with explain_write_errors(self.path):
                _copy_files(checkpoint / BEST, self.best)
            say(f"resuming from {checkpoint.name}")
            return checkpoint
        say("the unfinished run has no checkpoint; starting over")
        return None

    @contextmanager
    def new_checkpoint(self, step: int) -> Iterator[Path]:
        """Yields the path of a checkpoint in `writing`. When the block ends, the checkpoint gets its final name.

        Several processes can write. All of them enter the block, and must wait for one another before its end. The main
        process adds the best weights, renames the folder, and deletes all but the KEPT newest checkpoints. If a write
        fails, InputError is raised, and the files are deleted, which frees space on a full disk.
        """
        name = f"{PREFIX_CHECKPOINT_DIR}-{step}"
        try:
            with explain_write_errors(self.path):
                yield self.writing / name
                if is_main():
                    _copy_files(self.best, self.writing / name / BEST)
                    replace_folder(self.writing / name, self.path / name)
        except InputError:
            shutil.rmtree(self.writing, ignore_errors=True)
            raise
        if is_main():
            shutil.rmtree(self.writing)
            for old in self.checkpoints()[:-KEPT]:
                remove_folder(old)

    def checkpoints(self) -> list[Path]:
        """Returns the checkpoints, oldest first."""
        found = [path for path in self.path.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
        return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))

    def finish(self) -> None:
        """Renames the complete model in `best` to the output, and deletes the folder OUTPUT.unfinished.

        After an interrupted call, this method can be called again.
        """
        (self.path / DONE).touch()
        if self.best.exists():
            replace_folder(self.best, self.output)
        remove_folder(self.path)

    def finish_if_done(self) -> None:
        """Completes `finish`, or the deletion of the folder, if a run was killed during either; else does nothing."""
        if (self.path / DONE).is_file():
            self.finish()
        elif not self.path.exists():
            remove_folder(self.path)  # the deletion may have been interrupted

    def leave(self, say: Say) -> None:
        """Deletes the folder after a failure, unless it has a checkpoint, whose name is logged, or the old model."""
        found = self.checkpoints()
        if found:
            say(f"{self.path} still has {found[-1].name}; --resume continues from it")
        elif not (self.path / OLD).exists():
            shutil.rmtree(self.path, ignore_errors=True)


def _damage(checkpoint: Path) -> str | None:
    """Returns which file of a checkpoint is incomplete: JSON, safetensors or torch's archive; None if all are whole.

    A checkpoint is whole when it gets its name, so such damage came later. Values are not checked.
    """
    for path in sorted(path for path in checkpoint.rglob("*") if path.is_file()):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                safe_open(path, "pt")
            elif path.suffix in (".pt", ".pth"):
                zipfile.ZipFile(path).close()
        except (OSError, ValueError, SafetensorError, zipfile.BadZipFile) as error:
            return f"{path.relative_to(checkpoint)} is damaged ({error})"
    return None


def run_choices(options: TrainingOptions, data_options: DataOptions, digests: Mapping[str, str]) -> dict:
    """Returns all on which the weights depend except the number of processes, as a JSON file would store it.

    Args:
        options: options of training, from `resolve_options`. The time limit is left out, because it only decides when
            training ends.
        data_options: options of the data.
        digests: SHA-256 of the files of each split.
    """
    training = asdict(options)
    del training["minutes"]
    return json.loads(json.dumps({"training": training, "data": asdict(data_options), "files": {**digests}}))


def check_choices(folder: Path, before: dict, now: dict) -> None:
    """Raises InputError, which names `folder` and the first difference, unless both choices are equal."""
    for part in sorted(before.keys() | now.keys()):
        was, given = before.get(part, {}), now.get(part, {})
        for name in sorted(was.keys() | given.keys()):
            if was.get(name) != given.get(name):
                raise InputError(
                    f"{folder}: {part} {name}: expected {was.get(name)!r}, as when the run started, got"
                    f" {given.get(name)!r}. Use the same value, or start over with --overwrite."
                )


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


def _copy_files(folder: Path, to: Path) -> None:
    """Copies the files of a folder to a new folder; does nothing if there is no folder."""
    if folder.exists():
        to.mkdir()
        for path in folder.iterdir():
            shutil.copyfile(path, to / path.name)
