"""Putting finished files and folders where they belong, so that nobody ever sees half of one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


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


@contextmanager
def written_whole(path: Path) -> Iterator[TextIO]:
    """A UTF-8 file to write, which gets its name, in place of what had it, once all of it is on the disk.

    If the block fails the file is gone and what was there stays. Line ends are written as they come.
    """
    work = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with work.open("w", encoding="utf-8", newline="") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(work, path)
    finally:
        work.unlink(missing_ok=True)
