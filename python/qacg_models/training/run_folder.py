"""The folder of a run that is not finished: MODEL.unfinished, beside the MODEL that it will become."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from qacg_models.errors import InputError
from qacg_models.runs.record import RECORD_NAME
from qacg_models.training.trainer import checkpoints

CHOICES = "choices.json"


def plain(choices: dict) -> dict:
    """Choices as a JSON file gives them back."""
    return json.loads(json.dumps(choices))


def unfinished(output: Path) -> Path:
    """Where a run that is to become `output` works."""
    return output.with_name(f"{output.name}.unfinished")


def check_output(output: Path | str, overwrite: bool) -> None:
    """Refuse a folder that would be lost.

    Raises:
        InputError: it exists and may not be replaced, or is not a model folder or empty folder.
    """
    output = Path(output)
    if not output.exists():
        return
    if output.is_dir() and not any(output.iterdir()):
        return
    if not (output / RECORD_NAME).is_file():
        raise InputError(f"{output}: already exists, and is not a model folder; choose another --output")
    if not overwrite:
        raise InputError(f"{output}: already exists; choose another --output, or replace it with --overwrite")


def open_workplace(
    output: Path, choices: dict, *, overwrite: bool, resume: bool, say: Callable[[str], None]
) -> Path | None:
    """Makes the folder of a run, or takes up that of an earlier one.

    Args:
        choices: all that decides what the run computes, as JSON has it.

    Returns:
        The checkpoint to go on from; None to begin.

    Raises:
        InputError: there is an unfinished run and nothing says what to do with it, or it was made by other choices.
    """
    folder = unfinished(output)
    choices = plain(choices)
    if folder.exists() and not (folder / CHOICES).is_file():
        raise InputError(f"{folder}: is not an unfinished run, and stands where this one would work; move it away")
    if folder.exists() and resume:
        _check_same(folder, choices)
        found = checkpoints(folder)
        say(f"going on from {found[-1].name}" if found else "the unfinished run has no checkpoint; it begins anew")
        return found[-1] if found else None
    if folder.exists() and not overwrite:
        raise InputError(f"{folder}: an unfinished run; go on with --resume, or begin anew with --overwrite")
    if resume:
        say("there is not an unfinished run; this one begins")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / CHOICES).write_text(json.dumps(choices, indent=1) + "\n", encoding="utf-8")
    return None


def leave(output: Path, say: Callable[[str], None]) -> None:
    """After a failure: keeps what --resume can go on from, and nothing else."""
    folder = unfinished(output)
    if checkpoints(folder):
        say(f"{folder} keeps {checkpoints(folder)[-1].name}; --resume goes on from it")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _check_same(folder: Path, choices: dict) -> None:
    path = folder / CHOICES
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error}); begin anew with --overwrite") from None
    for part in sorted(choices.keys() | before.keys()):
        was, now = before.get(part, {}), choices.get(part, {})
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                raise InputError(
                    f"{folder}: was begun with {part} {name} = {was.get(name)!r}, and now it is {now.get(name)!r};"
                    " go on with the same, or begin anew with --overwrite"
                )
