"""Where the run of an output works, and what keeps a second one out."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from qacg_models.errors import InputError
from qacg_models.utils.distributed import run_on_main

# Of file systems that lock nothing, some network ones among them.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


def lock_path(output: Path) -> Path:
    """The file whose lock says that a run is at work on `output`: `.NAME.lock` beside it, gone when the run ends."""
    output = Path(os.path.abspath(output))
    return output.with_name(f".{output.name}.lock")


def unfinished_path(output: Path) -> Path:
    """Where a training that is to become the folder `output` works."""
    return output.with_name(f"{output.name}.unfinished")


def parts_path(output: Path) -> Path:
    """Where a prediction that is to become the file `output` works."""
    return output.with_name(f"{output.name}.parts")


@contextlib.contextmanager
def lock_output(output: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Around all that a run writes for `output`: until it ends no other run with the same one begins.

    Of several processes that work together the main one has the lock. The system takes it from a process that is
    killed, whose file the next run takes over.

    Args:
        say: told where the file system has no locks, so that the user has to see to it.

    Raises:
        InputError: another run is at work on it, or nothing can be written beside it.
    """
    with contextlib.ExitStack() as stack:
        run_on_main(lambda: stack.enter_context(_locked(output, say)))
        yield


@contextlib.contextmanager
def _locked(output: Path, say: Callable[[str], None]) -> Iterator[None]:
    from filelock import FileLock, Timeout

    path = lock_path(output)
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise InputError(f"{output}: another run is at work on it; wait for its end, or choose another one") from None
    except (OSError, NotImplementedError) as error:
        number = getattr(error, "errno", errno.ENOSYS)
        if number not in _NO_LOCKS:
            raise InputError(f"{path}: cannot be written ({getattr(error, 'strerror', error)})") from error
        say(f"{path.parent}: its file system has no locks; take care that no other run has the same output")
    try:
        yield
    finally:
        if lock.is_locked:
            with contextlib.suppress(PermissionError):  # of Windows, where it goes as it is released
                path.unlink(missing_ok=True)
            lock.release()
