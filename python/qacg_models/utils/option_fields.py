"""Dataclass fields for options; the metadata of a field is what its flag, help text and run file need."""

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
            default: None if the option has no default of its own; it then requires `kind`.
            text: help text, on one line.
            known: allowed values; none for any.
            kind: type of the value; `list` is a list of names.
            metavar: placeholder of the value in the help text; None for that of the type.
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
    """Returns a value as help texts show it: bool as on and off."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def help_text(text: str, default: str | None) -> str:
    """Returns a help text for argparse, followed by the default if there is one."""
    return (text if default is None else f"{text} (default: {default})").replace("%", "%%")
