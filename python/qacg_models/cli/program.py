"""The command-line program `qacg`: runs a subcommand of `cli/commands/`, and prints user errors as one line."""

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
from qacg_models.cli.process import (
    BROKEN_PIPE,
    INTERRUPTED,
    TERMINATED,
    Terminated,
    check_dependencies,
    discard_output,
    flush_out,
    interrupt_on_sigterm,
    load_libraries,
    resume_hint,
)
from qacg_models.data.example import ReadingWarning
from qacg_models.errors import InputError
from qacg_models.utils.distributed import is_main
from qacg_models.utils.plain_text import lone_surrogate

COMMANDS = {
    "demo": demo,
    "suggest": suggest,
    "check": check,
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "analyze": analyze,
    "table": table,
    "convert": convert,
    "export": export,
    "info": info,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments without the name of the program; None for those of the process.

    Returns:
        The exit status: 0 for success, 1 if a check failed, 2 for unusable input or a file that cannot be read or
        written, 130 after Ctrl-C, 141 if the reader of standard output closed the pipe, 143 after SIGTERM.

    Raises:
        SystemExit: after --help or --version (status 0), or if the arguments cannot be parsed (status 2).
    """
    given = sys.argv[1:] if argv is None else argv
    for number, argument in enumerate(given, 1):
        if lone_surrogate(argument):
            print(f"qacg: argument {number}: expected text in UTF-8, got {argument!a}.", file=sys.stderr)
            return 2
    arguments = _parser().parse_args(given)
    command = COMMANDS[arguments.command]
    if argv is None:
        interrupt_on_sigterm()
    try:
        if command is not info:  # info also describes incomplete installations
            check_dependencies()
        if hasattr(command, "USES_MODELS"):
            load_libraries()
        with _reading_warnings_as_lines():
            status = command.run(arguments)
        flush_out()
        return status
    except BrokenPipeError:
        discard_output()
        return BROKEN_PIPE
    except (InputError, OSError) as error:
        print(f"qacg {arguments.command}: {_one_line(error)}", file=sys.stderr)
        discard_output()
        return 2
    except UnicodeEncodeError as error:  # of print: files are written in UTF-8
        lacking = f"expected an encoding with {error.object[error.start]!a}, got {error.encoding}"
        print(f"qacg {arguments.command}: standard output: {lacking}. Set PYTHONIOENCODING=utf-8.", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interruption:
        if is_main():
            print(f"qacg {arguments.command}: interrupted; {resume_hint(command, arguments, given)}", file=sys.stderr)
        return TERMINATED if isinstance(interruption, Terminated) else INTERRUPTED


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


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=34)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qacg", description="Aspect-based sentiment with quasi-attention.")
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        description = getattr(command, "DESCRIPTION", command.HELP)
        command.add_arguments(
            commands.add_parser(name, help=command.HELP, description=description, formatter_class=_formatter)
        )
    return parser
