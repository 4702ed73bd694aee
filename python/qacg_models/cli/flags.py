"""Command-line flags that several subcommands share, and checks of their values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from qacg_models.errors import InputError
from qacg_models.utils.cells import counted
from qacg_models.utils.distributed import is_main
from qacg_models.utils.option_fields import format_value, help_text

if TYPE_CHECKING:
    from qacg_models.inference.trained_model import TrainedModel

# Names of flags that differ from the names of their fields, by field.
NAMES = {"from_checkpoint": "from"}
# Fields of DataOptions whose values a trained model determines, so they have no flag in commands that load a model.
TRAINING_FIELDS = ("aspects", "labels", "absent_label", "dev_fraction", "dev_seed")


def add_flags(
    parser: argparse.ArgumentParser,
    options: type,
    *,
    leave_out: Sequence[str] = (),
    default_of: Callable[[str], str | None] = lambda name: None,
) -> None:
    """Adds a flag for each field of a dataclass, in the argument group that the field's metadata names.

    Flags that are not given are absent from the parsed arguments.

    Args:
        parser: the parser to which the flags are added.
        options: the dataclass; its fields have the metadata of `option_group`.
        leave_out: names of fields without a flag.
        default_of: function that is called with the name of each field whose default is None. It returns the default
            that the help text prints at its end, or None to print none.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field in fields(options):
        if field.name in leave_out:
            continue
        metadata = field.metadata
        if metadata["group"] not in groups:
            groups[metadata["group"]] = parser.add_argument_group(metadata["group"])
        default = default_of(field.name) if field.default is None else format_value(field.default)
        settings: dict = {
            "dest": field.name,
            "default": argparse.SUPPRESS,
            "help": help_text(metadata["help"], default),
        }
        if metadata["kind"] is bool:
            settings |= {"action": argparse.BooleanOptionalAction}
        elif metadata["kind"] is list:
            settings |= {"nargs": "+", "metavar": metadata["metavar"]}
        elif metadata["choices"]:
            settings |= {"choices": metadata["choices"]}
        else:
            settings |= {"type": metadata["kind"], "metavar": metadata["metavar"]}
        name = NAMES.get(field.name, field.name)
        groups[metadata["group"]].add_argument("--" + name.replace("_", "-"), **settings)


def add_model_flags(parser: argparse._ActionsContainer) -> None:
    """Adds the flags of a command that runs a trained model: batch size, threads, attention, device and int8."""
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="rows per batch (default: %(default)s)")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="number of CPU threads; more than 1 is faster for larger models only; 0: torch's default, at most the CPU"
        " quota of the container (default: as in training)",
    )
    parser.add_argument(
        "--attention",
        choices=("fused", "sdpa", "eager"),
        help="implementation of attention (default: that of training)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="device of the model, such as cpu or cuda; auto: a GPU if there is one, otherwise the CPU (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="8-bit matrix products, on the CPU only: faster for models of MiniLM's size and larger ones, slower for "
        "small ones, with slightly different probabilities; requires torchao (the extra int8)",
    )


def add_confidence_flag(parser: argparse._ActionsContainer) -> None:
    """Adds --min-confidence, the probability below which predictions are marked as uncertain."""
    parser.add_argument(
        "--min-confidence",
        type=float,
        metavar="P",
        help="mark a prediction as uncertain if the probability of its label is below P, such as 0.8; qacg evaluate"
        " prints coverage and accuracy for several values of P",
    )


def check_machine_flags(arguments: argparse.Namespace) -> None:
    """Checks --batch-size, and --threads if it is given.

    Raises:
        InputError: the batch size is not in 1 to 1,000,000, or the number of threads not in 0 to 1,024.
    """
    check_range("batch-size", arguments.batch_size, 1, 1_000_000)
    if arguments.threads is not None:
        check_range("threads", arguments.threads, 0, 1_024)


def print_machine_line(trained: TrainedModel, batch_size: int) -> None:
    """Prints the batch size and, for a model on the CPU, the number of threads to stderr, with their flags.

    Only the main process prints.
    """
    if is_main():
        threads = "" if trained.model.device.type != "cpu" else f", {counted(trained.thread_count, 'CPU thread')}"
        flags = "--batch-size, --threads" if threads else "--batch-size"
        print(f"{counted(batch_size, 'row')} per batch{threads} ({flags})", file=sys.stderr)


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Checks the value of the flag `name`.

    Raises:
        InputError: the value is below `least` or above `most`.
    """
    if not least <= value <= most:
        raise InputError(f"{name}: expected {least} to {most:,}, got {value}.")


def selected_fields(arguments: dict[str, object], options: type) -> dict[str, object]:
    """Returns the entries of `arguments` whose names are fields of the dataclass `options`."""
    return {field.name: arguments[field.name] for field in fields(options) if field.name in arguments}
