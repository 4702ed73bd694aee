"""Progress bars on stderr.

On a terminal a bar is redrawn in place. In a log file, redrawing would produce one long line of carriage returns, so
progress is shown by a line every few seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol, TextIO

from qacg_models.utils.distributed import is_main

SECONDS = 5.0  # seconds between the lines of a log file


class Bar(Protocol):
    """Interface of a progress bar, implemented by `LogLines`, a subclass of tqdm and a hidden bar."""

    n: float

    def update(self, n: float = 1) -> object: ...

    def skip(self, n: int) -> None: ...

    def set_postfix(self, ordered_dict: Mapping[str, str], *, refresh: bool) -> None: ...

    def close(self) -> None: ...


class LogLines:
    """Progress as lines of a log file: `update` writes a line at most every SECONDS seconds, `close` the last line.

    Args:
        total: number of items; None if it is unknown.
        what: name of the work, such as "training".
        unit: name of an item, such as "step".
        done: number of items that an earlier run has done.
        file: file to which the lines are written.
        clock: function that returns the time in seconds.
    """

    def __init__(
        self,
        total: int | None,
        what: str,
        unit: str,
        done: int,
        file: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total, self.what, self.unit, self.before = total, what, unit, done
        self.n: float = done
        self.file, self.clock, self.postfix = file, clock, ""
        self.begun = self.last = clock()
        self.written: tuple[float, str] | None = None
        self.closed = False

    def update(self, n: float = 1) -> None:
        """Adds `n` finished items."""
        self.n += n
        now = self.clock()
        if now - self.last >= SECONDS:
            self.last = now
            self._write()

    def skip(self, n: int) -> None:
        """Adds `n` items that an earlier run has done; they do not count for the rate."""
        if self.n == self.before:
            self.begun = self.clock()
        self.n += n
        self.before += n

    def set_postfix(self, ordered_dict: Mapping[str, str], *, refresh: bool) -> None:
        """Sets the values that lines show after the counts; `refresh` writes a line now."""
        self.postfix = ", ".join(f"{name}={value}" for name, value in ordered_dict.items())
        if refresh:
            self._write()

    def close(self) -> None:
        """Writes the last line, unless that line has been written."""
        if not self.closed:
            self.closed = True
            self._write()

    def _write(self) -> None:
        from tqdm import tqdm

        if self.written == (self.n, self.postfix):
            return
        self.written = (self.n, self.postfix)
        line = tqdm.format_meter(
            self.n,
            self.total,
            self.clock() - self.begun,
            ncols=0,  # the format of tqdm without its bar of blocks
            prefix=self.what,
            unit=self.unit,
            postfix=self.postfix,
            initial=self.before,
        )
        self.file.write(f"{line}\n")
        self.file.flush()


class _HiddenBar:
    """A progress bar that shows nothing."""

    def __init__(self, done: float):
        self.n = done

    def update(self, n: float = 1) -> None:
        self.n += n

    def skip(self, n: int) -> None:
        self.n += n

    def set_postfix(self, ordered_dict: Mapping[str, str], *, refresh: bool) -> None:
        pass

    def close(self) -> None:
        pass


_hidden: ContextVar[bool] = ContextVar("hidden", default=False)


@contextmanager
def hidden_bars() -> Iterator[None]:
    """Hides the bars that `progress_bar` creates inside the block."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


def progress_bar(total: int | None, what: str, unit: str, *, done: int = 0) -> Bar:
    """Returns a bar that is redrawn if stderr is a terminal, and `LogLines` if stderr is a file or pipe.

    Inside `hidden_bars` the bar shows nothing.

    Args:
        total: number of items; None if it is unknown.
        what: name of the work, such as "training".
        unit: name of an item, such as "step".
        done: number of items that an earlier run has done.
    """
    if _hidden.get():
        return _HiddenBar(done)
    if not sys.stderr.isatty():
        return LogLines(total, what, unit, done, sys.stderr)
    from tqdm import tqdm

    class TerminalBar(tqdm):
        def skip(self, n: int) -> None:
            if self.n == self.initial:
                self.start_t = self._time()
            self.n += n
            self.initial += n
            self.update(0)

    # smoothing=0: the rate is the mean since the start. miniters=1: redraw by time, whatever the size of a step.
    return TerminalBar(
        total=total, initial=done, desc=what, unit=unit, mininterval=0.1, miniters=1, smoothing=0, file=sys.stderr
    )


def pause_bars() -> AbstractContextManager:
    """Clears the bars from the terminal inside the block, so that lines can be printed."""
    from tqdm import tqdm

    return tqdm.external_write_mode()


class TextBar:
    """Shows the number of predicted texts in a progress bar, in the main process only.

    Implements the protocol `TextProgress` of `inference/bulk_prediction.py`.

    Args:
        count: function that returns the number of texts, or None if it is unknown; `begin` calls it.
    """

    def __init__(self, count: Callable[[], int | None]):
        self.count = count
        self.bar: Bar | None = None
        self.done = 0.0

    def __enter__(self) -> TextBar:
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def begin(self) -> None:
        """Shows the bar in the main process; its rate is measured from this call on."""
        if is_main():
            self.bar = progress_bar(self.count(), "predicting", "text")

    def advance(self, texts: float) -> None:
        """Adds finished texts, possibly a fraction of one; the bar shows whole texts."""
        if self.bar is not None:
            self.done += texts
            self.bar.update(int(self.done + 1e-6) - self.bar.n)

    def skip(self, texts: int) -> None:
        """Adds texts that an earlier run has done; they do not count for the rate."""
        if self.bar is not None:
            self.done += texts
            self.bar.skip(texts)
