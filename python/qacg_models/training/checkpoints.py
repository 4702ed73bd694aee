"""The checkpoints of an unfinished run: their names, which are whole, and from which one a run goes on.

A checkpoint is whole when its files have the digests that were written with them, and so have the best weights that
its state names. Publishing gives every folder its digests.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from qacg_models.errors import InputError
from qacg_models.training.whole_folders import DIGESTS_NAME, Damage, find_damage, write_digests
from qacg_models.utils.json_fields import convert_json, read_json_as

BEST = "best"
WRITING = ".writing"
SECONDS_NAME = "seconds.txt"
DAMAGED = "damaged-"


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def best_path(folder: Path, step: int) -> Path:
    """Where the weights lie that did best up to now, those of the evaluation at `step`."""
    return folder / f"{BEST}-{step}"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def best_of(checkpoint: Path) -> Path | None:
    """The best weights at a checkpoint; None before the first evaluation."""
    path = checkpoint / TRAINER_STATE_NAME
    state = read_json_as(dict[str, object], path)
    step = convert_json(int | None, state.get("best_global_step"), f"{path}: best_global_step")
    return None if step is None else best_path(checkpoint.parent, step)


def seconds_before(checkpoint: Path | None) -> float:
    """How long training took up to a checkpoint; 0 without one."""
    return 0.0 if checkpoint is None else float((checkpoint / SECONDS_NAME).read_text(encoding="utf-8"))


def newest_whole(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint; None where there is none.

    What is damaged is renamed to damaged-NAME, and stays there until the run is done.

    Args:
        say: receives a line for each folder that is set aside.
    """
    shutil.rmtree(folder / WRITING, ignore_errors=True)  # what a run was writing when it died
    for checkpoint in reversed(checkpoints(folder)):
        damage = find_damage(checkpoint) or _damage_of_best(checkpoint, say)
        if damage is None:
            return checkpoint
        _set_aside(checkpoint, damage, say)
    return None


def give_digests(folder: Path) -> None:
    """Takes what lies in the folder of a run from before there were digests as it is."""
    for path in (*checkpoints(folder), *folder.glob(f"{BEST}-*")):
        if not (path / DIGESTS_NAME).is_file():
            write_digests(path)


def _damage_of_best(checkpoint: Path, say: Callable[[str], None]) -> Damage | None:
    """What is wrong with the best weights that a checkpoint names."""
    try:
        best = best_of(checkpoint)
    except InputError as error:  # of a run from before there were digests
        state = checkpoint / TRAINER_STATE_NAME
        return Damage(state, str(error).removeprefix(f"{state}: "))
    damage = None if best is None else find_damage(best)
    if damage is None or not best.exists():
        return damage
    _set_aside(best, damage, say)
    return Damage(best, f"is damaged, and {checkpoint.name} needs it")


def _set_aside(path: Path, damage: Damage, say: Callable[[str], None]) -> None:
    aside = path.with_name(f"{DAMAGED}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    say(f"{damage}; set aside as {aside.name}")
