"""Checks that the dependencies are installed, and imports torch and transformers for a command."""

import importlib
import importlib.util

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
    "pandas",
    "pyarrow",
    "yaml",
    "filelock",
    "lazy_loader",
)


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


def load_libraries() -> None:
    """Imports torch and transformers, and disables the progress bars of transformers.

    If torch is not loaded yet, OpenMP threads are set to sleep while they wait (`let_threads_sleep`).
    """
    let_threads_sleep()
    with quiet("torchao", "torch.utils._pytree"):  # transformers imports torchao, which prints warnings
        importlib.import_module("transformers.modeling_layers")
    from transformers.utils import logging

    logging.disable_progress_bar()
