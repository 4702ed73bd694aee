"""Writes to standard output; a full disk raises InputError, a closed pipe BrokenPipeError."""

import os
import sys

from qacg_models.errors import InputError


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
