"""Command-line flags for the fields of a dataclass of choices, whose help texts are in the fields' metadata."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields

from qacg_models.errors import InputError
from qacg_models.utils.option_fields import format_value, help_text

# Flags that are not words of Python, or shorter than their field.
NAMES = {"from_checkpoint": "from"}
# Fields of DataOptions that a trained model has settled.
OF_TRAINING = ("aspects", "labels", "absent_label", "dev_fraction", "dev_seed")


def add_flags(
    parser: argparse.ArgumentParser,
    choices: type,
    *,
    leave_out: Sequence[str] = (),
    default_of: Callable[[str], str | None] = lambda name: None,
) -> None:
    """One flag per field, under the field's group; absent from the parsed arguments unless it is given.

    Args:
        choices: the dataclass.
        leave_out: fields that get no flag.
        default_of: returns the default of a field that is None, for its help text; None if the text has it.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field in fields(choices):
        if field.name in leave_out:
            continue
        known = field.metadata
        if known["group"] not in groups:
            groups[known["group"]] = parser.add_argument_group(known["group"])
        default = default_of(field.name) if field.default is None else format_value(field.default)
        settings: dict = {"dest": field.name, "default": argparse.SUPPRESS, "help": help_text(known["help"], default)}
        if known["kind"] is bool:
            settings |= {"action": argparse.BooleanOptionalAction}
        elif known["kind"] is list:
            settings |= {"nargs": "+", "metavar": known["metavar"]}
        elif known["choices"]:
            settings |= {"choices": known["choices"]}
        else:
            settings |= {"type": known["kind"], "metavar": known["metavar"]}
        name = NAMES.get(field.name, field.name)
        groups[known["group"]].add_argument("--" + name.replace("_", "-"), **settings)


def add_int8_flag(parser: argparse._ActionsContainer) -> None:
    """The flag of commands that ask a trained model."""
    parser.add_argument(
        "--int8",
        action="store_true",
        help="multiply in 8 bits, on the CPU: makes models of the size of MiniLM and above faster, small ones slower,"
        " at probabilities that are slightly off; needs torchao (the extra int8)",
    )


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raises InputError unless the number given as the flag `name` lies between the two."""
    if not least <= value <= most:
        raise InputError(f"{name}: got {value}, wanted at least {least} and at most {most:,}")


def taken(arguments: dict[str, object], choices: type) -> dict[str, object]:
    """The fields of `choices` among parsed arguments."""
    return {field.name: arguments[field.name] for field in fields(choices) if field.name in arguments}
