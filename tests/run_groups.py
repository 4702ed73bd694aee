"""Runs groups of checks one after the other and tells each one's outcome and time: `make test-all`.

    python tests/run_groups.py "NAME: COMMAND" ...

Each command is run by the shell, whatever became of those before it. The exit status is 1 if any failed; pytest's
status 5, no tests, is a failure too.
"""

import argparse
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs groups of checks one after the other.")
    parser.add_argument("groups", nargs="+", type=group, metavar="'NAME: COMMAND'")
    outcomes = [run(wanted) for wanted in parser.parse_args(arguments).groups]
    print("\nGroups:", *outcomes, sep="\n  ", flush=True)
    return int(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
