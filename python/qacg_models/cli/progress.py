"""The progress bar of texts that are read from a file."""

from __future__ import annotations

from collections.abc import Callable

from qacg_models.utils.distributed import is_main
from qacg_models.utils.progress import Bar, progress_bar


class TextBar:
    """Shows on stderr, in the main process alone, how many texts are done; a `TextProgress`.

    Args:
        count: how many there are, called once; None where nobody can know.
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
        """Shows the bar, whose rate counts from now on."""
        if is_main():
            self.bar = progress_bar(self.count(), "predicting", "text")

    def advance(self, texts: float) -> None:
        """So many more texts are done; the bar shows whole ones."""
        if self.bar is not None:
            self.done += texts
            self.bar.update(int(self.done + 1e-6) - self.bar.n)

    def skip(self, texts: int) -> None:
        """So many more were done by an earlier run; they do not count for the rate."""
        if self.bar is not None:
            self.done += texts
            self.bar.skip(texts)
