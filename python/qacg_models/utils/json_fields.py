"""JSON as the dataclass that declares it: what does not fit is named by its path, such as `selected.step`."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Union, get_args, get_origin, get_type_hints

from qacg_models.errors import InputError
from qacg_models.utils.plain_text import parse_json, read_text

Reader = Callable[[object, str], Any]

_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false", type(None): "null"}


def read_json_as(kind: Any, path: Path) -> Any:
    """The JSON value in a file as the type `kind`, as for `typed`.

    Raises:
        InputError: beginning with the path of the file, which cannot be read, is not JSON, or does not fit `kind`.
    """
    try:
        value = parse_json(read_text(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:  # UnicodeDecodeError is one too
        raise InputError(f"{path}: is not JSON ({error})") from None
    try:
        return convert_json(kind, value)
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix(': ')}") from None


def convert_json(kind: Any, value: object, path: str = "", readers: Mapping[Any, Reader] = MappingProxyType({})) -> Any:
    """A JSON value as the type `kind`: a dataclass of such types, int, float, str, bool, None, object, a union of
    them, a tuple or a dict by str. Lists become tuples; a dataclass has to be given every field, and no other.

    Args:
        readers: for other types, what reads a value at a path.

    Raises:
        InputError: beginning with the path of the value, what came, and what was wanted.
    """
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
        names = _as_object(value, path)
        return {name: convert_json(inner[1], part, _join(path, name), readers) for name, part in names.items()}
    alternatives = inner if origin in (Union, types.UnionType) else (kind,)
    if value is None and type(None) in alternatives:
        return None
    if len(wanted := [one for one in alternatives if one is not type(None)]) == 1 and wanted[0] not in _WORDS:
        return convert_json(wanted[0], value, path, readers)
    for one in alternatives:
        if type(value) is one and not (one is float and not math.isfinite(value)):
            return value
        if one is float and type(value) is int:
            return float(value)
    raise InputError(f"{path}: got {_shown(value)}, wanted {' or '.join(_WORDS[one] for one in alternatives)}")


def convert_json_fields(
    kinds: Mapping[str, Any], value: object, path: str = "", readers: Mapping[Any, Reader] = MappingProxyType({})
) -> dict[str, Any]:
    """The fields of a JSON object, each as its type; none may be missing, and there may be no other.

    Raises:
        InputError: as for `typed`.
    """
    given = _as_object(value, path)
    before = f"{path} " if path else ""
    if missing := [name for name in kinds if name not in given]:
        raise InputError(f"{before}lacks {', '.join(missing)}, so it is not whole")
    if unknown := sorted(given.keys() - kinds.keys()):
        raise InputError(f"{before}has {', '.join(unknown)}, which this version does not know")
    return {name: convert_json(kind, given[name], _join(path, name), readers) for name, kind in kinds.items()}


def _as_dataclass(kind: Any, value: object, path: str, readers: Mapping[Any, Reader]) -> Any:
    hints = get_type_hints(kind)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    parts = convert_json_fields(kinds, value, path, readers)
    try:
        return kind(**parts)
    except InputError as error:
        raise InputError(f"{path}: {error}" if path else str(error)) from None


def _as_tuple(inner: tuple, value: object, path: str, readers: Mapping[Any, Reader]) -> tuple:
    if not isinstance(value, list):
        raise InputError(f"{path}: got {_shown(value)}, wanted a list")
    kinds = [inner[0]] * len(value) if inner[1:] == (...,) else list(inner)
    if len(value) != len(kinds):
        raise InputError(f"{path}: got {len(value)} values, wanted {len(kinds)}")
    return tuple(
        convert_json(kind, part, f"{path}[{index}]", readers) for index, (kind, part) in enumerate(zip(kinds, value))
    )


def _as_object(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InputError(f"{path}: got {_shown(value)}, wanted an object")
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
