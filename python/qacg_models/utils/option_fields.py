"""Dataclass fields for options, with metadata from which the flag, the help text and the run file are made."""

from collections.abc import Callable
from dataclasses import field
from typing import Any

# The placeholder of a value in a help text, by its type.
METAVARS = {int: "N", float: "X", str: "TEXT", list: "NAME"}


def option_group(group: str) -> Callable[..., Any]:
    """Returns a function that makes dataclass fields; the help text lists them under `group`."""

    def option(default, text: str, *known: str, kind: type | None = None, metavar: str | None = None):
        """Returns a dataclass field.

        Args:
            default: the default; None if the option has none, in which case `kind` is required.
            text: help text, on one line.
            *known: allowed values; none: any value.
            kind: type of the value; `list` is a list of names.
            metavar: placeholder of the value in the help text; None: that of the type. Ignored for a bool and with
                `known`.
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

    return option


def format_value(value: object) -> str:
    """Formats a value for help texts: True as on, False as off."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def help_text(text: str, default: str | None) -> str:
    """Returns a help text for argparse: `text` and the default, if there is one, with every % doubled."""
    return (text if default is None else f"{text} (default: {default})").replace("%", "%%")
