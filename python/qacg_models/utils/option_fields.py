"""Dataclass fields for options, with metadata from which the flag, the help text and the run file are made."""

import math
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

    def option(
        default,
        text: str,
        *known: str,
        kind: type | None = None,
        metavar: str | None = None,
        least: float = -math.inf,
        most: float = math.inf,
        below: float = math.inf,
    ):
        """Returns a dataclass field.

        Args:
            default: the default; None if the option has none, in which case `kind` is required.
            text: help text, on one line.
            *known: allowed values; without them, every value is allowed.
            kind: type of the value; None: that of `default`; `list` is a list of names.
            metavar: placeholder of the value in the help text; None: that of the type. Ignored for a bool, and if
                `known` is given.
            least, most: the smallest and the largest allowed number.
            below: a number that the value must not reach.
        """
        kind = kind or type(default)
        if known or kind is bool:
            metavar = None
        elif metavar is None:
            metavar = METAVARS[kind]
        metadata = {"help": text, "choices": known or None, "kind": kind, "group": group, "metavar": metavar}
        return field(default=default, metadata=metadata | {"least": least, "most": most, "below": below})

    return option


# By type of an option: the class of its values, and its name in errors.
_CLASSES: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    str: (str, "a str"),
}


def convert_options(options: Any) -> None:
    """Converts the values of a dataclass of options to the types of its fields, in place, and checks their limits.

    Numbers of NumPy become Python's, and paths become str. None, lists, and an int in a float field are not changed.

    Raises:
        InputError: a value has another type, is not one of the allowed values, or is outside its limits.
    """
    for option in fields(options):
        value, metadata = getattr(options, option.name), option.metadata
        if value is None or metadata["kind"] not in _CLASSES:
            continue
        converted = _converted(option.name, value, metadata["kind"])
        if converted is not value:
            object.__setattr__(options, option.name, converted)
        if metadata["choices"] and value not in metadata["choices"]:
            raise InputError(f"{option.name}: expected one of {', '.join(metadata['choices'])}, got {value!r}.")
        if metadata["kind"] in (int, float):
            _check_limits(option.name, converted, metadata["least"], metadata["most"], metadata["below"])


def _converted(name: str, value: Any, kind: type) -> Any:
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    expected, words = _CLASSES[kind]
    if (isinstance(value, bool) and kind is not bool) or not isinstance(value, expected):
        raise InputError(f"{name}: expected {words}, got {value!r}.")
    if kind is str:  # a subclass, such as an enumeration of texts, is not converted
        return value
    try:
        converted = kind(value)
    except OverflowError:
        raise InputError(f"{name}: expected a number that a float can store, got a larger one.") from None
    return value if type(value) is int else converted  # an int stays one where a float is expected, as it was written


def _check_limits(name: str, value: float, least: float, most: float, below: float) -> None:
    if not math.isfinite(value):
        raise InputError(f"{name}: expected a finite number, got {value}.")
    if value < least:
        raise InputError(f"{name}: expected at least {least:,}, got {value}.")
    if value > most:
        raise InputError(f"{name}: expected at most {most:,}, got {value}.")
    if value >= below:
        raise InputError(f"{name}: expected less than {below}, got {value}.")


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
