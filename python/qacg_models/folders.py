"""Putting a finished folder where it belongs, so that nobody ever sees half of it."""

import os
from pathlib import Path


def put_in_place(new: Path, output: Path) -> None:
    """Renames `new` to `output`; what was there is renamed to `old` beside `new`, for the caller to delete."""
    if output.exists():
        os.rename(output, new.with_name("old"))
    os.rename(new, output)
