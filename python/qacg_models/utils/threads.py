"""CPU threads of torch: how many for a while, and how they wait for one another."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def let_threads_sleep() -> None:
    """Make OpenMP threads sleep while they wait for one another, instead of spinning.

    A spinning thread takes processor time from the very thread that it waits for. Measured with a step of MiniLM on
    two cores, in seconds: with ten other busy processes 11 to 18 with two spinning threads, 4 to 5 with two sleeping
    ones and 4.4 to 6.4 with one; on free cores 0.7 with two threads of either kind and 1.2 with one.

    OpenMP reads the setting when torch is imported, so call this before; afterwards it does nothing. A value of
    OMP_WAIT_POLICY that is already set stays.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def cpu_quota() -> int | None:
    """Cores that the control group (such as a container's `--cpus`) grants, rounded up; None without a limit."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = (_CGROUP / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (_CGROUP / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except OSError:
            return None
    if not (quota.isdecimal() and period.isdecimal()):  # "max", or -1 in version 1
        return None
    return max(1, math.ceil(int(quota) / int(period)))


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Let torch use `count` threads inside the block.

    Args:
        count: 0 or None takes torch's own number, which follows the cores that the process may run on and
            OMP_NUM_THREADS, but at most `cpu_quota`, which torch does not know of.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or min(before, cpu_quota() or before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
