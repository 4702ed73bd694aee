"""Locks an output against a second run, and names what unfinished runs write."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from qacg_models.errors import InputError
from qacg_models.utils.distributed import run_on_main

# Errors of file systems without locks, such as some network file systems.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


def lock_path(output: Path) -> Path:
    """Returns the lock file of an output, `.NAME.lock`, which is deleted when the run ends."""
    output = Path(os.path.abspath(output))
    return output.with_name(f".{output.name}.lock")


def unfinished_path(output: Path) -> Path:
    """Returns the folder in which a training writes its files before the model folder `output` is complete."""
    return output.with_name(f"{output.name}.unfinished")


def partial_path(output: Path) -> Path:
    """Returns the file that a prediction writes before it is complete and is renamed to `output`."""
    return output.with_name(f"{output.name}.partial")


@contextlib.contextmanager
def lock_output(output: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of `output` inside the block, so that no other run writes to it.

    The parent folder is created if it does not exist. Of several processes, the main process holds the lock. The
    system releases the lock of a killed process; the next run uses the remaining lock file.

    Args:
        output: file or folder.
        say: called with a warning if the file system has no locks.

    Raises:
        InputError: another run holds the lock, or the lock file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        run_on_main(lambda: stack.enter_context(_lock(output, say)))
        yield


@contextlib.contextmanager
def _lock(output: Path, say: Callable[[str], None]) -> Iterator[None]:
    from filelock import FileLock, Timeout

    path = lock_path(output)
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise InputError(
            f"{output}: another run is writing to it. Wait until it ends, or choose another output."
        ) from None
    except (OSError, NotImplementedError) as error:
        number = getattr(error, "errno", errno.ENOSYS)
        if number not in _NO_LOCKS:
            raise InputError(f"{path}: cannot be written ({getattr(error, 'strerror', error)})") from error
        say(f"warning: the file system of {path.parent} has no locks; do not start another run with the same output")
    try:
        yield
    finally:
        if lock.is_locked:
            with contextlib.suppress(PermissionError):  # on Windows, where releasing the lock deletes the file
                path.unlink(missing_ok=True)
            lock.release()
