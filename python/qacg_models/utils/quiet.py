"""Hides warnings, log lines and progress bars of other packages that do not help a user of this package."""

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from qacg_models.utils.devices import let_threads_sleep


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Suppresses all Python warnings, and log lines of `loggers` below the level ERROR, inside the block.

    Args:
        *loggers: names of loggers. Child loggers without a level of their own are silenced too.
    """
    found = [logging.getLogger(name) for name in loggers]
    before = [logger.level for logger in found]
    for logger in found:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(found, before):
            logger.setLevel(level)


@contextmanager
def hidden_library_bars() -> Iterator[None]:
    """Hides the progress bars of transformers, such as those of loading weights, inside the block or function."""
    from transformers.utils import logging as library

    shown = library.is_progress_bar_enabled()
    library.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            library.enable_progress_bar()


def load_libraries() -> None:
    """Imports torch and transformers, and disables the progress bars of transformers.

    If torch is not loaded yet, OpenMP threads are set to sleep while they wait (`let_threads_sleep`).
    """
    let_threads_sleep()
    with quiet("torchao", "torch.utils._pytree"):  # transformers imports torchao, which prints warnings
        importlib.import_module("transformers.modeling_layers")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
