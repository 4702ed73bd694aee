"""A set of metrics: shares between 0 and 1, NaN where there is not a single case to judge."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from qacg_models.utils.json_fields import convert_json_fields


@dataclass(frozen=True)
class Metrics:
    """Base of the sets. A set's fields are its metrics, and `undefined`.

    Attributes:
        TITLES: what tables call each metric, in their order.
        undefined: what could not be taken, such as `"sentiment_auc: safety"` (only one class occurs there);
            a mean is taken without it.
    """

    TITLES: ClassVar[dict[str, str]]

    def to_json(self) -> dict:
        """As plain types for a JSON file; NaN, which JSON does not have, becomes None."""
        values = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(self).items()
        }
        return values | {"undefined": list(self.undefined)}

    @classmethod
    def from_json(cls, content: object, path: str = "") -> Metrics:
        """Inverse of `to_json`.

        Args:
            path: of the content, as errors name it.

        Raises:
            InputError: naming the metric that is missing, unknown or no number.
        """
        kinds = dict.fromkeys(cls.TITLES, float | None) | {"undefined": tuple[str, ...]}
        values = convert_json_fields(kinds, content, path)
        return cls(**{name: math.nan if value is None else value for name, value in values.items()})


def ratio(part: float, whole: float) -> float:
    """part / whole, NaN where there is no whole."""
    return float(part / whole) if whole else math.nan


def f1(precision: float, recall: float) -> float:
    """The harmonic mean; 0 where both are."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def check_rows(gold: np.ndarray, probabilities: np.ndarray, rows: int, classes: int) -> None:
    """Raises ValueError unless there is a class and a row of probabilities for each of `rows` rows."""
    if not rows:
        raise ValueError("no rows to judge")
    if gold.shape != (rows,) or probabilities.shape != (rows, classes):
        raise ValueError(
            f"{rows} rows want gold ({rows},) and probabilities ({rows}, {classes});"
            f" got {gold.shape} and {probabilities.shape}"
        )
    if not np.isin(gold, range(classes)).all():
        known = ", ".join(map(str, range(classes - 1)))
        raise ValueError(f"gold holds a class that is not {known} or {classes - 1}")
    if not np.isfinite(probabilities).all() or (probabilities < 0).any():
        row = int(np.argwhere(~np.isfinite(probabilities) | (probabilities < 0))[0][0])
        values = probabilities[row].tolist()
        raise ValueError(f"row {row} has a probability that is negative or not finite: {values}")


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
