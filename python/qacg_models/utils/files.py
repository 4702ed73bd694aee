"""Files: atomic writes, output paths, and the lock of an output.

Content is written to a temporary folder beside the destination, flushed to the disk, and then renamed. The name of the
folder is random, so that no other user of a shared folder can create a link of that name to a file of this user.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from qacg_models.errors import InputError
from qacg_models.utils.machine import run_on_main

OLD = "old"  # name of the previous output folder, beside the new one


def replace_folder(new: Path, output: Path) -> None:
    """Flushes the files of `new` to the disk, and renames the folder to `output`, which remains if that fails.

    A previous output becomes the folder `old` beside `new`, which the caller deletes.
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
    _flush(output.parent)  # the new name


@contextmanager
def atomic_folder(output: Path) -> Iterator[Path]:
    """Yields an empty folder, which replaces the folder `output` when the block ends.

    The parent of `output` exists. If the block raises, `output` is unchanged.
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
    """Deletes a folder, if it exists, and what an interrupted deletion has left of it."""
    # The folder is renamed first, so that a partly deleted folder never has this name.
    doomed = folder.with_name(f".deleting-{folder.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    if folder.exists():
        os.rename(folder, doomed)
        shutil.rmtree(doomed)


@contextmanager
def staged_file(output: Path) -> Iterator[Path]:
    """Yields a temporary path to write, whose file is flushed and replaces `output` when the block ends.

    The file has the name of `output`, because libraries read the suffix. If the block raises, or deletes the file,
    `output` is unchanged.
    """
    temporary = _temporary(output)
    with tempfile.TemporaryDirectory(prefix=temporary.name, dir=temporary.parent, ignore_cleanup_errors=True) as folder:
        path = Path(folder) / output.name
        yield path
        if path.exists():
            _flush(path)
            os.replace(path, output)
            _flush(output.parent)


@contextmanager
def atomic_write(path: Path) -> Iterator[TextIO]:
    """Yields a UTF-8 file, which is flushed and replaces `path` when the block ends; line ends are not converted.

    If the block raises, `path` is unchanged. If the file cannot be written, InputError has the reason.
    """
    try:
        with staged_file(path) as staged, staged.open("w", encoding="utf-8", newline="") as handle:
            yield handle
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


@contextmanager
def explain_write_errors(folder: Path) -> Iterator[None]:
    """Converts errors of libraries that write in `folder` to InputError, with a path and a reason.

    torch's archive writer raises a RuntimeError, and safetensors an error that is not an OSError, without either. An
    OSError for a path outside `folder` is not converted.
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
    """Gives files of safetensors, which only their owner can read, the permissions that the umask allows."""
    for path in paths:
        # os.umask reads the umask only by setting it, for all threads. So it is derived from the mode of a new file.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            probe = Path(folder) / "probe"
            probe.touch()
            path.chmod(stat.S_IMODE(probe.stat().st_mode))


def check_writable(name: str, path: Path | str) -> None:
    """Raises InputError if no file or folder can be created at `path`, the argument `name`; creates nothing."""
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
    """Raises InputError if `output`, the argument `name`, is the input: a path or a file descriptor."""
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


@contextmanager
def lock_output(output: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of the file or folder `output` inside the block, and creates its parent folder.

    Of several processes, the main process holds the lock. The system releases the lock of a killed process.
    """
    with ExitStack() as stack:
        run_on_main(lambda: stack.enter_context(_lock(output, say)))
        yield


@contextmanager
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
            with suppress(PermissionError):  # on Windows, where releasing the lock deletes the file
                path.unlink(missing_ok=True)
            lock.release()
