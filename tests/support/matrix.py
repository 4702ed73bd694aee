"""Which members of a matrix every run of the tests takes; the others have the mark `matrix`, for `make test-all`."""

import itertools
from collections.abc import Callable, Iterable, Sequence

import pytest


def param(kept: bool, *values: object, id: str) -> object:
    """One member of a matrix, which every run takes if `kept`."""
    return pytest.param(*values, id=id, marks=() if kept else pytest.mark.matrix)


def in_turn(cases: Iterable, others: Sequence, slowest: Callable[[object], bool] = lambda case: False) -> list[object]:
    """Every case (which has a name) with every one of `others`, in every run with one of them, which changes from case
    to case; the slowest cases are left to the whole matrix."""
    pairs = itertools.product(enumerate(cases), enumerate(others))
    return [
        param(m == n % len(others) and not slowest(case), case, other, id=f"{case.name}-{other}")
        for (n, case), (m, other) in pairs
    ]


def kept_of(kept: Iterable, values: Iterable) -> list[object]:
    """Values of one argument; every run takes those of `kept`."""
    kept = list(kept)
    return [param(value in kept, value, id=str(getattr(value, "name", value))) for value in values]
