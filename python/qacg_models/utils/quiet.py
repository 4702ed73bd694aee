"""Other packages without their remarks on what is not there and on names that they choose themselves."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Inside, neither warnings nor what these loggers say below an error is shown; errors are raised as ever.

    Args:
        loggers: names. One without a level of its own is quieted by those above it too.
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
