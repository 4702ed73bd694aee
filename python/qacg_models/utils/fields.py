"""Checks and conversions of fields: of configurations, options and JSON files.

Errors have the form `field: expected X, got Y`.
"""

import dataclasses
import math
import os
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from qacg_models.errors import InputError, ModelFolderError
from qacg_models.utils.text import clipped, parse_json, read_text

SEED = 2**32 - 1  # the largest seed of NumPy's generator, which transformers seeds too
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


def check_is_integer(name: str, value: object) -> None:
    """Raises TypeError unless `value` is an integer, of Python or of NumPy."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: expected an integer, got {value!r}")


def check_count(name: str, value: Any) -> None:
    """Raises TypeError unless an argument is an integer, and InputError unless it is at least 1."""
    check_is_integer(name, value)
    if value < 1:
        raise InputError(f"{name}: expected at least 1, got {value}")


def check_integer(field: str, value: object, at_least: int, below: int | None = None) -> None:
    """Raises TypeError unless `value` is an int, and ValueError unless it is in [at_least, below)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field}: expected an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"{field}: expected at least {at_least}, got {value}")
    if below is not None and value >= below:
        raise ValueError(f"{field}: expected less than {below}, got {value}")


def check_number(field: str, value: object, at_least: float | None = None) -> None:
    """Raises TypeError unless `value` is a number, and ValueError unless it is finite and at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field}: expected a number, got {value!r}")
    if not abs(value) <= _LARGEST_FLOAT32:
        raise ValueError(f"{field}: expected a finite number, got {value}")
    if at_least is not None and value < at_least:
        raise ValueError(f"{field}: expected at least {at_least:g}, got {value}")


def check_probability(field: str, value: Any) -> None:
    """Checks a number in [0, 1), the range of a dropout probability in a configuration."""
    check_number(field, value)
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{field}: expected a probability in [0, 1), got {value}")


T = TypeVar("T")

_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
_WORDS |= {type(None): "null", tuple: "a list"}


def read_json_as(kind: Any, path: Path) -> Any:
    """Returns the value in a JSON file, converted by `convert_json`; the message of an InputError has the path."""
    try:
        value = parse_json(read_text(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:  # UnicodeDecodeError is a ValueError too
        raise InputError(f"{path}: is not JSON ({error})") from None
    try:
        return convert_json(kind, value)
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix(': ')}") from None


def read_model_file(path: Path, format: int, convert: Callable[[dict[str, Any]], T]) -> T:
    """Reads a JSON file of a model folder, an object with a field `format`, and converts the other fields.

    All errors are ModelFolderErrors, also those of `convert`.
    """
    try:
        content = read_json_as(dict[str, object], path)
    except InputError as error:
        raise ModelFolderError(str(error)) from None
    found = content.pop("format", None)
    if found != format:
        raise ModelFolderError(f"{path}: format: expected {format}, got {found!r}. Train the model again.")
    try:
        return convert(content)
    except InputError as error:
        raise ModelFolderError(f"{path}: {error}") from None


def convert_json(kind: Any, value: object, path: str = "") -> Any:
    """Converts a JSON value to a type; raises InputError with the path and the value if it does not fit.

    `kind` is `object`, for any value; a tuple, for a list; a dict with str keys, for an object; a dataclass, for an
    object with its fields, of which those with a default may be absent; int, float, str or bool; or a union of these,
    or of one type and None. For float, an int is converted; infinity and NaN are errors. An instance of the dataclass
    is returned unchanged. `path` is the path of the value in the file, such as `selected.step`.
    """
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    for one in kinds:
        origin, inner = get_origin(one), get_args(one)
        if one is object or (type(value) is one and one is not float):
            return value
        if dataclasses.is_dataclass(one) and isinstance(value, (dict, one)):
            return value if isinstance(value, one) else _as_dataclass(one, value, path)
        if origin is tuple and isinstance(value, list):
            return _as_tuple(inner, value, path)
        if origin is dict and isinstance(value, dict):
            return {name: convert_json(inner[1], part, _join(path, name)) for name, part in value.items()}
        if one is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return float(value)
    expected = " or ".join(_WORDS.get(get_origin(one) or one, "an object") for one in kinds)
    where = f"{path}: " if path else ""
    raise InputError(f"{where}expected {expected}, got {clipped(repr(value), 60)}")


def convert_json_fields(
    kinds: Mapping[str, Any], value: object, path: str = "", optional: Collection[str] = ()
) -> dict[str, Any]:
    """Converts an object that has the fields in `kinds`, whose values are their types for `convert_json`.

    Fields in `optional` may be absent; other fields than those in `kinds` are an error.
    """
    given = convert_json(dict[str, object], value, path)
    prefix = f"{path} " if path else ""
    if missing := [name for name in kinds if name not in given and name not in optional]:
        raise InputError(f"{prefix}lacks the field{'s' if missing[1:] else ''} {', '.join(missing)}")
    if unknown := sorted(given.keys() - kinds.keys()):
        raise InputError(f"{prefix}has {', '.join(unknown)}, which this version does not support")
    return {name: convert_json(kind, given[name], _join(path, name)) for name, kind in kinds.items() if name in given}


def _as_dataclass(kind: Any, value: dict[str, object], path: str) -> Any:
    """Returns a dataclass from its fields; those with a default may be absent, as in files of earlier versions."""
    hints = get_type_hints(kind)
    missing = dataclasses.MISSING
    optional = [f.name for f in fields(kind) if f.default is not missing or f.default_factory is not missing]
    parts = convert_json_fields({field.name: hints[field.name] for field in fields(kind)}, value, path, optional)
    try:
        return kind(**parts)
    except InputError as error:
        raise InputError(f"{path}: {error}" if path else str(error)) from None


def _as_tuple(inner: tuple, value: list[object], path: str) -> tuple:
    kinds = [inner[0]] * len(value) if inner[1:] == (...,) else list(inner)
    if len(value) != len(kinds):
        raise InputError(f"{path}: expected {len(kinds)} values, got {len(value)}")
    return tuple(convert_json(kind, part, f"{path}[{index}]") for index, (kind, part) in enumerate(zip(kinds, value)))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# By annotation of an option: its type; `list` is a list of names.
_KINDS = {"bool": bool, "int": int, "float": float, "str": str, "tuple[str, ...]": list}


def kind_of(option: dataclasses.Field) -> type:
    """Returns the type of an option from its annotation, which may be a union with None."""
    return _KINDS[str(option.type).removesuffix(" | None")]


def option(
    default,
    text: str,
    *known: str,
    metavar: str | None = None,
    least: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
):
    """Returns a field of a dataclass of options, with its help text and its `known` values; without them, any value.

    A number is in [`least`, `most`], and less than `below`. `metavar` is the placeholder of the value in the help text.
    """
    metadata = {"help": text, "choices": known or None, "metavar": metavar}
    return field(default=default, metadata=metadata | {"least": least, "most": most, "below": below})


# By type of an option: the class of its values, and its name in errors.
_CLASSES: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    str: (str, "a str"),
}


def convert_options(options: Any) -> None:
    """Converts the values of a dataclass of options to the types of its fields, in place; checks values and limits.

    Numbers of NumPy become Python's, and paths become str. None, lists, and an int in a float field are not changed.
    """
    for option in fields(options):
        value, kind, metadata = getattr(options, option.name), kind_of(option), option.metadata
        if value is None or kind not in _CLASSES:
            continue
        converted = _converted(option.name, value, kind)
        if converted is not value:
            object.__setattr__(options, option.name, converted)
        if metadata["choices"] and value not in metadata["choices"]:
            raise InputError(f"{option.name}: expected one of {', '.join(metadata['choices'])}, got {value!r}.")
        if kind in (int, float):
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
