"""The progress bar of a file that is read."""

from __future__ import annotations

from pathlib import Path

from qacg_models.data.requests import count_lines
from qacg_models.utils.distributed import is_main
from qacg_models.utils.progress import bar_interval


class LineBar:
    """Shows on stderr, in the main process alone, how far a file has been read.

    Args:
        path: the file, whose lines are counted first; None: what is read has no length that could be known.
    """

    def __init__(self, path: Path | None):
        self.path, self.bar = path, None

    def __enter__(self) -> LineBar:
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def reach(self, line: int) -> None:
        """Lines up to this one have been dealt with."""
        if self.bar is None:
            self._begin()
        self.bar.update(line - self.bar.n)

    def _begin(self) -> None:
        from tqdm import tqdm

        total = None if self.path is None or not is_main() else count_lines(self.path)
        self.bar = tqdm(total=total, desc="predicting", unit="line", mininterval=bar_interval(), disable=not is_main())
