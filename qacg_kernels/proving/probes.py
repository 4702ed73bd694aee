"""The calls by which a family is judged.

Sizes are full size: a kernel's tiles shrink with short rows and few queries, so every power of two up to the largest
tile has a length here, and what is judged are the very tiles that a user's call takes. The features come with a row
gate, as models have them; "plain" has a lambda tensor and what is odd: head sizes, strides, a single key.

The CPU's kernels get few and small ones, since a first call waits for them: their code is what the tests have run in an
emulator, with tiles of one size, and what a processor could do otherwise shows in any call.
"""

import zlib
from collections.abc import Iterable
from dataclasses import replace

from qacg_kernels.certificates.family import Family
from qacg_kernels.testing_inputs import Case

_GATED = dict(gate="shared", bias="shared")
_FEATURES: dict[str, dict[str, object]] = {
    "plain": dict(),
    "mask": dict(mask="boolean_empty_rows", **_GATED),
    "lengths": dict(**_GATED),
    "causal": dict(is_causal=True, **_GATED),
    "dropout": dict(dropout_p=0.1, **_GATED),
    "row_gate": dict(gate="per_head", bias="per_head", lambda_gradient=True),
    "column_gate": dict(form="column", beta=0.7, **_GATED),
}
# Of every tile a length that fills it and one that does not: where all sequences fill it, no bounds are checked.
_PART_OF_A_TILE, _WHOLE_TILES = (9, 20, 50, 100), (16, 32, 64, 128)
_TILED = (200, 512)
_PACKED = ((9, 0, 4), (20, 1), (50, 0, 3), (17, 128), (300, 1, 0, 129))
# A head size of each class that is no power of two, and one whose rows do not start at multiples of 16 bytes.
_ODD_HEAD_DIMS = {64: (40, 33), 128: (80, 97), 256: (160, 201)}
_SMALL_HEAD_DIM, _SMALL_WHOLE_ROW, _SMALL_TILED = 16, 20, 130
# Queries and keys. More than 512 keys go span by span (kSpan in csrc/cpu/forward.h).
_OF_A_CPU = {"whole_row": (21, 21), "tiled": (150, 150)}
_LONG_OF_A_CPU = (20, 530)
_PACKED_OF_A_CPU = (17, 0, 40)


def seed_of(case: Case) -> int:
    """What the values of a case are drawn from."""
    return zlib.crc32(case.name.encode())


def cases(family: Family, small: bool = False) -> list[Case]:
    """The cases of a family; `small` ones are fewer and have small heads, for a rehearsal in Triton's interpreter."""
    if family.backend == "cpu":
        return [_named(case, family) for case in _of_a_cpu(family)]
    head_dim = _SMALL_HEAD_DIM if small else family.head_dim
    heads = 1 if small else 2
    base = Case("", heads=heads, head_dim=head_dim, layout="heads_inside", **_FEATURES[family.feature])
    sized = list(_sized(base, family, small))
    if not small and family.feature == "plain":
        sized += _odd(base, family)
    if not small and family.feature == "mask":
        additive = ("additive", "minus_10000", "minus_infinity")
        sized += [replace(sized[-1], mask=mask) for mask in additive]
    return [_named(case, family) for case in sized]


def _named(case: Case, family: Family) -> Case:
    return replace(case, name=f"{family.route}, {family.feature}, {_size(case)}")


def _of_a_cpu(family: Family) -> Iterable[Case]:
    heads_inside = Case("", batch=2, heads=1, layout="heads_inside", **_FEATURES[family.feature])
    odd = replace(heads_inside, head_dim=_ODD_HEAD_DIMS[family.head_dim][1])
    if family.route == "packed":
        yield replace(odd, sequences=_PACKED_OF_A_CPU)
        return
    queries, keys = _OF_A_CPU[family.route]
    key_lengths = (keys, keys - 6) if family.feature == "lengths" else None
    yield replace(odd, queries=queries, keys=keys, key_lengths=key_lengths)
    if family.feature == "plain":
        across = _LONG_OF_A_CPU if family.route == "tiled" else (queries + 1, 1)
        yield replace(heads_inside, head_dim=family.head_dim, queries=across[0], keys=across[1])


def _sized(base: Case, family: Family, small: bool) -> Iterable[Case]:
    if family.route == "packed":
        for sequences in _PACKED[:1] if small else _PACKED:
            yield replace(base, sequences=sequences)
        return
    for length in _lengths(family, small):
        key_lengths = (length, 0, max(1, length - 6)) if family.feature == "lengths" else None
        yield replace(base, batch=3 if key_lengths else 2, queries=length, key_lengths=key_lengths)


def _lengths(family: Family, small: bool) -> tuple[int, ...]:
    if family.route == "tiled":
        return (_SMALL_TILED,) if small else _TILED
    if small:
        return (_SMALL_WHOLE_ROW,)
    # With lengths bounds are checked at every size.
    return _PART_OF_A_TILE + (() if family.feature == "lengths" else _WHOLE_TILES)


def _odd(base: Case, family: Family) -> list[Case]:
    if family.route == "packed":
        shape = dict(sequences=(70, 1, 19))
        layouts = ("fused_projection", "strided")
        more = []
    else:
        length = 70 if family.route == "whole_row" else 150
        shape = dict(queries=length)
        layouts = ("contiguous", "fused_projection", "strided")
        across = (200, 100) if family.route == "whole_row" else (40, 300)
        more = [replace(base, queries=across[0], keys=across[1]), replace(base, queries=17, keys=1)]
    odd = [replace(base, head_dim=d, **shape) for d in _ODD_HEAD_DIMS[family.head_dim]]
    return [*odd, *(replace(base, layout=layout, **shape) for layout in layouts), *more]


def _size(case: Case) -> str:
    rows = case.sequences if case.sequences is not None else f"{case.queries} x {case.key_count}"
    return f"{rows}, {case.head_dim} dims, {case.layout}{f', {case.mask}' if case.mask else ''}"
