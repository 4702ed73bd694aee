"""What progress bars have in common, whatever they count."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm


def bar_interval() -> float:
    """Seconds between updates: in a log file every one is a line of its own, and one every five is enough."""
    return 0.1 if sys.stderr.isatty() else 5.0


def beside_bars() -> AbstractContextManager:
    """Inside, lines may be printed: bars are off the terminal, and come back afterwards."""
    from tqdm import tqdm

    return tqdm.external_write_mode()


def bar_of_many(rows: int, few: int) -> tqdm:
    """A bar over rows on stderr, which says nothing where they are few.

    Args:
        few: most rows that need no bar.
    """
    from tqdm import tqdm

    return tqdm(total=rows, unit="row", disable=rows <= few, leave=False, mininterval=bar_interval())
