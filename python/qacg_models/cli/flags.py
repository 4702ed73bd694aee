"""Command-line flags for dataclasses of options, whose help texts are in the metadata of their fields."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from qacg_models.errors import InputError
from qacg_models.utils.distributed import is_main
from qacg_models.utils.option_fields import format_value, help_text

if TYPE_CHECKING:
    from qacg_models.inference.trained_model import TrainedModel

# Names of flags that differ from those of their fields.
NAMES = {"from_checkpoint": "from"}
# Fields of DataOptions that a trained model defines.
TRAINING_FIELDS = ("aspects", "labels", "absent_label", "dev_fraction", "dev_seed")


def add_flags(
    parser: argparse.ArgumentParser,
    options: type,
    *,
    leave_out: Sequence[str] = (),
    default_of: Callable[[str], str | None] = lambda name: None,
) -> None:
    """Adds one flag per field, in the group of the field.

    Flags that are not given are absent from the parsed arguments.

    Args:
        parser: the parser to which the flags are added.
        options: the dataclass.
        leave_out: fields without a flag.
        default_of: function of a field's name, for fields whose default is None. It returns the default to print in
            the help text, or None if the help text has it.
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
        help="number of CPU threads; 0: one for every core, which is faster for larger models only (default: as in"
        " training)",
    )
    parser.add_argument(
        "--attention",
        choices=("fused", "sdpa", "eager"),
        help="implementation of attention (default: that of training)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="device of the model; auto: a GPU if there is one, another GPU for each process (default: %(default)s)",
    )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="8-bit matrix products on the CPU: faster for models of MiniLM's size and above, slower for small ones, "
        "with slightly different probabilities; requires torchao (the extra int8)",
    )


def add_confidence_flag(parser: argparse._ActionsContainer) -> None:
    """Adds --min-confidence, the probability below which predictions are marked as uncertain."""
    parser.add_argument(
        "--min-confidence",
        type=float,
        metavar="P",
        help="mark a prediction as uncertain, in an additional column, if the probability of its label is below P, "
        "such as 0.8; qacg evaluate prints coverage and accuracy for several values of P",
    )


def check_machine_flags(arguments: argparse.Namespace) -> None:
    """Raises InputError for a batch size or a number of threads outside its range."""
    check_range("batch_size", arguments.batch_size, 1, 1_000_000)
    if arguments.threads is not None:
        check_range("threads", arguments.threads, 0, 1_024)


def print_machine_line(trained: TrainedModel, batch_size: int) -> None:
    """Prints the batch size and, on a CPU, the number of threads to stderr, in the main process only."""
    if is_main():
        threads = "" if trained.model.device.type != "cpu" else f", {trained.thread_count} CPU threads"
        flags = "--batch-size, --threads" if threads else "--batch-size"
        print(f"{batch_size} rows per batch{threads} ({flags})", file=sys.stderr)


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Checks the value of the flag `name`.

    Raises:
        InputError: the value is below `least` or above `most`.
    """
    if not least <= value <= most:
        raise InputError(f"{name}: expected {least} to {most:,}, got {value}.")


def selected_fields(arguments: dict[str, object], options: type) -> dict[str, object]:
    """Returns the parsed arguments that are fields of `options`."""
    return {field.name: arguments[field.name] for field in fields(options) if field.name in arguments}
