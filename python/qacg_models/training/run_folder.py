"""The folder of a run that is not finished: MODEL.unfinished, beside the MODEL that it will become."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from qacg_models.errors import InputError
from qacg_models.runs.record import RECORD_NAME
from qacg_models.training.checkpoints import DAMAGED, checkpoints, give_digests, newest_whole
from qacg_models.utils.atomic_files import OLD, atomic_write, remove_folder, replace_folder
from qacg_models.utils.distributed import world_size
from qacg_models.utils.json_fields import convert_json, read_json_as
from qacg_models.utils.output_lock import unfinished_path

CHOICES = "choices.json"
MODEL = "model"
# A file that is there once the model is whole, so that only its place is wanting.
DONE = "done"
FORMAT = 3  # 1, which was not written, had no digests; 2 had not the number of processes


def plain(choices: dict) -> dict:
    """Choices as a JSON file gives them back."""
    return json.loads(json.dumps(choices))


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
    folder = unfinished_path(output)
    choices = plain(choices)
    there = folder.exists() and not _killed_at_birth(folder)
    if there and not (folder / CHOICES).is_file():
        raise InputError(f"{folder}: is not an unfinished run, and stands where this one would work; move it away")
    if there and resume:
        return _go_on(folder, choices, say)
    if there and not overwrite:
        raise InputError(f"{folder}: an unfinished run; go on with --resume, or begin anew with --overwrite")
    if resume:
        say("there is not an unfinished run; this one begins")
    if folder.exists():
        remove_folder(folder)
    folder.mkdir(parents=True)
    _write_choices(folder, choices)
    return None


def close_workplace(output: Path) -> None:
    """Puts the model of a run that is done in its place, and removes the rest; it can be killed and called again."""
    folder = unfinished_path(output)
    (folder / DONE).touch()
    if (folder / MODEL).exists():
        replace_folder(folder / MODEL, output)
    remove_folder(folder)


def close_if_done(output: Path) -> None:
    """`close_workplace` for a run that was killed in it."""
    folder = unfinished_path(output)
    if (folder / DONE).is_file():
        close_workplace(output)
    elif not folder.exists():
        remove_folder(folder)  # which may have been in the middle of its deletion


def leave(output: Path, say: Callable[[str], None]) -> None:
    """After a failure: keeps what --resume can go on from and what was set aside, and nothing else."""
    folder = unfinished_path(output)
    if checkpoints(folder):
        say(f"{folder} keeps {checkpoints(folder)[-1].name}; --resume goes on from it")
    elif not any(folder.glob(f"{DAMAGED}*")) and not (folder / OLD).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _killed_at_birth(folder: Path) -> bool:
    """Whether a folder is all that a run left which was killed before it had written down its choices."""
    return folder.is_dir() and all(path.name.startswith(f".{CHOICES}.") for path in folder.iterdir())


def _go_on(folder: Path, choices: dict, say: Callable[[str], None]) -> Path | None:
    (folder / DONE).unlink(missing_ok=True)
    written, processes, before = _read_choices(folder)
    _check_processes(folder, processes)
    _check_same(folder, before, choices)
    if written == 1:
        give_digests(folder)
        _write_choices(folder, choices)
        say(f"{folder}: was begun before checkpoints had digests; those that it has are taken without a check")
    found = newest_whole(folder, say)
    say(f"going on from {found.name}" if found else "the unfinished run has no checkpoint; it begins anew")
    return found


def _read_choices(folder: Path) -> tuple[int, int | None, dict[str, dict[str, object]]]:
    """The format of what an earlier run wrote, the number of its processes where that is known, and its choices."""
    path = folder / CHOICES
    try:
        content = read_json_as(dict[str, object], path)
        written = convert_json(int, content.pop("format", 1), f"{path}: format")
        if written <= FORMAT:
            processes = convert_json(int | None, content.pop("processes", None), f"{path}: processes")
            return written, processes, convert_json(dict[str, dict[str, object]], content, f"{path}: choices")
    except InputError as error:
        raise InputError(f"{error}; begin anew with --overwrite") from None
    raise InputError(f"{path}: has format {written}, wanted at most {FORMAT}; a newer version of qacg_models wrote it")


def _write_choices(folder: Path, choices: dict) -> None:
    with atomic_write(folder / CHOICES) as handle:
        handle.write(json.dumps({"format": FORMAT, "processes": world_size(), **choices}, indent=1) + "\n")


def _check_processes(folder: Path, before: int | None) -> None:
    """Refuses another number of processes: batches, their order and every process's random numbers would be others."""
    now = world_size()
    if before in (None, now):
        return
    go_on = "without torchrun" if before == 1 else f"by torchrun --nproc-per-node {before}"
    raise InputError(
        f"{folder}: was begun by {_counted(before)}, and now there {'is' if now == 1 else 'are'} {_counted(now)};"
        f" go on {go_on}, or begin anew with --overwrite"
    )


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _check_same(folder: Path, before: dict, choices: dict) -> None:
    for part in sorted(choices.keys() | before.keys()):
        was, now = before.get(part, {}), choices.get(part, {})
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                raise InputError(
                    f"{folder}: was begun with {part} {name} = {was.get(name)!r}, and now it is {now.get(name)!r};"
                    " go on with the same, or begin anew with --overwrite"
                )
