"""Folders that appear at once, and whose files are known: each has the SHA-256 of every file in it.

A file that was added later is no damage: nothing reads it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data import file_digest
from qacg_models.errors import InputError
from qacg_models.utils.atomic_files import atomic_write, remove_folder
from qacg_models.utils.json_fields import read_json_as

DIGESTS_NAME = "digests.json"


@dataclass(frozen=True)
class Damage:
    """The first file of a folder that is not as it was written, and how."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def publish(written: Path, name: Path) -> None:
    """Gives a folder that has been written its digests, and its name once its content is on the disk."""
    write_digests(written)
    for path in (*(path for path in written.rglob("*") if path.is_file()), written):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    if name.exists():  # of an earlier attempt, beyond the checkpoint from which this one went on
        remove_folder(name)
    os.rename(written, name)


def write_digests(folder: Path) -> None:
    """Writes digests.json, which has the digest of every other file by its path in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != DIGESTS_NAME)
    digests = {path.relative_to(folder).as_posix(): file_digest(path) for path in paths}
    with atomic_write(folder / DIGESTS_NAME) as handle:
        handle.write(json.dumps(digests, indent=1) + "\n")


def find_damage(folder: Path) -> Damage | None:
    """The first damage of a folder; None where every file is as it was written."""
    listing = folder / DIGESTS_NAME
    if not listing.is_file():
        return Damage(listing, "is missing")
    try:
        digests = read_json_as(dict[str, str], listing)
    except InputError as error:
        return Damage(listing, str(error).removeprefix(f"{listing}: "))
    for name, wanted in digests.items():
        path = folder / name
        try:
            found = file_digest(path)
        except FileNotFoundError:
            return Damage(path, "is missing")
        except OSError as error:
            return Damage(path, f"cannot be read ({error.strerror})")
        if found != wanted:
            return Damage(path, "is not what was written, its digest is another")
    return None
