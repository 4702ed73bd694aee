"""Options and exit statuses that benchmark commands have in common."""

import argparse
import sys
from collections.abc import Callable

import torch

from benchmarks.measure.agreement import ParityError

INTERRUPTED = 130  # the exit status that shells report after Ctrl-C
RESUMES = "--out has the records so far; the same command resumes"  # `advice` of commands that resume


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that commands measuring on the CPU have in common: --out, --threads and --quick."""
    parser.add_argument("--out", metavar="DIR", help="folder for the records; by default they are only printed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of threads of torch")
    parser.add_argument("--quick", action="store_true", help="few repeats, to check that everything runs")


def exit_status(action: Callable[[], int], advice: str = "") -> int:
    """Runs a command's action and returns its exit status.

    ParityError, ImportError, OSError, ValueError and RuntimeError are printed to stderr, and the status is 1. Ctrl-C
    prints a message, and the status is INTERRUPTED. Other exceptions are not caught.
    """
    try:
        return action()
    except KeyboardInterrupt:
        print(f"interrupted; {advice}" if advice else "interrupted", flush=True)
        return INTERRUPTED
    except ParityError as error:
        print(f"parity fails, so there are no measurements:\n{error}", file=sys.stderr)
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
    return 1
