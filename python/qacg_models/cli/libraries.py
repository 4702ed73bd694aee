"""Loading torch and transformers for a command, which is most of the time that a short command takes."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from qacg_models.utils.threads import let_threads_sleep

# What transformers imports for object detection, images and offloading if it is there, and does without if it is not.
_OF_OTHER_MODELS = ("scipy", "PIL", "accelerate")
# And for checkpoints of int8, of which there are none here: it takes seconds, and says on stderr what it misses.
_OF_OTHER_CHECKPOINTS = ("torchao",)


def load_libraries(purpose: str, *, alone: bool) -> None:
    """Imports torch and transformers, once, and keeps their own progress bars off the terminal; warnings stay.

    Args:
        purpose: "inference", or "training", whose Trainer needs all that transformers can use.
        alone: whether the command is all that this process is for, so that nobody misses what inference does not need.
    """
    let_threads_sleep()
    if "transformers.modeling_utils" not in sys.modules:
        hidden = _OF_OTHER_CHECKPOINTS + (_OF_OTHER_MODELS if purpose == "inference" else ())
        with _collector_off(), _hidden(hidden if alone else ()):
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
