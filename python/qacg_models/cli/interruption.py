"""What a command does when it is interrupted, by Ctrl-C or SIGTERM: it ends in order, and prints how to go on."""

from __future__ import annotations

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

# Exit statuses, as a shell reports the two signals.
INTERRUPTED, TERMINATED = 130, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised as an interruption so that locks and unfinished files are dealt with as after Ctrl-C."""


def interrupt_on_sigterm() -> None:
    """Makes the first SIGTERM raise `Terminated`; a second one ends the process at once.

    Not under torchrun, whose processes may wait for one another, where no signal handler runs.
    """
    if world_size() == 1:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


def what_to_do(command: ModuleType, arguments: argparse.Namespace, given: Sequence[str]) -> str:
    """The rest of the message of an interrupted command, which ends in the command to type.

    Args:
        command: the module of the subcommand, whose `arguments_to_resume`, if it has one, is asked.
        given: the arguments that were typed.
    """
    try:
        resumed = command.arguments_to_resume(arguments, given) if hasattr(command, "arguments_to_resume") else None
    except (InputError, OSError, KeyError):  # what the command has not come to say is wrong
        resumed = None
    advice = "start again with:" if resumed is None else "resume with:"
    again = given if resumed is None else resumed
    source = "\n(with the same texts on standard input)" if getattr(arguments, "input", None) == Path("-") else ""
    return f"{advice}\n  {shlex.join([*_program(), *again])}{source}"


def with_resume(given: Sequence[str], arguments: argparse.Namespace) -> list[str]:
    """The arguments of a command, of which the first is its name, with --resume among them."""
    return [*given] if arguments.resume else [given[0], "--resume", *given[1:]]


def _program() -> list[str]:
    """How this program was started."""
    file = ("qacg_models", "cli", "__main__.py")
    module = ["-m", ".".join(file[:2])]
    if world_size() > 1:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
        nodes = ["--nnodes", str(world_size() // here)] if here < world_size() else []
        return ["torchrun", *nodes, "--nproc-per-node", str(here), *module]
    return ["python", *module] if Path(sys.argv[0]).parts[-3:] == file else ["qacg"]
