"""Files: atomic writes, output paths, and the lock of an output.

Content is written to a temporary folder beside the destination, flushed to the disk, and then renamed. The temporary
folder has a random name and is accessible to this user only. If the name were predictable, another user of a shared
folder could create a link of that name to a file of this user.
"""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO

from qacg_models.errors import InputError
from qacg_models.utils.machine import run_on_main

OLD = "old"  # name of the previous output folder, beside the new one


def replace_folder(new: Path, output: Path) -> None:
    """Flushes the files of `new` to the disk, and renames the folder to `output`.

    A previous output becomes the folder `old` beside `new`; the caller deletes that folder.

    Raises:
        OSError: a file cannot be flushed, or a folder cannot be renamed; the previous output remains or is restored.
    """
    for path in (*new.rglob("*"), new):
        _flush(path)
    old = new.with_name(OLD)
    if output.exists():
        os.rename(output, old)
    try:
        os.rename(new, output)
    except BaseException:
        if old.exists():
            os.rename(old, output)
        raise


@contextmanager
def atomic_folder(output: Path) -> Iterator[Path]:
    """Yields an empty folder to fill, which replaces `output` when the block ends.

    If the block raises, `output` is unchanged.

    Args:
        output: a folder, a link to one, or an unused name in an existing folder.

    Raises:
        OSError: a folder cannot be created, flushed or renamed; the previous output remains or is restored.
    """
    output = output.resolve()  # for a link, the target is replaced
    temporary = _temporary(output)
    work = Path(tempfile.mkdtemp(prefix=temporary.name, dir=temporary.parent))
    new = work / "new"
    try:
        new.mkdir()
        yield new
        replace_folder(new, output)
        shutil.rmtree(work / OLD, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):  # not empty if the previous output could not be restored
            work.rmdir()


def remove_folder(folder: Path) -> None:
    """Deletes a folder, if it exists, and what an interrupted deletion has left of it.

    The folder is renamed first, so that a partly deleted folder never has this name.

    Raises:
        OSError: the folder cannot be renamed or deleted.
    """
    doomed = folder.with_name(f".deleting-{folder.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    if folder.exists():
        os.rename(folder, doomed)
        shutil.rmtree(doomed)


@contextmanager
def atomic_write(path: Path) -> Iterator[TextIO]:
    """Yields a UTF-8 file to write, which replaces `path` when the block ends.

    The content is flushed to the disk before it replaces `path`. If the block raises, `path` is unchanged. Line ends
    are not converted.

    Raises:
        InputError: the file cannot be written; the message has the reason.
    """
    with _write(path, "w", encoding="utf-8", newline="") as handle:
        yield handle


@contextmanager
def _write(path: Path, mode: str, **options: str) -> Iterator[IO]:
    try:
        with staged_file(path) as staged:
            with staged.path.open(mode, **options) as handle:
                yield handle
            staged.publish()
    except OSError as error:
        # The error of a failed write names no file, or one in the temporary folder. Other errors are passed on.
        if error.filename is not None and not str(error.filename).startswith(str(_temporary(path))):
            raise
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


def _temporary(path: Path) -> Path:
    """Returns the prefix of temporary folders for `path`; random characters follow."""
    return path.absolute().with_name(f".{path.name}.")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class StagedFile:
    """A temporary file at `path`, which `publish` renames to `output`."""

    path: Path
    output: Path

    def publish(self) -> None:
        """Flushes the file to the disk, and renames it to `output`, which is replaced."""
        _flush(self.path)
        os.replace(self.path, self.output)


@contextmanager
def staged_file(output: Path) -> Iterator[StagedFile]:
    """Yields a temporary file for code that writes to a path, not to an open file.

    The file does not exist yet: the caller writes it at `StagedFile.path`, and then calls `StagedFile.publish`. The
    file has the name of `output`, because libraries read the suffix. Its folder is temporary, and is deleted at the end
    of the block.
    """
    temporary = _temporary(output)
    with tempfile.TemporaryDirectory(prefix=temporary.name, dir=temporary.parent, ignore_cleanup_errors=True) as folder:
        yield StagedFile(Path(folder) / output.name, output)


@contextmanager
def explain_write_errors(folder: Path) -> Iterator[None]:
    """Converts write errors of libraries to InputError, with a path and a reason.

    Errors of torch and safetensors have neither: torch's archive writer raises a RuntimeError, and safetensors an error
    that is not an OSError. An OSError for a path outside `folder` is not converted.

    Args:
        folder: the folder to which the block writes.

    Raises:
        InputError: a file cannot be written; the message names the file or folder and the reason.
    """
    try:
        yield
    except OSError as error:
        path = Path(error.filename2 or error.filename or folder)  # of a failed copy, filename is the source
        if not path.is_relative_to(folder):
            raise
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
    except Exception as error:
        marks = ("PytorchStreamWriter", "iostream error", "unexpected pos", "I/O error", "os error")
        is_writer = isinstance(error, RuntimeError) or type(error).__name__ == "SafetensorError"
        if not (is_writer and any(mark in str(error) for mark in marks)):
            raise
        raise InputError(f"{folder}: cannot be written ({_why_not_writable(folder, str(error))})") from error


def _why_not_writable(folder: Path, message: str) -> str:
    """Returns the system's reason why a megabyte cannot be written to a folder, else the first line of `message`."""
    try:
        with tempfile.TemporaryFile(dir=folder) as handle:
            handle.write(bytes(1 << 20))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return message.partition("\n")[0]


def follow_umask(paths: Iterable[Path]) -> None:
    """Gives files the permissions that the umask allows for new files.

    safetensors creates files that only their owner can read.
    """
    for path in paths:
        # os.umask reads the umask only by setting it, for all threads. So it is derived from the mode of a new file.
        with staged_file(path) as probe:
            probe.path.touch()
            path.chmod(stat.S_IMODE(probe.path.stat().st_mode))


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
