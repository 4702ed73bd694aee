"""How much of the machine others used while we measured."""

import os
from pathlib import Path


class Disturbance:
    """How much of the machine others used while we measured.

    With as many threads as cores one busy neighbour makes every barrier wait for it, and times grow tenfold.
    """

    _STAT = Path("/proc/stat")

    def __init__(self) -> None:
        self._start = self._read()

    def share(self) -> float | None:
        """Share of all processor time since the making; None where the system does not tell."""
        now = self._read()
        if self._start is None or now is None:
            return None
        total, busy, own = (later - earlier for later, earlier in zip(now, self._start))
        return min(1.0, max(0.0, (busy - own) / total)) if total > 0 else 0.0

    @classmethod
    def _read(cls) -> tuple[float, float, float] | None:
        """Seconds since boot: in total, not idle, and of this process."""
        if not cls._STAT.exists():
            return None
        # user, nice, system, idle, iowait, irq, softirq, steal; the guest fields after them are in user.
        ticks = [int(field) for field in cls._STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        per_second = os.sysconf("SC_CLK_TCK")
        own = os.times()
        return sum(ticks) / per_second, (sum(ticks) - ticks[3] - ticks[4]) / per_second, own.user + own.system
