"""Silences warnings and log lines of other packages that a user of this one cannot act on."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Suppresses warnings, and log lines below the level ERROR, inside the block.

    Args:
        loggers: names of loggers. A parent logger also silences its children without a level of their own.
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
