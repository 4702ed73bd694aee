"""Command-line flags for the fields of a dataclass of choices, whose help texts are in the fields' metadata."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields

# Flags that are no words of Python, or shorter than their field.
NAMES = {"from_checkpoint": "from"}


def add_flags(parser: argparse.ArgumentParser, choices: type, *, leave_out: Sequence[str] = ()) -> None:
    """One flag per field, absent from the parsed arguments unless it is given.

    Args:
        choices: the dataclass.
        leave_out: fields that get no flag.
    """
    group = parser.add_argument_group(choices.__name__.replace("Options", " options").lower())
    for field in fields(choices):
        if field.name in leave_out:
            continue
        kind, text = field.metadata["kind"], field.metadata["help"]
        if field.default is not None and kind is not bool:
            text = f"{text} ({str(field.default).replace('%', '%%')})"
        settings: dict = {"dest": field.name, "default": argparse.SUPPRESS, "help": text}
        if kind is bool:
            settings |= {"action": argparse.BooleanOptionalAction}
        elif kind is list:
            settings |= {"nargs": "+", "metavar": "NAME"}
        else:
            settings |= {"type": kind, "choices": field.metadata["choices"]}
            if not field.metadata["choices"]:
                settings |= {"metavar": {int: "N", float: "X", str: "TEXT"}[kind]}
        group.add_argument("--" + NAMES.get(field.name, field.name).replace("_", "-"), **settings)


def taken(arguments: dict[str, object], choices: type) -> dict[str, object]:
    """The fields of `choices` among parsed arguments."""
    return {field.name: arguments[field.name] for field in fields(choices) if field.name in arguments}
