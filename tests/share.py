"""Which share of the matrices CI takes on this machine: prints K/N for `make test-all SHARE=K/N`, or nothing for all.

    python tests/share.py COMMIT

CI is to end within three quarters of an hour, and machines differ by three in speed. A slow one goes through
a half or a quarter of the great matrices, another one for another commit; tests of every kind run everywhere. The pace
is that of Python on all cores at once, at its best of some tries.
"""

import os
import subprocess
import sys
import time

# Of a core of the machine (Zen 4, two cores) on which `make test-all` takes some twenty minutes.
REFERENCE_SECONDS = 0.55
TRIES = 5
# Up to which multiple of the reference's time which part is taken; beyond the last one a quarter.
PARTS = ((1.5, 1), (2.2, 2))
LEAST = 4
_WORK = "total = 0\nfor i in range(5_000_000):\n    total += i * i % 7\n"


def share(slowness: float, commit: str) -> str:
    """K/N for a machine that takes so many times the reference's time, or "" for all; K goes by the commit's hash."""
    parts = next((parts for limit, parts in PARTS if slowness <= limit), LEAST)
    return "" if parts == 1 else f"{int(commit, 16) % parts}/{parts}"


def slowness() -> float:
    """How many times the reference's time a process takes for the same work, beside one on every other core."""
    return min(_seconds() for _ in range(TRIES)) / REFERENCE_SECONDS


def _seconds() -> float:
    started = time.monotonic()
    command = [sys.executable, "-c", _WORK]
    running = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    for process in running:
        process.wait()
    return time.monotonic() - started


if __name__ == "__main__":
    measured = slowness()
    taken = share(measured, sys.argv[1])
    said = f"a share of the great matrices, {taken}" if taken else "the whole matrices"
    print(f"this machine takes {measured:.1f} times the reference's time: {said}", file=sys.stderr)
    print(taken)
