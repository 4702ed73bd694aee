"""Progress bars on stderr, by tqdm: redrawn on a terminal, a line every five seconds in a log file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from tqdm import tqdm

SECONDS = 5.0  # seconds between the lines of a log file


class _LogBar(tqdm):
    """Writes each state as a line, because a redrawn bar makes one long line of a log file."""

    monitor_interval = 0  # no thread that redraws
    written = ""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        line = str(self)
        if msg is None and line != self.written:  # with a message, `close` clears the bar
            self.fp.write(f"{line}\n")
            self.fp.flush()
            self.written = line

    def close(self) -> None:
        if not self.disable:
            self.display()
        super().close()


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
    return _LogBar(**options, mininterval=SECONDS, delay=SECONDS, ncols=0, leave=False)


def pause_bars() -> AbstractContextManager:
    """Clears the bars from the terminal inside the block, so that lines can be printed."""
    return tqdm.external_write_mode() if sys.stderr.isatty() else nullcontext()
