"""Turns at something that the processes of a user can only have one at a time, such as most of a GPU's memory."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(name: str) -> Iterator[None]:
    """Waits until no other process of this user on this machine has its turn at `name`; one that dies gives it up."""
    import fcntl

    path = Path(tempfile.gettempdir()) / f"qacg-{name}-{os.getuid()}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
