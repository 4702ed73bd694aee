"""Runs groups of checks one after the other and tells each one's outcome and time: `make test-all`.

    python tests/run_groups.py "NAME: COMMAND" ... --one-core "NAME: COMMAND" ...

Each command is run by the shell, whatever became of those before it. Those that keep one core busy come last, as many
at a time as there are cores, and what each says is shown when it has ended. The exit status is 1 if any failed;
pytest's status 5, no tests, is a failure too.
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys
import time
from typing import NamedTuple


class Group(NamedTuple):
    name: str
    command: str


class Outcome(NamedTuple):
    name: str
    status: int
    seconds: float

    def __str__(self) -> str:
        minutes, seconds = divmod(round(self.seconds), 60)
        said = "passed" if self.status == 0 else f"failed ({self.status})"
        return f"{self.name}: {said}, {minutes} min {seconds:02d} s"


def group(text: str) -> Group:
    name, mark, command = map(str.strip, text.partition(": "))
    if not (name and mark and command):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted 'NAME: COMMAND'")
    return Group(name, command)


def run(wanted: Group) -> Outcome:
    print(f"\n== {wanted.name}: {wanted.command}", flush=True)
    started = time.monotonic()
    status = subprocess.run(wanted.command, shell=True, check=False).returncode
    outcome = Outcome(wanted.name, status, time.monotonic() - started)
    print(f"== {outcome}", flush=True)
    return outcome


def run_side_by_side(groups: list[Group]) -> list[Outcome]:
    """Runs them on as many cores as there are; each one's lines stay together."""

    def run_unseen(wanted: Group) -> Outcome:
        started = time.monotonic()
        into = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(wanted.command, shell=True, check=False, text=True, errors="replace", **into)
        outcome = Outcome(wanted.name, done.returncode, time.monotonic() - started)
        print(f"\n== {wanted.name}: {wanted.command}\n{done.stdout}== {outcome}", flush=True)
        return outcome

    if groups:
        print(f"\n== begun: {', '.join(group.name for group in groups)}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(run_unseen, groups))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs groups of checks one after the other.")
    parser.add_argument("groups", nargs="*", type=group, metavar="'NAME: COMMAND'")
    parser.add_argument("--one-core", nargs="+", type=group, default=[], metavar="'NAME: COMMAND'")
    options = parser.parse_args(arguments)
    if not (options.groups or options.one_core):
        parser.error("got no group, wanted at least one")
    outcomes = [*map(run, options.groups), *run_side_by_side(options.one_core)]
    print("\nGroups:", *outcomes, sep="\n  ", flush=True)
    return int(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
