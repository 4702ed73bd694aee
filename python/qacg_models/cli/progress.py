"""The progress bar of texts that are read from a file."""

from __future__ import annotations

from collections.abc import Callable

from qacg_models.utils.distributed import is_main
from qacg_models.utils.progress import Bar, progress_bar


class TextBar:
    """Shows on stderr, in the main process alone, how many texts have been dealt with.

    Args:
        count: how many there are, asked for once when the first are done; None where nobody can know.
    """

    def __init__(self, count: Callable[[], int | None]):
        self.count = count
        self.bar: Bar | None = None

    def __enter__(self) -> TextBar:
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def advance(self, texts: int) -> None:
        """So many more texts have been dealt with."""
        if not is_main():
            return
        if self.bar is None:
            self.bar = progress_bar(self.count(), "predicting", "text")
        self.bar.update(texts)
