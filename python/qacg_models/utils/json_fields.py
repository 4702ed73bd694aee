"""Converts JSON values to Python types; errors name a field by its path, such as `selected.step`."""

import dataclasses
import math
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from qacg_models.errors import InputError, ModelFolderError
from qacg_models.utils.plain_text import parse_json, read_text

Reader = Callable[[object, str], Any]
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


def read_model_file(path: Path, convert: Callable[[object], T]) -> T:
    """Reads a JSON file of a model folder.

    Args:
        path: path of the file.
        convert: function that converts the JSON value.

    Returns:
        The result of `convert`.

    Raises:
        ModelFolderError: the file cannot be read, is not JSON, or `convert` raises InputError.
    """
    try:
        content = read_json_as(object, path)
    except InputError as error:
        raise ModelFolderError(str(error)) from None
    try:
        return convert(content)
    except InputError as error:
        raise ModelFolderError(f"{path}: {error}") from None


def convert_json(kind: Any, value: object, path: str = "", readers: Mapping[Any, Reader] = MappingProxyType({})) -> Any:
    """Converts a JSON value to a type.

    Args:
        kind: one of the following types, or its union with None; None alone accepts null only.

            - `object`: any value, unchanged.
            - int, float, str, bool or a union of them. For float, an int is converted; infinity, NaN and an int beyond
              the range of float are errors.
            - A tuple, for a JSON list.
            - A dict with str keys, for a JSON object.
            - A dataclass, for a JSON object with all its fields and no others.

            Elements, values and fields have such types too.
        value: the value to convert.
        path: path of the value in the file, for errors, such as `selected.step`.
        readers: conversion functions of other types, by type; each is called with the value and its path.

    Raises:
        TypeError: `kind` is not an accepted type.
        InputError: the value does not fit; the message has the path, what is expected, and the value or the names of
            missing or unknown fields.
    """
    kind = type(None) if kind is None else kind  # as in type hints
    if kind in readers:
        return readers[kind](value, path)
    if kind is object:
        return value
    if dataclasses.is_dataclass(kind):
        return _as_dataclass(kind, value, path, readers)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _as_tuple(inner, value, path, readers)
    if origin is dict:
        if inner[0] is not str:
            raise TypeError(f"kind: expected a type that JSON can store, got {kind!r}. Use a dict with str keys.")
        names = _as_object(value, path)
        return {name: convert_json(inner[1], part, _join(path, name), readers) for name, part in names.items()}
    alternatives = inner if origin in (Union, types.UnionType) else (kind,)
    if value is None and type(None) in alternatives:
        return None
    kinds = [one for one in alternatives if one is not type(None)]
    if len(kinds) == 1 and kinds[0] not in (kind, *_WORDS):
        return convert_json(kinds[0], value, path, readers)
    if unknown := [one for one in kinds if one not in _WORDS]:
        raise TypeError(
            f"kind: expected a type that JSON can store, got {unknown[0]!r}. Add a function for it to `readers`."
        )
    for one in alternatives:
        if type(value) is one and not (one is float and not math.isfinite(value)):
            return value
        if one is float and type(value) is int and abs(value) <= sys.float_info.max:
            return float(value)
    raise InputError(
        f"{_named(path)}expected {' or '.join(_WORDS[one] for one in alternatives)}, got {_shorten(value)}"
    )


def convert_json_fields(
    kinds: Mapping[str, Any], value: object, path: str = "", readers: Mapping[Any, Reader] = MappingProxyType({})
) -> dict[str, Any]:
    """Converts the fields of a JSON object; each field in `kinds` is required, and no other is allowed.

    Args:
        kinds: type of each field; `convert_json` lists the accepted types.
        value: the object to convert.
        path: path of the object in the file, for errors, such as `selected`.
        readers: conversion functions of other types, by type; each is called with the value and its path.

    Returns:
        The converted values by the names of the fields, in the order of `kinds`.

    Raises:
        TypeError: a type in `kinds` is not accepted.
        InputError: `value` is not an object, or a field is missing, unknown, or does not fit.
    """
    given = _as_object(value, path)
    prefix = f"{path} " if path else ""
    if missing := [name for name in kinds if name not in given]:
        raise InputError(f"{prefix}lacks the field{'s' if missing[1:] else ''} {', '.join(missing)}")
    if unknown := sorted(given.keys() - kinds.keys()):
        raise InputError(f"{prefix}has {', '.join(unknown)}, which this version does not support")
    return {name: convert_json(kind, given[name], _join(path, name), readers) for name, kind in kinds.items()}


def _as_dataclass(kind: Any, value: object, path: str, readers: Mapping[Any, Reader]) -> Any:
    hints = get_type_hints(kind)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    parts = convert_json_fields(kinds, value, path, readers)
    try:
        return kind(**parts)
    except InputError as error:
        raise InputError(f"{_named(path)}{error}") from None


def _as_tuple(inner: tuple, value: object, path: str, readers: Mapping[Any, Reader]) -> tuple:
    if not isinstance(value, list):
        raise InputError(f"{_named(path)}expected a list, got {_shorten(value)}")
    kinds = [inner[0]] * len(value) if inner[1:] == (...,) else list(inner)
    if len(value) != len(kinds):
        raise InputError(f"{_named(path)}expected {len(kinds)} values, got {len(value)}")
    return tuple(
        convert_json(kind, part, f"{path}[{index}]", readers) for index, (kind, part) in enumerate(zip(kinds, value))
    )


def _named(path: str) -> str:
    return f"{path}: " if path else ""


def _as_object(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InputError(f"{_named(path)}expected an object, got {_shorten(value)}")
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
