"""Checks of single configuration fields and arguments. Errors have the form `field: expected X, got Y`."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch

from qacg_kernels.call.validation import finite_number
from qacg_models.configs.limits import MOST, limit
from qacg_models.errors import InputError


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
    finite_number(field, value)
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


def check_dtypes(fields: Mapping[str, object], path: str = "") -> None:
    """Raises ValueError unless `dtype` and `torch_dtype` are missing, None, or a floating-point dtype or its name."""
    for field in ("dtype", "torch_dtype"):
        value = fields.get(field)
        named = getattr(torch, value, None) if isinstance(value, str) else value
        if value is not None and not (isinstance(named, torch.dtype) and named.is_floating_point):
            expected = "expected a floating-point dtype of torch, such as 'float32'"
            raise ValueError(f"{path}{field}: {expected}, got {value!r}")
