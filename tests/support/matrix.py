"""Which members of a matrix every run of the tests takes; the others have the mark `matrix`, for `make test-all`."""

import itertools
from collections.abc import Callable, Iterable, Sequence

import pytest

IN_TURN = ("backend", "kernel", "dtype")
GOLDEN = (5**0.5 - 1) / 2


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


def one_in_turn(items: Iterable[pytest.Item]) -> None:
    """Of tests with the mark `in_turn` every run takes each set of arguments with one backend and dtype, which change
    from set to set; none takes the reference, which judges of its own hold to the formulas, where another is there."""
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        if "in_turn" in item.keywords:
            others = tuple((name, repr(value)) for name, value in item.callspec.params.items() if name not in IN_TURN)
            groups.setdefault((item.path, item.originalname, others), []).append(item)
    for turn, group in enumerate(groups.values()):
        kernels = [item for item in group if "reference" not in item.callspec.params.values()] or group
        for item in group:
            if item is not kernels[turn % len(kernels)]:
                item.add_marker(pytest.mark.matrix)


def sampled(items: Iterable[pytest.Item]) -> None:
    """Of tests with the mark `sampled(n)` every run takes one member in n, of each test of a file other ones. Steps of
    the golden ratio keep no time with the number of values of an argument, so that every value is met."""
    tests: dict[object, dict[str, list[pytest.Item]]] = {}
    for item in items:
        if "sampled" in item.keywords:
            tests.setdefault(item.path, {}).setdefault(item.originalname, []).append(item)
    for of_file in tests.values():
        for turn, members in enumerate(of_file.values()):
            (n,) = members[0].get_closest_marker("sampled").args
            for number, item in enumerate(members):
                if (number * GOLDEN + turn / n) % 1 >= 1 / n:
                    item.add_marker(pytest.mark.matrix)


def kept_of(kept: Iterable, values: Iterable) -> list[object]:
    """Values of one argument; every run takes those of `kept`."""
    kept = list(kept)
    return [param(value in kept, value, id=str(getattr(value, "name", value))) for value in values]
