"""Checks of single configuration fields: an error names the field, what came and what was wanted."""

import math
from typing import Any

import torch

from qacg_models.configs.limits import MOST, limit


def check_integer(field: str, value: object, at_least: int, below: int | None = None) -> None:
    """Raises unless `value` is an integer, and no boolean, of at least `at_least` and, if given, below `below`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field}: got {value!r}, wanted an integer")
    if value < at_least:
        raise ValueError(f"{field}: got {value}, wanted at least {at_least}")
    if below is not None and value >= below:
        raise ValueError(f"{field}: got {value}, wanted less than {below}")


def check_size(field: str, value: Any, at_least: int = 1, path: str = "") -> None:
    """Raises unless `value` is an integer, and no boolean, from `at_least` to the limit of `field` in `limits.MOST`.

    Args:
        path: what stands before the field's name in a message, as in `encoder.`.
    """
    check_integer(path + field, value, at_least)
    if value > MOST[field][0]:
        raise ValueError(f"{path}{field}: got {value}, wanted at most {limit(field)}")


def check_number(field: str, value: object, at_least: float | None = None) -> None:
    """Raises unless `value` is a finite number, and no boolean, of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field}: got {value!r}, wanted a number")
    if not math.isfinite(value):
        raise ValueError(f"{field}: got {value}, wanted a finite number")
    if at_least is not None and value < at_least:
        raise ValueError(f"{field}: got {value}, wanted at least {at_least:g}")


def check_probability(field: str, value: Any) -> None:
    """Raises unless `value` is a number in [0, 1), as dropout takes it."""
    check_number(field, value)
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{field}: got {value}, wanted a probability in [0, 1)")


def check_dtype(field: str, value: object) -> None:
    """Raises unless `value` is None, a floating-point type of torch, or its name."""
    named = getattr(torch, value, None) if isinstance(value, str) else value
    if value is not None and not (isinstance(named, torch.dtype) and named.is_floating_point):
        raise ValueError(f"{field}: got {value!r}, wanted a floating-point type of torch, such as 'float32'")


def check_flag(field: str, value: object) -> None:
    """Raises unless `value` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{field}: got {value!r}, wanted True or False")


def check_one_of(field: str, value: object, known: tuple[str, ...]) -> None:
    """Raises unless `value` is one of the names `known`."""
    if value not in known:
        raise ValueError(f"{field}: got {value!r}, wanted one of {', '.join(map(repr, known))}")
