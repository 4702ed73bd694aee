"""Checks and conversions of fields: of configurations, options and JSON files.

Errors have the form `field: expected X, got Y`.
"""

import dataclasses
import math
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from qacg_models.errors import InputError, ModelFolderError
from qacg_models.utils.text import parse_json, read_text

# By field of a configuration: the largest allowed value, and published values, which the error prints. The limits are
# above usual sizes. They catch typos before memory of that size is allocated.
MOST = MappingProxyType(
    {
        "vocab_size": (10_000_000, "XLM-V has 901,629"),
        "hidden_size": (65_536, "BERT-large has 1,024"),
        "num_hidden_layers": (1_000, "BERT-large has 24"),
        "num_attention_heads": (1_024, "BERT-large has 16"),
        "intermediate_size": (1_048_576, "usual: 4 * hidden_size; BERT-large has 4,096"),
        "max_position_embeddings": (1_048_576, "BERT has 512"),
        "type_vocab_size": (65_536, "BERT has 2"),
        "num_labels": (1_000_000, "sentiment has 2 to 5"),
        "contexts": (65_536, "SentiHood has 8"),
        "inter_layers": (1_000, "published: 1 to 3"),
        "heads": (1_024, "published: 8"),
        "ff_size": (1_048_576, "published: 2,048"),
        "conv_channels": (65_536, "published: 1,024"),
        "num_question_types": (1_000_000, "published: 6"),
    }
)
SEED = 2**32 - 1  # the largest seed of NumPy's generator, which transformers seeds too
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


def limit(field: str) -> str:
    """Returns the limit of a field of MOST as text for messages, such as `1,000 (BERT-large has 24)`."""
    most, usual = MOST[field]
    return f"{most:,} ({usual})"


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
    """Raises TypeError unless `value` is an integer, and ValueError unless it is in [at_least, below).

    If `below` is None, there is no upper limit.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field}: expected an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"{field}: expected at least {at_least}, got {value}")
    if below is not None and value >= below:
        raise ValueError(f"{field}: expected less than {below}, got {value}")


def check_size(field: str, value: Any, at_least: int = 1, path: str = "") -> None:
    """Raises TypeError unless `value` is an integer, and ValueError unless it is from `at_least` to the limit in MOST.

    Messages have `path`, such as `encoder.`, before the name of the field.
    """
    check_integer(path + field, value, at_least)
    if value > MOST[field][0]:
        raise ValueError(f"{path}{field}: expected at most {limit(field)}, got {value}")


def check_number(field: str, value: object, at_least: float | None = None) -> None:
    """Raises TypeError unless `value` is a number, and ValueError unless it is finite and at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field}: expected a number, got {value!r}")
    if not abs(value) <= _LARGEST_FLOAT32:
        raise ValueError(f"{field}: expected a finite number, got {value}")
    if at_least is not None and value < at_least:
        raise ValueError(f"{field}: expected at least {at_least:g}, got {value}")


def check_probability(field: str, value: Any) -> None:
    """Raises TypeError or ValueError unless `value` is a number in [0, 1), the range of a dropout probability."""
    check_number(field, value)
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{field}: expected a probability in [0, 1), got {value}")


def check_dropout(field: str, value: Any) -> None:
    """Raises TypeError or ValueError unless `value` is a number in [0, 1], the range of torch's dropout."""
    check_number(field, value)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{field}: expected a probability in [0, 1], got {value}")


T = TypeVar("T")

_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false", type(None): "null"}


def read_json_as(kind: Any, path: Path) -> Any:
    """Returns the value in a JSON file, converted to `kind`, a type that `convert_json` accepts.

    Raises:
        InputError: the file cannot be read, is not JSON, or does not fit `kind`. The message begins with the path.
    """
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
    """Reads a JSON file of a model folder, an object with a field `format`.

    Args:
        path: path of the file.
        format: the expected value of the field `format`.
        convert: function that converts the object without this field.

    Returns:
        The result of `convert`.

    Raises:
        ModelFolderError: the file cannot be read, is not JSON, has another format, or `convert` raises InputError.
    """
    try:
        content = read_json_as(object, path)
    except InputError as error:
        raise ModelFolderError(str(error)) from None
    found = content.get("format") if isinstance(content, dict) else None
    if not isinstance(content, dict) or found != format:
        raise ModelFolderError(f"{path}: format: expected {format}, got {found!r}. Train the model again.")
    try:
        return convert({name: value for name, value in content.items() if name != "format"})
    except InputError as error:
        raise ModelFolderError(f"{path}: {error}") from None


