"""Dataclass fields for options, with metadata from which the flag, the help text and the run file are made."""

import os
from collections.abc import Callable
from dataclasses import field, fields
from numbers import Integral, Real
from typing import Any

from qacg_models.errors import InputError

# The placeholder of a value in a help text, by its type.
METAVARS = {int: "N", float: "X", str: "TEXT", list: "NAME"}


def option_group(group: str) -> Callable[..., Any]:
    """Returns a function that makes dataclass fields; the help text lists them under `group`."""

    def option(default, text: str, *known: str, kind: type | None = None, metavar: str | None = None):
        """Returns a dataclass field.

        Args:
            default: the default; None if the option has none, in which case `kind` is required.
            text: help text, on one line.
            *known: allowed values; without them, every value is allowed.
            kind: type of the value; None: that of `default`; `list` is a list of names.
            metavar: placeholder of the value in the help text; None: that of the type. Ignored for a bool, and if
                `known` is given.
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


# By type of an option: the class of its values, and its name in errors.
_CLASSES: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    str: (str, "a str"),
}


def convert_options(options: Any) -> None:
    """Converts the values of a dataclass of options to the types of its fields, in place.

    Numbers of NumPy become Python's, and paths become str. None, lists, and an int in a float field are not changed.

    Raises:
        InputError: a value has another type, or exceeds the range of float.
    """
    for option in fields(options):
        name, kind, value = option.name, option.metadata["kind"], getattr(options, option.name)
        if value is None or type(value) is kind or kind not in _CLASSES:
            continue
        if kind is str and isinstance(value, os.PathLike):
            object.__setattr__(options, name, os.fspath(value))
            continue
        expected, words = _CLASSES[kind]
        if isinstance(value, bool) or not isinstance(value, expected):
            raise InputError(f"{name}: expected {words}, got {value!r}.")
        if kind is str:  # a subclass, such as an enumeration of texts
            continue
        try:
            converted = kind(value)
        except OverflowError:
            raise InputError(f"{name}: expected a number that a float can store, got a larger one.") from None
        if type(value) is not int:  # an int stays one where a float is expected, as it was written
            object.__setattr__(options, name, converted)


def format_value(value: object) -> str:
    """Formats a value for help texts: True as "on", False as "off", 60.0 as "60"."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def help_text(text: str, default: str | None) -> str:
    """Returns a help text for argparse: `text` and the default, if there is one, with every % doubled."""
    return (text if default is None else f"{text} (default: {default})").replace("%", "%%")
