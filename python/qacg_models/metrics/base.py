"""Base class of a set of metrics, and the checks and calculations that several sets use."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from qacg_models.utils.json_fields import convert_json_fields


@dataclass(frozen=True)
class Metrics:
    """Base class of sets of metrics; the fields of a set are its metrics and `undefined`.

    Metrics are shares between 0 and 1, or NaN if they are undefined for the rows.

    Attributes:
        TITLES: title of each metric in tables, in the order of the tables.
        undefined: names of undefined metrics. A metric that is a mean over aspects has no entry for the mean, but an
            entry "metric: aspect" for each aspect whose value is undefined, such as "sentiment_auc: safety".
    """

    TITLES: ClassVar[dict[str, str]]

    def to_json(self) -> dict:
        """Returns the metrics and `undefined` as JSON types, with NaN as None."""
        return plain(self) | {"undefined": list(self.undefined)}

    @classmethod
    def from_json(cls, content: object, path: str = "") -> Metrics:
        """Returns the metrics that `to_json` converted to JSON types.

        Args:
            content: the JSON value.
            path: position of the value in its file, for errors.

        Raises:
            InputError: `content` is not a JSON object; a metric is missing or unknown, or neither a number nor null; or
                `undefined` is not a list of str.
        """
        kinds = dict.fromkeys(cls.TITLES, float | None) | {"undefined": tuple[str, ...]}
        values = convert_json_fields(kinds, content, path)
        return cls(**{name: math.nan if value is None else value for name, value in values.items()})


def plain(record: object) -> dict[str, object]:
    """Returns the fields of a dataclass, with NaN as None."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in asdict(record).items()  # type: ignore[call-overload]
    }


def ratio(part: float, whole: float) -> float:
    """Returns part / whole; NaN if `whole` is 0."""
    return float(part / whole) if whole else math.nan


def f1(precision: float, recall: float) -> float:
    """Returns the harmonic mean of precision and recall; 0 if both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def check_rows(gold: np.ndarray, probabilities: np.ndarray, rows: int, classes: int) -> None:
    """Raises ValueError unless `gold` and `probabilities` have valid shapes and values.

    Args:
        gold: expected (rows,), with classes from 0 to `classes` - 1.
        probabilities: expected (rows, classes), with finite numbers of at least 0.
        rows: number of rows, expected to be at least 1.
        classes: number of classes.
    """
    if not rows:
        raise ValueError("rows: expected at least one, got none")
    if gold.shape != (rows,) or probabilities.shape != (rows, classes):
        raise ValueError(
            f"gold, probabilities: expected shapes ({rows},) and ({rows}, {classes}), got {gold.shape} and"
            f" {probabilities.shape}"
        )
    if not np.isin(gold, range(classes)).all():
        unknown = gold[~np.isin(gold, range(classes))][0]
        raise ValueError(f"gold: expected classes from 0 to {classes - 1}, got {unknown}")
    if not np.isfinite(probabilities).all() or (probabilities < 0).any():
        row = int(np.argwhere(~np.isfinite(probabilities) | (probabilities < 0))[0][0])
        values = probabilities[row].tolist()
        raise ValueError(f"probabilities: expected finite numbers of at least 0, got {values} in row {row}")


def check_matrix(name: str, values: np.ndarray) -> None:
    """Raises ValueError unless the array has two dimensions."""
    if values.ndim != 2:
        raise ValueError(f"{name}: expected shape (rows, classes), got {values.shape}")


def group_table(groups: Sequence[Hashable], aspects: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Arranges rows as a table of groups by aspects.

    Args:
        groups: (N,) group of each row.
        aspects: (N,) aspect of each row.

    Returns:
        The aspect names in alphabetical order, and a (groups, aspects) array of row indices. Groups are in the order of
        their first rows.

    Raises:
        ValueError: `groups` and `aspects` differ in length, there are no rows, or a group lacks or repeats an aspect.
    """
    if len(groups) != len(aspects):
        raise ValueError(f"aspects: expected {len(groups)}, one for each row, got {len(aspects)}")
    if not len(groups):
        raise ValueError("rows: expected at least one, got none")
    names = sorted(set(aspects))
    column = {name: index for index, name in enumerate(names)}
    found: dict[Hashable, list[int]] = {}
    for row, (group, aspect) in enumerate(zip(groups, aspects)):
        cells = found.setdefault(group, [-1] * len(names))
        if cells[column[aspect]] != -1:
            raise ValueError(
                f"rows: expected one row per group and aspect, got two for group {group!r}, aspect {aspect!r}"
            )
        cells[column[aspect]] = row
    table = np.array(list(found.values()))
    if (table < 0).any():
        group, aspect = np.argwhere(table < 0)[0]
        named = f"group {list(found)[group]!r}, aspect {names[aspect]!r}"
        raise ValueError(f"rows: expected one row per group and aspect, got none for {named}")
    return names, table
