"""Whether an output can be written, asked before the work that is to be written there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from qacg_models.errors import InputError


def check_writable(name: str, path: Path | str) -> None:
    """Tries whether a file or folder can be made at `path`, and leaves nothing behind.

    Args:
        name: of the argument, for the error.

    Raises:
        InputError: it cannot, with the path and the reason.
    """
    path = Path(path)
    try:
        os.stat(path)  # a name that is too long, or leads through a file
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"{name}: {path} cannot be written ({error.strerror or error})") from None
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".writable.", dir=folder))
    except OSError as error:
        raise InputError(f"{name}: {path} cannot be written ({folder}: {error.strerror or error})") from None


def check_not_input(name: str, output: Path, source: Path | int) -> None:
    """Refuses an output that is the file which is read, whatever the two are called.

    Args:
        name: of the argument, for the error.
        source: a path, or an open file's number.

    Raises:
        InputError: the two are one file.
    """
    try:
        same = os.path.samestat(os.stat(output), os.stat(source))
    except OSError:  # one of the two is not there
        return
    if same:
        raise InputError(f"{name}: {output} is the file that is read, which would be lost; choose another")
