"""Ctrl-C and SIGTERM: the command cleans up, and prints the command line that resumes or repeats it."""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from qacg_models.errors import InputError
from qacg_models.utils.distributed import world_size

# Exit statuses with which a shell reports SIGINT (Ctrl-C) and SIGTERM.
INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM; a KeyboardInterrupt, so that commands clean up locks and unfinished files as after Ctrl-C."""


def interrupt_on_sigterm() -> None:
    """Makes the first SIGTERM raise `Terminated`; a second SIGTERM ends the process at once.

    Does nothing if torchrun started several processes: Python runs no signal handler while a process waits for others.
    """
    if world_size() == 1:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


def resume_hint(command: ModuleType, arguments: argparse.Namespace, given: Sequence[str]) -> str:
    """Returns the hint that an interrupted command prints: the command line that resumes or repeats it.

    Args:
        command: module of the subcommand. If its function `arguments_to_resume` returns arguments, the hint contains
            these arguments, otherwise `given`.
        arguments: the parsed arguments.
        given: the unparsed arguments of the process.
    """
    try:
        resumed = command.arguments_to_resume(arguments, given) if hasattr(command, "arguments_to_resume") else None
    except (InputError, OSError, KeyError):  # the command was interrupted before it checked its arguments
        resumed = None
    advice = "start again with:" if resumed is None else "resume with:"
    again = given if resumed is None else resumed
    source = "\n(with the same texts on standard input)" if getattr(arguments, "input", None) == Path("-") else ""
    return f"{advice}\n  {shlex.join([*_program(), *again])}{source}"


def with_resume(given: Sequence[str], arguments: argparse.Namespace) -> list[str]:
    """Returns the arguments `given`, which begin with the name of a command, with --resume added if it is not set."""
    return [*given] if arguments.resume else [given[0], "--resume", *given[1:]]


def _program() -> list[str]:
    """Returns the start of a command line that runs this program again: `qacg`, `python -m` or `torchrun` with `-m`."""
    file = ("qacg_models", "cli", "__main__.py")
    module = ["-m", ".".join(file[:2])]
    if world_size() > 1:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
        nodes = ["--nnodes", str(world_size() // here)] if here < world_size() else []
        return ["torchrun", *nodes, "--nproc-per-node", str(here), *module]
    return ["python", *module] if Path(sys.argv[0]).parts[-3:] == file else ["qacg"]