def convert_json(kind: Any, value: object, path: str = "") -> Any:
    """Converts a JSON value to a type.

    Args:
        kind: one of the following types, or its union with None.

            - `object`: any value, unchanged.
            - int, float, str, bool or a union of them. For float, an int is converted; infinity, NaN and an int beyond
              the range of float are errors.
            - A tuple, for a JSON list.
            - A dict with str keys, for a JSON object.
            - A dataclass, for a JSON object with all its fields and no others. An instance of it is returned unchanged.

            Elements, values and fields have such types too.
        value: the value to convert.
        path: path of the value in the file, for errors, such as `selected.step`.

    Raises:
        InputError: the value does not fit; the message has the path, what is expected, and the value or the names of
            missing or unknown fields.
    """
    if kind is object:
        return value
    if dataclasses.is_dataclass(kind):
        return value if isinstance(value, kind) else _as_dataclass(kind, value, path)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _as_tuple(inner, value, path)
    if origin is dict:
        parts = _as_object(value, path)
        return {name: convert_json(inner[1], part, _join(path, name)) for name, part in parts.items()}
    alternatives = inner if origin in (Union, types.UnionType) else (kind,)
    if value is None and type(None) in alternatives:
        return None
    kinds = [one for one in alternatives if one is not type(None)]
    if len(kinds) == 1 and kinds[0] not in (kind, *_WORDS):
        return convert_json(kinds[0], value, path)
    for one in alternatives:
        if type(value) is one and not (one is float and not math.isfinite(value)):
            return value
        if one is float and type(value) is int and abs(value) <= sys.float_info.max:
            return float(value)
    expected = " or ".join(_WORDS[one] for one in alternatives)
    raise InputError(f"{_named(path)}expected {expected}, got {_shorten(value)}")


def convert_json_fields(kinds: Mapping[str, Any], value: object, path: str = "") -> dict[str, Any]:
    """Converts the fields of a JSON object; each field in `kinds` is required, and no other is allowed.

    Args:
        kinds: type of each field; `convert_json` lists the accepted types.
        value: the object to convert.
        path: path of the object in the file, for errors, such as `selected`.

    Returns:
        The converted values by the names of the fields, in the order of `kinds`.

    Raises:
        InputError: `value` is not an object, or a field is missing, unknown, or does not fit.
    """
    given = _as_object(value, path)
    prefix = f"{path} " if path else ""
    if missing := [name for name in kinds if name not in given]:
        raise InputError(f"{prefix}lacks the field{'s' if missing[1:] else ''} {', '.join(missing)}")
    if unknown := sorted(given.keys() - kinds.keys()):
        raise InputError(f"{prefix}has {', '.join(unknown)}, which this version does not support")
    return {name: convert_json(kind, given[name], _join(path, name)) for name, kind in kinds.items()}


def _as_dataclass(kind: Any, value: object, path: str) -> Any:
    hints = get_type_hints(kind)
    parts = convert_json_fields({field.name: hints[field.name] for field in dataclasses.fields(kind)}, value, path)
    try:
        return kind(**parts)
    except InputError as error:
        raise InputError(f"{_named(path)}{error}") from None


def _as_tuple(inner: tuple, value: object, path: str) -> tuple:
    if not isinstance(value, list):
        raise InputError(f"{_named(path)}expected a list, got {_shorten(value)}")
    kinds = [inner[0]] * len(value) if inner[1:] == (...,) else list(inner)
    if len(value) != len(kinds):
        raise InputError(f"{_named(path)}expected {len(kinds)} values, got {len(value)}")
    return tuple(convert_json(kind, part, f"{path}[{index}]") for index, (kind, part) in enumerate(zip(kinds, value)))


def _as_object(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InputError(f"{_named(path)}expected an object, got {_shorten(value)}")
    return value


def _named(path: str) -> str:
    return f"{path}: " if path else ""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
    """Returns a field of a dataclass of options, with its help text.

    Args:
        default: the default; None if the option has none.
        text: help text, on one line.
        *known: allowed values; without them, every value is allowed.
        metavar: placeholder of the value in the help text; None: that of the type.
        least, most: the smallest and the largest allowed number.
        below: a number that the value must not reach.
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
    """Converts the values of a dataclass of options to the types of its fields, in place, and checks their limits.

    Numbers of NumPy become Python's, and paths become str. None, lists, and an int in a float field are not changed.

    Raises:
        InputError: a value has another type, is not one of the allowed values, or is outside its limits.
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
