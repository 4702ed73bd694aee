"""Compiles the Triton kernels for every GPU with a tile table and checks their resources: `make check-triton`.

No GPU is needed. It prints a line per build and, at the end, the builds that do not compile or exceed a limit; then the
exit status is 1. Triton caches compiled kernels (TRITON_CACHE_DIR), so a second run is short. `make check-triton
TRITON=3.6.0` installs another version of Triton into a separate folder.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import triton
from triton_builds import Build, builds_of_every_kind, compile_build, every_build, faults
from triton_resources import Resources


class Outcome(NamedTuple):
    build: Build
    used: dict[str, Resources]
    faults: list[str]
    seconds: float


_SELECTIONS = {"all": every_build, "kinds": builds_of_every_kind}


def _outcome(build: Build) -> Outcome:
    torch.set_num_threads(1)
    started = time.monotonic()
    try:
        used = compile_build(build)
        wrong = faults(build, used)
    except Exception as error:  # an error of the compiler counts for this build only
        used, wrong = {}, [f"{build}: {type(error).__name__}: {str(error)[:300]}"]
    return Outcome(build, used, wrong, time.monotonic() - started)


def outcomes(builds: Sequence[Build], jobs: int) -> Iterator[Outcome]:
    """Compiles in `jobs` processes and yields outcomes as they finish."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_outcome, builds)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compiles every shipped configuration of the Triton kernels.")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="", metavar="TEXT", help="builds whose line contains all of these words")
    parser.add_argument(
        "--builds", choices=_SELECTIONS, default="all", help="kinds: every kind of call for one chip and head size"
    )
    parser.add_argument("--expect", metavar="VERSION", help="the required version of Triton")
    options = parser.parse_args(arguments)
    if options.expect and options.expect != triton.__version__:
        parser.error(f"--expect: expected Triton {options.expect}, got {triton.__version__} at {triton.__file__}")
    words = options.only.replace(",", " ").split()
    builds = [b for b in _SELECTIONS[options.builds]() if all(w in str(b).replace(",", "").split() for w in words)]
    if not builds:
        parser.error(f"--only: expected words of a build such as {str(every_build()[0])!r}, got {options.only!r}")
    print(f"Triton {triton.__version__}, {len(builds)} builds", flush=True)
    broken: list[str] = []
    started = time.monotonic()
    for number, outcome in enumerate(outcomes(builds, options.jobs), 1):
        used = "; ".join(
            f"{name} {r.registers} registers, {r.stack} B of stack, {r.shared} B shared"
            for name, r in outcome.used.items()
        )
        print(f"{number}/{len(builds)} {outcome.build}: {used or 'failed'} ({outcome.seconds:.0f} s)", flush=True)
        broken += outcome.faults
    minutes = (time.monotonic() - started) / 60
    print(
        f"Triton {triton.__version__}: {len(builds)} builds in {minutes:.1f} minutes on {options.jobs} processes, "
        f"{len(broken)} faults"
    )
    print(*broken, sep="\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
