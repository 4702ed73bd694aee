"""The process of a command: dependencies, Ctrl-C and SIGTERM, and standard output."""

import argparse
import importlib
import importlib.util
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from qacg_models.errors import InputError
from qacg_models.utils.devices import let_threads_sleep
from qacg_models.utils.distributed import world_size
from qacg_models.utils.quiet import quiet

# The modules of the dependencies in python/setup.py, except qacg_kernels.
DEPENDENCIES = (
    "transformers",
    "safetensors",
    "tokenizers",
    "accelerate",
    "sklearn",
    "threadpoolctl",
    "tqdm",
    "pyarrow",
    "yaml",
    "filelock",
    "lazy_loader",
)


def check_dependencies() -> None:
    """Checks that the modules in DEPENDENCIES are installed, without importing them.

    Raises:
        InputError: modules are missing; the message has their names and the command that installs them.
    """
    missing = [name for name in DEPENDENCIES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"dependencies of qacg-models are not installed: {', '.join(missing)}. Install them with `pip install"
            " qacg-models`, or with `pip install . ./python` in a checkout."
        )


def load_libraries() -> None:
    """Imports torch and transformers, and disables the progress bars of transformers.

    If torch is not loaded yet, OpenMP threads are set to sleep while they wait (`let_threads_sleep`).
    """
    let_threads_sleep()
    with quiet("torchao", "torch.utils._pytree"):  # transformers imports torchao, which prints warnings
        importlib.import_module("transformers.modeling_layers")
    from transformers.utils import logging

    logging.disable_progress_bar()


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


def write_out(text: str) -> None:
    """Writes text to standard output.

    Raises:
        BrokenPipeError: the reader closed the pipe, as `head` does.
        InputError: the write fails for another reason, which the message has.
        UnicodeEncodeError: the encoding of standard output lacks a character.
    """
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _write_error(error) from error


def flush_out() -> None:
    """Flushes standard output, so that a failure is reported before the process ends.

    Raises:
        BrokenPipeError: the reader closed the pipe, as `head` does.
        InputError: the write fails for another reason, which the message has.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _write_error(error) from error


def discard_output() -> None:
    """Flushes standard output; if that fails, discards the rest, which Python would try to write again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_error(error: OSError) -> InputError:
    return InputError(f"standard output: cannot be written ({error.strerror or error})")
