"""Files and folders that appear whole, so that nobody ever sees half of one.

They are made in a new folder beside their place, with a random name, which only this user may enter. A predictable name
could be planted, in a folder that others write to, as a link to one of the user's files.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, TextIO

from qacg_models.errors import InputError

OLD = "old"  # the name, beside a new folder, of the one that it replaces


def replace_folder(new: Path, output: Path) -> None:
    """Renames `new` to `output`; what was there is renamed to `old` beside `new`, for the caller to delete.

    Raises:
        OSError: `new` cannot be renamed; what was there is back in its place.
        InputError: nor can what was there be put back; it is still called `old`, which the caller must not delete.
    """
    old = new.with_name(OLD)
    if output.exists():
        os.rename(output, old)
    try:
        os.rename(new, output)
    except BaseException as error:
        if old.exists():
            try:
                os.rename(old, output)
            except OSError:
                raise InputError(
                    f"{output}: cannot be replaced ({error}); its content is in {old}, move it back"
                ) from error
        raise


@contextmanager
def atomic_folder(output: Path) -> Iterator[Path]:
    """An empty folder to fill, which replaces `output` when the block ends.

    If the block fails, or the folder cannot be put in its place, `output` stays as it was.

    Args:
        output: a folder, or a link to one, or nothing yet; the folder around it must exist.

    Raises:
        OSError, InputError: as for `replace_folder`.
    """
    output = output.resolve()  # a link stays, and what it leads to is replaced
    beside = _beside(output)
    work = Path(tempfile.mkdtemp(prefix=beside.name, dir=beside.parent))
    new, old = work / "new", work / OLD
    try:
        new.mkdir()
        yield new
        replace_folder(new, output)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):  # not empty where `old` could not be put back
            work.rmdir()


def remove_folder(folder: Path) -> None:
    """Deletes a folder so that no half of it is ever found under its name, nor what an earlier deletion left."""
    doomed = folder.with_name(f".deleting-{folder.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    if folder.exists():
        os.rename(folder, doomed)
        shutil.rmtree(doomed)


@contextmanager
def atomic_write(path: Path) -> Iterator[TextIO]:
    """A UTF-8 file to write, which gets its name, in place of what had it, once all of it is on the disk.

    If the block fails the file is gone and what was there stays. Line ends are written as they come.

    Raises:
        InputError: the file cannot be written, with the reason.
    """
    with _written(path, "w", encoding="utf-8", newline="") as handle:
        yield handle


@contextmanager
def atomic_write_bytes(path: Path) -> Iterator[BinaryIO]:
    """`atomic_write` for bytes."""
    with _written(path, "wb") as handle:
        yield handle


@contextmanager
def _written(path: Path, mode: str, **how: str) -> Iterator[IO]:
    try:
        with staged_file(path) as made:
            with made.path.open(mode, **how) as handle:
                yield handle
            made.publish()
    except OSError as error:
        # An error of writing names no file, or one in the new folder; one that names another is not about this one.
        if error.filename is not None and not str(error.filename).startswith(str(_beside(path))):
            raise
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


def _beside(path: Path) -> Path:
    """How the names of new folders for `path` begin; random letters follow."""
    return path.absolute().with_name(f".{path.name}.")


@dataclass(frozen=True)
class StagedFile:
    """A file that a library writes to `path`, beside its place at `output`."""

    path: Path
    output: Path

    def publish(self) -> None:
        """Puts it in place of what is there, once all of it is on the disk."""
        with self.path.open("rb") as handle:
            os.fsync(handle.fileno())
        os.replace(self.path, self.output)


@contextmanager
def staged_file(output: Path) -> Iterator[StagedFile]:
    """Around code that writes a file by its path, and publishes it if all is well with it.

    The file has the name of `output`, whose suffix libraries go by, in a new folder that is deleted at the end.
    """
    beside = _beside(output)
    with tempfile.TemporaryDirectory(prefix=beside.name, dir=beside.parent, ignore_cleanup_errors=True) as folder:
        yield StagedFile(Path(folder) / output.name, output)


@contextmanager
def explain_write_errors(folder: Path) -> Iterator[None]:
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
        with staged_file(path) as probe:
            probe.path.touch()
            path.chmod(stat.S_IMODE(probe.path.stat().st_mode))
