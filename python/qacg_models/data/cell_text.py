"""The text of a cell of a table: the one rule for which objects are texts, labels and names of aspects."""

import math
from decimal import Decimal

from qacg_models.utils.cells import clipped


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
