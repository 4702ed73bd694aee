"""A field of a dataclass of choices, which says all that a flag or a run file has to know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

# What stands for the value in a help text, by the type of the value.
METAVARS = {int: "N", float: "X", str: "TEXT", list: "NAME"}


def option_group(group: str) -> Callable[..., Any]:
    """What makes the fields that a help text lists under `group`."""

    def choice(default, text: str, *known: str, kind: type | None = None, metavar: str | None = None):
        """A field.

        Args:
            default: None where nothing, or something else, settles it; `kind` is then needed.
            text: the help text, on one line.
            known: the only values there are.
            kind: type of the value; list is a list of names.
            metavar: what stands for the value in a help text; None goes by the type.
        """
        kind = kind or type(default)
        if known or kind is bool:
            metavar = None
        elif metavar is None:
            metavar = METAVARS[kind]
        return field(
            default=default,
            metadata={"help": text, "choices": known or None, "kind": kind, "group": group, "metavar": metavar},
        )

    return choice


def shown(value: object) -> str:
    """A value as help texts write it: bool as on and off."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def help_text(text: str, default: str | None) -> str:
    """A help text for argparse, with the default behind it if there is one to show."""
    return (text if default is None else f"{text} (default: {default})").replace("%", "%%")
