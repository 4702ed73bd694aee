"""The compiled libraries that installation leaves in this folder, and its notes on those that it did not build."""

import json
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def library(name: str) -> Path | None:
    """Path of the library "_cpu" or "_cuda", None if it was not built."""
    return next(iter(sorted(_PACKAGE.glob(f"{name}.*so"))), None)


def why_not_built(name: str) -> str:
    """The reason that setup.py noted for a library that is not there."""
    note = _PACKAGE / f"_build{name}.json"
    return json.loads(note.read_text())["reason"] if note.exists() else "it was not built at installation"
