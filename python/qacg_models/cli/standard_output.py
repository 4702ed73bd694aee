"""Standard output that takes no more, as when it leads to a full disk or to a program that has ended."""

from __future__ import annotations

import os
import sys

from qacg_models.errors import InputError


def write_out(text: str) -> None:
    """Writes to standard output.

    Raises:
        InputError: it takes no more, with the reason.
    """
    try:
        sys.stdout.write(text)
    except OSError as error:
        raise _refused(error) from error


def flush_out() -> None:
    """Writes what was printed and is still held, so that a failure is known before the process is torn down.

    Raises:
        InputError: as for `write_out`.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        raise _refused(error) from error


def give_up_output() -> None:
    """After a failure: what standard output does not take goes nowhere, or Python would try it again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(error: OSError) -> InputError:
    return InputError(f"standard output: cannot be written ({error.strerror or error})")
