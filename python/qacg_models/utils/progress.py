"""Progress bars on stderr, by tqdm: redrawn often on a terminal, every five seconds in a log file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from tqdm import tqdm

SECONDS = 5.0  # seconds between the states of a bar in a log file
_hidden: ContextVar[bool] = ContextVar("hidden", default=False)


@contextmanager
def hidden_bars() -> Iterator[None]:
    """Hides the bars that `progress_bar` creates inside the block."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


def progress_bar(total: int | None, what: str, unit: str, *, done: int = 0) -> tqdm:
    """Returns a bar for `total` items (None: unknown) of which an earlier run has done `done`; `what` names the work.

    The rate is the mean of this run. Inside `hidden_bars` the bar shows nothing, and its `n` stays `done`.
    """
    options = {"total": total, "desc": what, "unit": unit, "initial": done, "disable": _hidden.get()}
    options |= {"smoothing": 0, "miniters": 1, "file": sys.stderr}  # the mean rate; redrawn by time
    if sys.stderr.isatty():
        return tqdm(**options, mininterval=0.1)
    return tqdm(**options, mininterval=SECONDS, ncols=0)


def pause_bars() -> AbstractContextManager:
    """Clears the bars inside the block, so that lines can be printed."""
    return tqdm.external_write_mode()
