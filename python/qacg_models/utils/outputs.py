"""Checks of an output path before a long computation."""

import os
import tempfile
from pathlib import Path

from qacg_models.errors import InputError


def check_writable(name: str, path: Path | str) -> None:
    """Checks that a file or folder can be created at `path`, without creating it.

    A temporary file is created in the folder of `path`, or in the nearest parent that exists, and deleted.

    Args:
        name: name of the argument, for the error.
        path: the path to check.

    Raises:
        InputError: nothing can be created at `path`; the message has the path and the reason.
    """
    path = Path(path)
    try:
        os.stat(path)  # fails for a name that is too long, or leads through a file
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"{name}: {path} cannot be written ({error.strerror or error})") from None
    folder = path.absolute().parent
    while not os.path.lexists(folder):  # a broken link counts as existing: no folder can replace it
        folder = folder.parent
    try:
        # On Linux this file has no name, so that a process that is killed here leaves nothing.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(f"{name}: {path} cannot be written ({folder}: {error.strerror or error})") from None


def check_not_input(name: str, output: Path, source: Path | int) -> None:
    """Checks that an output is not the input file, even if their paths differ.

    Args:
        name: name of the argument, for the error.
        output: the output path.
        source: the input, a path or a file descriptor.

    Raises:
        InputError: `output` and `source` are the same file.
    """
    try:
        same = os.path.samestat(os.stat(output), os.stat(source))
    except OSError:  # one of them does not exist
        return
    if same:
        raise InputError(f"{name}: {output} is the input file, which would be overwritten. Choose another output.")
