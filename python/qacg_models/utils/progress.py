"""What progress bars have in common, whatever they count."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager


def bar_interval() -> float:
    """Seconds between updates: in a log file every one is a line of its own, and one every five is enough."""
    return 0.1 if sys.stderr.isatty() else 5.0


def beside_bars() -> AbstractContextManager:
    """Inside, lines may be printed: bars are off the terminal, and come back afterwards."""
    from tqdm import tqdm

    return tqdm.external_write_mode()
