"""Checks that the packages of the extra "models" are installed, and imports torch and transformers for a command."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from qacg_models.errors import InputError
from qacg_models.utils.devices import let_threads_sleep

# What the packages of the extra "models" (pyproject.toml) are imported as.
MODELS_EXTRA = (
    "transformers",
    "safetensors",
    "tokenizers",
    "accelerate",
    "sklearn",
    "matplotlib",
    "tqdm",
    "pyarrow",
    "yaml",
    "filelock",
)
# transformers imports torchao for quantized checkpoints, which no command loads: that takes half a second and prints
# warnings. Nothing else is hidden: scikit-learn, which some versions of transformers import, requires scipy.
_UNUSED = ("torchao",)


def check_models_extra() -> None:
    """Checks that every package of the extra "models" is installed, without importing one.

    Raises:
        InputError: packages are missing; the text names them and the command that installs them.
    """
    missing = [name for name in MODELS_EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f'needs the extra "models" ({", ".join(missing)} not installed): pip install "FILE.whl[models]", '
            'or pip install ".[models]" in a checkout'
        )


def load_libraries(*, alone: bool) -> None:
    """Imports torch and transformers and disables the progress bars of transformers.

    Args:
        alone: whether this process runs one command only. Then packages that no command uses are not imported.
    """
    let_threads_sleep()
    if "transformers.modeling_utils" not in sys.modules:
        with _collector_off(), _hidden(_UNUSED if alone else ()):
            importlib.import_module("transformers.modeling_layers")
    from transformers.utils import logging

    logging.disable_progress_bar()


@contextmanager
def _collector_off() -> Iterator[None]:
    """Inside, no garbage is collected, and what is there afterwards is never looked at again.

    Modules are made of hundreds of thousands of objects that live as long as the process; looking through them again
    and again takes a fifth of the time that imports take, and once more at the end of the process.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if running:
            gc.enable()


@contextmanager
def _hidden(packages: tuple[str, ...]) -> Iterator[None]:
    """Inside, packages that are not loaded yet cannot be found."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
