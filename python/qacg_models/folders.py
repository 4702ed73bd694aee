"""Putting a finished folder where it belongs, so that nobody ever sees half of it."""

import os
from pathlib import Path


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
