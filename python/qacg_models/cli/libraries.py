"""Checks that the dependencies are installed, and imports torch and transformers for a command."""

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from qacg_models.errors import InputError
from qacg_models.utils.devices import let_threads_sleep
from qacg_models.utils.quiet import quiet

# The modules of the dependencies in python/setup.py, except qacg_kernels.
DEPENDENCIES = (
    "transformers",
    "safetensors",
    "tokenizers",
    "accelerate",
    "sklearn",
    "threadpoolctl",
    "matplotlib",
    "tqdm",
    "pyarrow",
    "yaml",
    "filelock",
)
# transformers imports torchao for quantized checkpoints, which no command loads. The import takes half a second and
# prints warnings. scipy cannot be hidden too: some versions of transformers import scikit-learn, which requires scipy.
_UNUSED = ("torchao",)


def check_dependencies() -> None:
    """Checks that the modules in DEPENDENCIES are installed, without importing them.

    Raises:
        InputError: modules are missing; the message has their names and the command that installs them.
    """
    missing = [name for name in DEPENDENCIES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"dependencies of qacg-models are not installed: {', '.join(missing)}. Install them with `pip install"
            " qacg-models`, or with `pip install . ./python` in a checkout."
        )


def load_libraries(*, alone: bool) -> None:
    """Imports torch and transformers, and disables the progress bars of transformers.

    If torch is not loaded yet, OpenMP threads are set to sleep while they wait (`let_threads_sleep`).

    Args:
        alone: whether this process runs one command only. If so, transformers is imported without torchao; --int8,
            the only user of torchao, imports torchao later.
    """
    let_threads_sleep()
    if "transformers.modeling_utils" not in sys.modules:
        # If torchao is not hidden, transformers imports it, and it prints warnings.
        with _collector_off(), _hidden(_UNUSED if alone else ()), quiet(*_UNUSED, "torch.utils._pytree"):
            importlib.import_module("transformers.modeling_layers")
    from transformers.utils import logging

    logging.disable_progress_bar()


@contextmanager
def _collector_off() -> Iterator[None]:
    """Disables garbage collection inside the block; later collections ignore the objects that exist at its end.

    Modules consist of hundreds of thousands of objects that live as long as the process. Scanning them repeatedly takes
    a fifth of the import time, and delays the end of the process.
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
    """Makes imports of the named packages fail inside the block, unless they are loaded already."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
