"""Converts JSON values to Python types; errors name a field by its path, such as `selected.step`."""

import dataclasses
import math
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from qacg_models.errors import InputError, ModelFolderError
from qacg_models.utils.plain_text import parse_json, read_text

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
