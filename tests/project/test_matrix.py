"""What every run takes of a matrix."""

from itertools import product
from types import SimpleNamespace

import pytest
from matrix import one_in_turn, sampled


def item(marks, test="test", **arguments):
    left = []
    return SimpleNamespace(
        keywords=marks,
        path="file",
        originalname=test,
        callspec=SimpleNamespace(params=arguments),
        get_closest_marker=lambda name: getattr(pytest.mark, name)(*marks[name]).mark,
        add_marker=left.append,
        left=left,
    )


def taken(items):
    one_in_turn(items)
    return [tuple(one.callspec.params.values()) for one in items if not one.left]


def test_each_case_has_one_kernel_and_type_in_turn_and_not_the_reference():
    pairs = [("reference", "f32"), ("cpu", "f32"), ("cpu", "bf16")]
    items = [item({"in_turn"}, backend=b, dtype=d, case=[case]) for case, (b, d) in product(range(4), pairs)]
    assert taken(items) == [(*pairs[1 + case % 2], [case]) for case in range(4)]
    assert all(mark.name == "matrix" for one in items for mark in one.left)


def test_the_reference_is_taken_where_it_is_alone():
    assert taken([item({"in_turn"}, backend="reference", dtype=d, case=0) for d in ("f32", "bf16")]) == [
        ("reference", "f32", 0)
    ]


def test_others_are_left_as_they_are():
    assert len(taken([item(set(), backend="reference", dtype=d) for d in ("f32", "bf16")])) == 2


def test_a_sample_meets_every_value_and_the_tests_of_a_file_together_every_member():
    values = list(product(range(30), range(3)))  # as many of the second argument as members to one taken
    tests = {f"test_{n}": [item({"sampled": (3,)}, f"test_{n}", a=a, b=b) for a, b in values] for n in range(3)}
    sampled([one for items in tests.values() for one in items])
    taken = [{tuple(one.callspec.params.values()) for one in items if not one.left} for items in tests.values()]
    assert all(27 <= len(members) <= 33 and {b for _, b in members} == {0, 1, 2} for members in taken)
    assert set.union(*taken) == set(values)
