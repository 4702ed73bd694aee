"""Parametrisations with some members that have the mark `full`, which the default run of the tests leaves out."""

import itertools
from collections.abc import Callable, Iterable, Sequence

import pytest


def member(*values: object, id: str, fast: bool) -> object:
    """A `pytest.param` that has the mark `full` unless it is fast."""
    return pytest.param(*values, id=id, marks=() if fast else pytest.mark.full)


def members(values: Iterable, fast: Iterable) -> list[object]:
    """Parameters for the values of one argument; values that are not in `fast` have the mark `full`."""
    fast = list(fast)
    return [member(value, id=str(getattr(value, "name", value)), fast=value in fast) for value in values]


def one_other_each(
    cases: Iterable, others: Sequence, slow: Callable[[object], bool] = lambda case: False
) -> list[object]:
    """Parameters for all pairs of a named case and a member of `others`.

    The pair of the n-th case and the n-th of `others` (cyclically) is fast, unless the case is `slow`. All other pairs
    have the mark `full`.
    """
    pairs = itertools.product(enumerate(cases), enumerate(others))
    return [
        member(case, other, id=f"{case.name}-{other}", fast=m == n % len(others) and not slow(case))
        for (n, case), (m, other) in pairs
    ]
