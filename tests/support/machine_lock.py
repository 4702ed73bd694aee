"""A lock between processes of a user, for resources such as most of a GPU's memory."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def machine_lock(name: str) -> Iterator[None]:
    """Holds the lock `name` of this user on this machine; a process that dies releases it."""
    import fcntl

    path = Path(tempfile.gettempdir()) / f"qacg-{name}-{os.getuid()}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
