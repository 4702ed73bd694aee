"""DataFrames: cells of any table as texts, and the columns of a user's DataFrame, Series or mapping.

pandas is imported only where a DataFrame is created, because its import takes longer than most commands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from qacg_models.errors import InputError
from qacg_models.utils.cells import clipped, counted

if TYPE_CHECKING:
    from pandas import DataFrame

ON_EMPTY = ("raise", "skip")
TO_PANDAS = "Convert tables of polars, Arrow and datasets with to_pandas()."  # advice of an error
LISTED = 10  # maximum number of rows in an error message


def is_frame(value: object) -> bool:
    """Whether a value is a DataFrame of pandas, or a mapping of column names to sequences."""
    import pandas as pd

    return isinstance(value, pd.DataFrame | Mapping)


def is_series(value: object) -> bool:
    """Whether a value is a Series of pandas."""
    import pandas as pd

    return isinstance(value, pd.Series)


def _shown_type(value: object) -> str:
    """Returns the name of a value's type, with its package if that is not Python's own, such as `polars.DataFrame`."""
    kind = type(value)
    package = kind.__module__.split(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


def items(argument: str, values: Any, expected: str = "a sequence, a Series or an array") -> list:
    """Returns the items of a sequence, a Series or another array.

    Args:
        argument: name of the user's argument, for the error.
        values: the sequence; a text is none.
        expected: names of the supported types, for the error.

    Raises:
        TypeError: `values` has another type, such as a frame of polars or Arrow.
    """
    is_array = hasattr(values, "__array__") and not hasattr(values, "columns")  # a column, not a table
    if not (is_array or isinstance(values, Sequence)) or isinstance(values, str | bytes):
        raise TypeError(f"{argument}: expected {expected}, got {_shown_type(values)}. {TO_PANDAS}")
    return list(values)


def texts_of(argument: str, cells: Iterable, index: Sequence | None = None) -> list[str]:
    """Returns cells as texts, an empty text for a missing value (`cell_text`).

    Args:
        argument: the user's argument and, for a frame, the column, for the error.
        cells: the cells.
        index: labels of the cells in the error; None: their numbers from 0.

    Raises:
        TypeError: a cell is no text, number or boolean; the message has its value and its label in the index.
    """
    texts = []
    for row, cell in enumerate(cells):
        try:
            texts.append(cell_text(cell))
        except TypeError as error:
            label = row if index is None else index[row]
            raise TypeError(f"{argument}, index {label!r}: {error}. Convert such cells to texts.") from None
    return texts


def column_names(frame: Any) -> list:
    """Returns the column names of a frame."""
    return list(frame.keys())


def column(frame: Any, name: object, argument: str) -> list[str]:
    """Returns the cells of a column as texts, an empty text for a missing value.

    Args:
        frame: a DataFrame or a mapping.
        name: name of the column.
        argument: the argument in which the user passed the name, for the error.

    Raises:
        TypeError: `frame` is neither a DataFrame nor a mapping, or a cell is no text, number or boolean.
        InputError: there is no such column, or there are several.
    """
    if not is_frame(frame):
        raise TypeError(
            "frame: expected a pandas DataFrame or a mapping of column names to sequences, got"
            f" {_shown_type(frame)}. {TO_PANDAS}"
        )
    names = column_names(frame)
    if names.count(name) != 1:
        found = f"{names.count(name)} of that name" if name in names else ", ".join(map(repr, names)) or "no columns"
        raise InputError(f"{argument}: expected one column {name!r} in the frame, got {found}. Pass {argument}=NAME.")
    place = f"frame: column {name!r}"
    cells = items(place, frame[name])
    return texts_of(place, cells, index_of(frame, len(cells)))


def index_of(values: Any, count: int) -> list:
    """Returns the index of a DataFrame or Series as a list; for other values the numbers 0 to `count` - 1."""
    import pandas as pd

    return values.index.tolist() if isinstance(values, pd.DataFrame | pd.Series) else list(range(count))


def check_empty(columns: Mapping[str, Sequence[str]], index: Sequence, advice: str) -> None:
    """Raises InputError if columns have different lengths, or if a cell is empty; the message lists these rows.

    Args:
        columns: texts by column name, empty for missing values.
        index: labels of the rows.
        advice: last sentence of the error for empty cells.
    """
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{length} in {name!r}" for name, length in lengths.items())
        raise InputError(f"frame: expected columns of equal length, got {shown}.")
    empty = {row: name for name, values in columns.items() for row, cell in enumerate(values) if not cell}
    if empty:
        rows = sorted(empty)
        shown = ", ".join(f"{index[row]!r} ({empty[row]!r})" for row in rows[:LISTED])
        more = f" and {len(rows) - LISTED:,} more" if len(rows) > LISTED else ""
        raise InputError(
            "frame: expected no empty cells (NaN, None or blank text), got"
            f" {counted(len(rows), 'row')} with an empty cell: {shown}{more}. {advice}"
        )


def text_table(columns: Mapping[str, Sequence[str]], lines: Sequence[int]) -> DataFrame:
    """Returns a table of texts, with empty texts instead of blank ones, and line numbers as the index `line`."""
    import pandas as pd

    table = pd.DataFrame(dict(columns), pd.Index(lines, dtype="int64", name="line"))
    if table.empty:
        return table.astype(object)
    for name in table:
        blank = (table[name].str.strip() == "") & (table[name] != "")
        if blank.any():
            table[name] = table[name].mask(blank, "")
    return table


def cell_text(value: object) -> str:
    """Returns a text, a finite number or a boolean as text, and an empty text for a missing value.

    Whole numbers have no fraction, so that 1, 1.0, Decimal("1.0") and "1" are the same id or label. Booleans are the
    texts "True" and "False", which pandas writes to a CSV. Scalars of NumPy, Arrow and torch are numbers or texts, as
    their values are. Missing values are None, NaN, NA, NaT and blank texts.

    Args:
        value: the cell.

    Raises:
        TypeError: the cell has another type, such as bytes or a date, or is infinite.
    """
    if isinstance(value, str):
        return str.__str__(value) if value.strip() else ""
    if is_missing(value):
        return ""
    plain = _python_value(value)
    if plain is not value:
        return cell_text(plain)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(int(value))  # an enumeration of numbers has a name
    if isinstance(value, float | Decimal) and math.isfinite(value):
        if value == int(value):
            return str(int(value))
        return str(value) if isinstance(value, float) else format(value.normalize(), "f")
    raise TypeError(f"expected a text, a finite number or a boolean, got {clipped(repr(value))}")


def is_missing(value: object) -> bool:
    """Whether a cell that is no text is None, NaN, NA or NaT."""
    if isinstance(value, float | Decimal):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # of pandas


def _python_value(value: object) -> object:
    """Returns the Python value of a scalar of Arrow, NumPy or torch; other objects are returned unchanged."""
    if hasattr(value, "as_py"):
        return value.as_py()
    if getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return value
    found = value.item()
    # NumPy returns dates in nanoseconds as int, and a long double as itself.
    is_date = getattr(value.dtype, "kind", "") in ("M", "m")  # type: ignore[attr-defined]
    return value if type(found) is type(value) or (is_date and found is not None) else found
