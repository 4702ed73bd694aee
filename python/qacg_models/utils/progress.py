"""What progress bars have in common, whatever they count.

On a terminal a bar is redrawn in its line. In a log file it would become one endless line of returns, so there it is
a line of its own every few seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TextIO

SECONDS = 5.0  # between the lines of a log file


class Bar(Protocol):
    """What a bar of tqdm and `LogLines` have in common."""

    n: float

    def update(self, n: float = 1) -> object: ...

    def skip(self, n: int) -> None: ...

    def set_postfix(self, ordered_dict: Mapping[str, str], *, refresh: bool) -> None: ...

    def close(self) -> None: ...


class LogLines:
    """Progress for a log file: a line when a few seconds have passed, and one at the end.

    Args:
        total: how many there will be; None: nobody knows.
        what: is done, such as "training", and `unit` what is counted.
        done: how many were done before.
        file: where lines go.
        clock: seconds.
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
        """`n` more are done."""
        self.n += n
        now = self.clock()
        if now - self.last >= SECONDS:
            self.last = now
            self._write()

    def skip(self, n: int) -> None:
        """`n` more were done before; until something is done now, the time begins anew."""
        if self.n == self.before:
            self.begun = self.clock()
        self.n += n
        self.before += n

    def set_postfix(self, ordered_dict: Mapping[str, str], *, refresh: bool) -> None:
        """What later lines show behind the counts."""
        self.postfix = ", ".join(f"{name}={value}" for name, value in ordered_dict.items())
        if refresh:
            self._write()

    def close(self) -> None:
        """The last line, unless it has been written."""
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
            ncols=0,  # without a bar of blocks
            prefix=self.what,
            unit=self.unit,
            postfix=self.postfix,
            initial=self.before,
        )
        self.file.write(f"{line}\n")
        self.file.flush()


def progress_bar(total: int | None, what: str, unit: str, *, done: int = 0) -> Bar:
    """A bar on stderr: drawn on a terminal, lines of a log file elsewhere; arguments as for `LogLines`."""
    if not sys.stderr.isatty():
        return LogLines(total, what, unit, done, sys.stderr)
    from tqdm import tqdm

    class DrawnBar(tqdm):
        def skip(self, n: int) -> None:
            if self.n == self.initial:
                self.start_t = self._time()
            self.n += n
            self.initial += n
            self.update(0)

    # smoothing=0: the rate is the mean since the start. miniters=1: redrawn by time, whatever the last step was.
    return DrawnBar(
        total=total, initial=done, desc=what, unit=unit, mininterval=0.1, miniters=1, smoothing=0, file=sys.stderr
    )


def beside_bars() -> AbstractContextManager:
    """Inside, lines may be printed: bars are off the terminal, and come back afterwards."""
    from tqdm import tqdm

    return tqdm.external_write_mode()
