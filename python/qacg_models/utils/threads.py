"""How many CPU threads torch uses, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Let torch use `count` threads inside the block; 0 or None leaves its own choice.

    A small model's operations are too short to share out, and on a busy machine two threads that wait for
    each other at every operation were measured to take ten times as long as one.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
