"""Checks of single arguments of public functions. Errors have the form `argument: expected X, got Y`."""

from qacg_models.errors import InputError


def check_count(name: str, value: object) -> None:
    """Raises TypeError unless `value` is an integer, and InputError unless it is at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected int, got {type(value).__name__}")
    if value < 1:
        raise InputError(f"{name}: expected at least 1, got {value}")
