"""Putting finished files and folders where they belong, so that nobody ever sees half of one."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, TextIO

from qacg_models.errors import InputError


def put_in_place(new: Path, output: Path) -> None:
    """Renames `new` to `output`; what was there is renamed to `old` beside `new`, for the caller to delete.

    If `new` cannot be put there, what was there is put back.
    """
    old = new.with_name("old")
    if output.exists():
        os.rename(output, old)
    try:
        os.rename(new, output)
    except BaseException:
        if old.exists():
            os.rename(old, output)
        raise


def remove(folder: Path) -> None:
    """Deletes a folder so that no half of it is ever found under its name, nor what an earlier deletion left."""
    doomed = folder.with_name(f".deleting-{folder.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    if folder.exists():
        os.rename(folder, doomed)
        shutil.rmtree(doomed)


@contextmanager
def written_whole(path: Path) -> Iterator[TextIO]:
    """A UTF-8 file to write, which gets its name, in place of what had it, once all of it is on the disk.

    If the block fails the file is gone and what was there stays. Line ends are written as they come.

    Raises:
        InputError: the file cannot be written, with the reason.
    """
    with _written(path, lambda work: work.open("w", encoding="utf-8", newline="")) as handle:
        yield handle


@contextmanager
def bytes_written_whole(path: Path) -> Iterator[BinaryIO]:
    """`written_whole` for bytes."""
    with _written(path, lambda work: work.open("wb")) as handle:
        yield handle


@contextmanager
def _written(path: Path, opened: Callable[[Path], IO]) -> Iterator[IO]:
    work = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with opened(work) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(work, path)
    except OSError as error:
        # An error of writing names no file; one that names another is not about this one.
        if error.filename not in (None, str(work)):
            raise
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        work.unlink(missing_ok=True)


@dataclass(frozen=True)
class UnpublishedFile:
    """A file that a library writes to `path`, beside its place at `output`."""

    path: Path
    output: Path

    def publish(self) -> None:
        """Puts it in place of what is there, once all of it is on the disk."""
        with self.path.open("rb") as handle:
            os.fsync(handle.fileno())
        os.replace(self.path, self.output)


@contextmanager
def made_whole(output: Path) -> Iterator[UnpublishedFile]:
    """Around what writes a file by its path and looks at it before it is published; unpublished it is gone at the end.

    Its name ends as that of `output` does, which libraries go by.
    """
    work = output.with_name(f".{os.getpid()}.{output.name}")
    try:
        yield UnpublishedFile(work, output)
    finally:
        work.unlink(missing_ok=True)


@contextmanager
def told_of_failed_writes(folder: Path) -> Iterator[None]:
    """Around code of libraries that writes files into `folder`: what they raise when they cannot, as an InputError.

    What they raise says neither which file nor why: torch's archive writer raises a RuntimeError of its own, and
    safetensors an error that is no OSError.

    Raises:
        InputError: naming the folder and the reason.
    """
    try:
        yield
    except OSError as error:
        path = Path(error.filename2 or error.filename or folder)  # a copy names its source first
        if not path.is_relative_to(folder):
            raise
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
    except Exception as error:
        if not _of_writing(error):
            raise
        raise InputError(f"{folder}: cannot be written ({_why_not(folder) or _first_line(error)})") from error


def _of_writing(error: Exception) -> bool:
    if type(error).__name__ == "SafetensorError":
        return "I/O error" in str(error) or "os error" in str(error)
    return isinstance(error, RuntimeError) and any(
        mark in str(error) for mark in ("PytorchStreamWriter", "iostream error", "unexpected pos")
    )


def _why_not(folder: Path) -> str | None:
    """Why a megabyte cannot be written to a folder, in the words of the system; None where it can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as handle:
            handle.write(bytes(1 << 20))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        return error.strerror
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def follow_umask(paths: Iterable[Path]) -> None:
    """Gives files the permissions of new ones; safetensors makes its files readable by their owner alone."""
    for path in paths:
        # The umask cannot be read without setting it, for every thread; a new file shows it.
        probe = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            probe.touch()
            path.chmod(stat.S_IMODE(probe.stat().st_mode))
        finally:
            probe.unlink(missing_ok=True)
