"""The command-line program `qacg`: runs a subcommand of `cli/commands/`, and prints user errors as one line."""

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from qacg_models.cli.commands import (
    analyze,
    check,
    convert,
    demo,
    evaluate,
    export,
    info,
    predict,
    suggest,
    table,
    train,
)
from qacg_models.errors import InputError
from qacg_models.sentiment.example import ReadingWarning
from qacg_models.utils.machine import is_main, load_libraries, world_size
from qacg_models.utils.text import lone_surrogate

# Exit statuses with which a shell reports SIGINT (Ctrl-C), SIGPIPE and SIGTERM.
INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143

# In the order of `qacg --help`.
_MODULES = (demo, suggest, check, train, evaluate, predict, analyze, table, convert, export, info)
COMMANDS = {module.__name__.rpartition(".")[2]: module for module in _MODULES}


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM; a KeyboardInterrupt, so that commands clean up locks and unfinished files as after Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command, with the arguments of the process if `argv` is None; returns the exit status.

    The status is 0 for success, 1 if a check failed, 2 for unusable input or a file that cannot be read or written, 130
    after Ctrl-C, 141 if the reader of standard output closed the pipe, and 143 after SIGTERM.
    """
    given = sys.argv[1:] if argv is None else argv
    for number, argument in enumerate(given, 1):
        if lone_surrogate(argument):
            print(f"qacg: argument {number}: expected text in UTF-8, got {argument!a}.", file=sys.stderr)
            return 2
    arguments = _parser().parse_args(given)
    command = COMMANDS[arguments.command]
    if argv is None and world_size() == 1:  # Python runs no signal handler while a process waits for others
        signal.signal(signal.SIGTERM, _terminate)
    try:
        if hasattr(command, "USES_MODELS"):
            load_libraries()
        with _reading_warnings_as_lines():
            status = command.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except (InputError, OSError) as error:
        message, status = _one_line(error), 2
        _discard_output()
    except UnicodeEncodeError as error:  # of print: files are written in UTF-8
        lacking = f"expected an encoding with {error.object[error.start]!a}, got {error.encoding}"
        message, status = f"standard output: {lacking}. Set PYTHONIOENCODING=utf-8.", 2
    except ModuleNotFoundError as error:
        if (error.name or "qacg_models").startswith("qacg_"):
            raise
        message, status = f"{error.name} is not installed. Install it with `pip install qacg-models`.", 2
    except KeyboardInterrupt as interruption:
        message, status = f"interrupted{_resume_hint(arguments)}", INTERRUPTED
        if isinstance(interruption, Terminated):
            status = TERMINATED
    if status == 2 or is_main():
        print(f"qacg {arguments.command}: {message}", file=sys.stderr)
    return status


def _terminate(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second SIGTERM ends the process at once
    raise Terminated


def _resume_hint(arguments: argparse.Namespace) -> str:
    if not hasattr(arguments, "resume") or getattr(arguments, "output", "in the file of --config") is None:
        return ""
    return f"; the same command with --resume{' instead of --overwrite' if arguments.overwrite else ''} continues it"


def _discard_output() -> None:
    """Flushes standard output; if that fails, discards the rest, which Python would try to write again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _reading_warnings_as_lines() -> Iterator[None]:
    """Prints each ReadingWarning once inside the block, as one line to stderr; only the main process prints."""
    printed = set()
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def show(message, category, *where, **more):
            if not issubclass(category, ReadingWarning):
                show_other(message, category, *where, **more)
            elif is_main() and str(message) not in printed:  # files are read twice
                printed.add(str(message))
                print(f"warning: {message}", file=sys.stderr)

        warnings.showwarning = show
        warnings.simplefilter("always", ReadingWarning)
        yield


def _one_line(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:  # without the number
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return " ".join(text.split())


class _PrintVersion(argparse.Action):
    """Prints the version and exits; only then imports qacg_kernels, which imports torch."""

    def __call__(self, parser, namespace, values, option_string=None):
        from qacg_kernels import __version__

        print(f"qacg {__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qacg", description="Aspect-based sentiment with quasi-attention.")
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        description = getattr(command, "DESCRIPTION", command.HELP)
        layout = partial(argparse.HelpFormatter, max_help_position=34)
        command.add_arguments(
            commands.add_parser(name, help=command.HELP, description=description, formatter_class=layout)
        )
    return parser
