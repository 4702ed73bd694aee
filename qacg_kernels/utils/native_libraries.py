"""The compiled libraries of the package, and why one may be missing or unusable."""

import json
from pathlib import Path

import torch

# The oldest torch whose stable ABI has everything that the libraries use; distributions/native builds them for it.
OLDEST_TORCH = (2, 10)

_PACKAGE = Path(__file__).resolve().parents[1]


def library(name: str) -> Path | None:
    """Path of the library with this name, "_cpu", "_launch" or "_cuda"; None if it was not built."""
    path = _PACKAGE / f"{name}.so"
    return path if path.exists() else None


def why_not_built(name: str) -> str:
    """The reason why a library is missing: the one that the build recorded, or that the package has none."""
    note = _PACKAGE / f"_build{name}.json"
    if note.exists():
        return json.loads(note.read_text())["reason"]
    return f"it was not built in {_PACKAGE}. To use an installed package, start Python outside of the checkout"


def why_not_loadable() -> str | None:
    """Why no library can be loaded: torch is too old. None if they can be."""
    version = torch.__version__.split("+")[0]
    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_TORCH:
        return None
    oldest = ".".join(map(str, OLDEST_TORCH))
    return f"torch: expected {oldest} or newer, got {torch.__version__}. Run pip install 'torch>={oldest}'"
