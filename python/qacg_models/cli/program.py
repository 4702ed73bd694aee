"""The command-line program `qacg`: picks a subcommand of `cli/commands/` and turns bad input into one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from qacg_models.cli.commands import analyze, convert, demo, evaluate, info, predict, table, train
from qacg_models.cli.libraries import load_libraries
from qacg_models.errors import InputError

COMMANDS = {
    "demo": demo,
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "analyze": analyze,
    "table": table,
    "convert": convert,
    "info": info,
}
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None takes those of the process.

    Returns:
        The exit status: 0 for success, 1 for a check that did not pass, 2 for input that cannot be used.
    """
    arguments = _parser().parse_args(argv)
    try:
        command = COMMANDS[arguments.command]
        if hasattr(command, "NEEDS"):
            load_libraries(command.NEEDS, alone=argv is None)
        status = command.run(arguments)
        sys.stdout.flush()  # what cannot be written is known here, not when the process is torn down
        return status
    except (InputError, OSError) as error:
        print(f"qacg {arguments.command}: {_one_line(error)}", file=sys.stderr)
        _give_up_output()
        return 2
    except KeyboardInterrupt:
        print(f"qacg {arguments.command}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _one_line(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        # Without the number; an error of writing names no file, and ours are named where they are written.
        text = f"{error.filename if error.filename is not None else 'standard output'}: {error.strerror}"
    return " ".join(text.split())


def _give_up_output() -> None:
    """Sends what standard output does not take nowhere, so that Python does not try it again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=34)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qacg", description="Aspect-based sentiment with quasi-attention.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        description = getattr(command, "DESCRIPTION", command.HELP)
        command.add_arguments(
            commands.add_parser(name, help=command.HELP, description=description, formatter_class=_formatter)
        )
    return parser
