"""Rows as a table of groups by aspects."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np


def group_table(groups: Sequence[Hashable], aspects: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Aspect names, and (groups, aspects) the number of each one's row.

    Raises:
        ValueError: sizes differ, no rows, or a group that lacks or repeats an aspect.
    """
    if len(groups) != len(aspects):
        raise ValueError(f"{len(groups)} groups but {len(aspects)} aspects")
    if not len(groups):
        raise ValueError("no rows to judge")
    names = sorted(set(aspects))
    column = {name: index for index, name in enumerate(names)}
    found: dict[Hashable, list[int]] = {}
    for row, (group, aspect) in enumerate(zip(groups, aspects)):
        cells = found.setdefault(group, [-1] * len(names))
        if cells[column[aspect]] != -1:
            raise ValueError(f"group {group!r} has two rows for the aspect {aspect!r}")
        cells[column[aspect]] = row
    table = np.array(list(found.values()))
    if (table < 0).any():
        group, aspect = np.argwhere(table < 0)[0]
        raise ValueError(f"group {list(found)[group]!r} has no row for the aspect {names[aspect]!r}")
    return names, table
