"""Columns of pandas DataFrames and Series as lists, without importing pandas unless a DataFrame is created."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from qacg_models.errors import InputError
from qacg_models.utils.cells import counted

if TYPE_CHECKING:
    from pandas import DataFrame

ON_EMPTY = ("raise", "skip")
TO_PANDAS = "Convert polars and Arrow frames with to_pandas()."  # advice of an error
LISTED = 10  # maximum number of rows in an error message


def is_frame(value: object) -> bool:
    """Whether a value is a DataFrame of pandas, or a mapping of column names to sequences."""
    return _is_pandas(value, "DataFrame") or isinstance(value, Mapping)


def is_series(value: object) -> bool:
    """Whether a value is a Series of pandas."""
    return _is_pandas(value, "Series")


def _is_pandas(value: object, name: str) -> bool:
    return any(kind.__name__ == name and kind.__module__.split(".")[0] == "pandas" for kind in type(value).__mro__)


def shown_type(value: object) -> str:
    """Returns the name of a value's type, with its package if that is not Python's own, such as `polars.DataFrame`."""
    kind = type(value)
    package = kind.__module__.split(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


def cells(values: Any) -> list:
    """Returns the values of a column as Python objects, with None for missing values.

    Missing values are NaN, None, NA and NaT in a Series, and NaN and None in other sequences. If all other values of a
    Series are floats without a fraction, they become ints: pandas stores integers as floats if a value is missing.
    """
    if is_series(values):
        found = values.astype(object).where(values.notna(), None).tolist()
        if all(cell is None or (isinstance(cell, float) and cell.is_integer()) for cell in found):
            return [None if cell is None else int(cell) for cell in found]
        return found
    return [None if _is_nan(value) else value for value in values]


def _is_nan(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, int) and math.isnan(value)  # NumPy's numbers are Real


def column_names(frame: Any) -> list:
    """Returns the column names of a frame."""
    return list(frame.keys())


def column(frame: Any, name: str, argument: str) -> list:
    """Returns the cells of a column.

    Args:
        frame: a DataFrame or a mapping.
        name: name of the column.
        argument: the argument in which the user passed the name, for the error.

    Raises:
        TypeError: `frame` is neither a DataFrame nor a mapping.
        InputError: there is no such column, or there are several.
    """
    if not is_frame(frame):
        raise TypeError(
            "frame: expected a pandas DataFrame or a mapping of column names to sequences, got"
            f" {shown_type(frame)}. {TO_PANDAS}"
        )
    names = column_names(frame)
    if names.count(name) != 1:
        found = f"{names.count(name)} of that name" if name in names else ", ".join(map(repr, names)) or "no columns"
        raise InputError(f"{argument}: expected one column {name!r} in the frame, got {found}. Pass {argument}=NAME.")
    return cells(frame[name])


def index_of(values: Any, count: int) -> list:
    """Returns the index of a DataFrame or Series as a list; for other values the numbers 0 to `count` - 1."""
    has_index = _is_pandas(values, "DataFrame") or is_series(values)
    return values.index.tolist() if has_index else list(range(count))


def is_empty(cell: object) -> bool:
    """Whether a cell has no content: None, an empty text, or white space only."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def check_empty(
    columns: Mapping[str, Sequence],
    on_empty: str,
    index: Sequence | None = None,
    advice: str = "Fill in these cells, or pass on_empty='skip'.",
) -> list[int]:
    """Returns the numbers (from 0) of the rows without an empty cell.

    Args:
        columns: cells by column name; all columns have the same length.
        on_empty: "raise": an empty cell is an error; "skip": rows with an empty cell are left out.
        index: labels of the rows in the error; None: their numbers from 0.
        advice: last sentence of the error.

    Raises:
        InputError: `on_empty` has another value, columns have different lengths, or a cell is empty and `on_empty` is
            "raise".
    """
    if on_empty not in ON_EMPTY:
        raise InputError(f"on_empty: expected one of {', '.join(ON_EMPTY)}, got {on_empty!r}.")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{length} in {name!r}" for name, length in lengths.items())
        raise InputError(f"frame: expected columns of equal length, got {shown}.")
    count = next(iter(lengths.values()), 0)
    empty: dict[int, str] = {}
    for name, values in columns.items():
        for row, cell in enumerate(values):
            if is_empty(cell):
                empty.setdefault(row, name)
    if empty and on_empty == "raise":
        rows = sorted(empty)
        labels = range(count) if index is None else index
        shown = ", ".join(f"{labels[row]!r} ({empty[row]!r})" for row in rows[:LISTED])
        more = f" and {len(rows) - LISTED:,} more" if len(rows) > LISTED else ""
        raise InputError(
            "frame: expected no empty cells (NaN, None or blank text), got"
            f" {counted(len(rows), 'row')} with an empty cell: {shown}{more}. {advice}"
        )
    return [row for row in range(count) if row not in empty]


def data_frame(columns: Mapping[str, Sequence], places: Sequence[int], source: Any) -> DataFrame:
    """Returns a DataFrame with the given columns, and with row labels from the index of `source`.

    Args:
        columns: values by column name; all columns have the same length.
        places: for each row, the position of its label in the index of `source`.
        source: a DataFrame or Series; for other values, the labels are the positions.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise InputError(
            "pandas: expected an installed package, got none. To return a DataFrame, run pip install pandas (the extra"
            " `pandas`); or pass a list of texts, for which lists are returned."
        ) from None
    has_index = _is_pandas(source, "DataFrame") or is_series(source)
    return pandas.DataFrame(dict(columns), index=source.index.take(places) if has_index else pandas.Index(places))
