"""Columns of files and of a user's DataFrame, the text of a cell, labelled rows, and the task that they give.

Labels and aspects can have any names; the text `None` is a label name, not a missing value.

Without a column of ids, all rows with the same text and target get the same id, even if they are not adjacent. If an
aspect is repeated, there are several copies of the text: the Nth row of each aspect has the id of the Nth copy.
"""

from __future__ import annotations

import codecs
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qacg_models.errors import InputError
from qacg_models.sentiment.example import DataError, RowProblems, Source, Task
from qacg_models.utils.text import clipped, counted

if TYPE_CHECKING:
    import pandas as pd

ON_EMPTY = ("raise", "skip")
TO_PANDAS = "Convert tables of polars, Arrow and datasets with to_pandas()."  # advice of an error
LISTED = 10  # maximum number of rows in an error message
UTF_8 = "utf-8"
AUTO = "auto"
# auto: as minimal, but a field over lines that each look like a row is an error, or a warning if most other fields need
# their quotation marks; minimal: quotation marks may enclose a field, as in csv.QUOTE_MINIMAL; none: they are ordinary
# characters, as in csv.QUOTE_NONE.
QUOTING = (AUTO, "minimal", "none")
# Optional column that assigns a labelled row to a split.
SPLIT_COLUMN = "split"
DELIMITERS = (",", ";", "\t", "|")
# A file with both columns is a sheet of `qacg suggest`, whose cells are escaped for spreadsheets.
SHEET_COLUMNS = {SPLIT_COLUMN, "hint"}
MOST_LABELS = 20  # maximum number of distinct values of a column that is detected as an aspect
NOT_WIDE = (
    "name the aspect columns with --aspect-columns, or set wide=false (--set) for a table with a row for each aspect"
)


def cell_text(value: object) -> str:
    """Returns a text, a finite number or a boolean as text, and an empty text for a missing value.

    Whole numbers have no fraction, so that 1, 1.0, Decimal("1.0") and "1" are the same id or label. Scalars of NumPy,
    Arrow and torch count as their values. Missing values are None, NaN, NA, NaT and blank texts. Other types, such as
    bytes and dates, and infinite numbers raise TypeError.
    """
    if isinstance(value, str):
        return str.__str__(value) if value.strip() else ""
    is_number = isinstance(value, float | Decimal)
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (is_number and math.isnan(value)):
        return ""
    plain = _python_value(value)
    if plain is not value:
        return cell_text(plain)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(int(value))  # an enumeration of numbers has a name
    if is_number and math.isfinite(value):
        if value == int(value):
            return str(int(value))
        return str(value) if isinstance(value, float) else format(value.normalize(), "f")
    raise TypeError(f"expected a text, a finite number or a boolean, got {clipped(repr(value))}")


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


def is_frame(value: object) -> bool:
    """Whether a value is a DataFrame of pandas, or a mapping of column names to sequences."""
    import pandas as pd

    return isinstance(value, pd.DataFrame | Mapping)


def _shown_type(value: object) -> str:
    """Returns the name of a value's type, with its package if that is not Python's own, such as `polars.DataFrame`."""
    kind = type(value)
    package = kind.__module__.split(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


def items(argument: str, values: Any, expected: str = "a sequence, a Series or an array") -> list:
    """Returns the items of a sequence, a Series or another array; raises TypeError for other types and for a text."""
    is_array = hasattr(values, "__array__") and not hasattr(values, "columns")  # a column, not a table
    if not (is_array or isinstance(values, Sequence)) or isinstance(values, str | bytes):
        raise TypeError(f"{argument}: expected {expected}, got {_shown_type(values)}. {TO_PANDAS}")
    return list(values)


def texts_of(argument: str, cells: Iterable, index: Sequence | None = None) -> list[str]:
    """Returns cells as texts (`cell_text`); a TypeError names the argument and the cell's label in the index."""
    texts = []
    for row, cell in enumerate(cells):
        try:
            texts.append(cell_text(cell))
        except TypeError as error:
            label = row if index is None else index[row]
            raise TypeError(f"{argument}, index {label!r}: {error}. Convert such cells to texts.") from None
    return texts


def column(frame: Any, name: object, argument: str) -> list[str]:
    """Returns the cells of a column of a DataFrame or mapping as texts; `argument` is where the user passed `name`."""
    cells = raw_column(frame, name, argument)
    return texts_of(f"frame: column {name!r}", cells, index_of(frame, len(cells)))


def raw_column(frame: Any, name: object, argument: str) -> Any:
    """Returns a column of a DataFrame as an array of its dtype, and that of a mapping as a list; as `column`."""
    if not is_frame(frame):
        raise TypeError(
            "frame: expected a pandas DataFrame or a mapping of column names to sequences, got"
            f" {_shown_type(frame)}. {TO_PANDAS}"
        )
    names = list(frame)
    if names.count(name) != 1:
        found = f"{names.count(name)} of that name" if name in names else ", ".join(map(repr, names)) or "no columns"
        raise InputError(f"{argument}: expected one column {name!r} in the frame, got {found}. Pass {argument}=NAME.")
    cells = frame[name]
    return items(f"frame: column {name!r}", cells) if isinstance(frame, Mapping) else cells.array


def index_of(values: Any, count: int) -> list:
    """Returns the index of a DataFrame or Series as a list; for other values the numbers 0 to `count` - 1."""
    import pandas as pd

    return values.index.tolist() if isinstance(values, pd.DataFrame | pd.Series) else list(range(count))


def check_lengths(columns: Mapping[str, Sequence[str]]) -> None:
    """Raises InputError if the columns of a frame have different lengths."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{length} in {name!r}" for name, length in lengths.items())
        raise InputError(f"frame: expected columns of equal length, got {shown}.")


def check_empty(columns: Mapping[str, Sequence[str]], index: Sequence, advice: str) -> None:
    """Raises InputError, which lists the rows and ends with `advice`, if a cell is empty, or if the lengths differ."""
    check_lengths(columns)
    empty = {row: name for name, values in columns.items() for row, cell in enumerate(values) if not cell}
    if empty:
        shown = ", ".join(f"{index[row]!r} ({empty[row]!r})" for row in sorted(empty)[:LISTED])
        more = f" and {len(empty) - LISTED:,} more" if len(empty) > LISTED else ""
        raise InputError(
            "frame: expected no empty cells (NaN, None or blank text), got"
            f" {counted(len(empty), 'row')} with an empty cell: {shown}{more}. {advice}"
        )


def text_table(columns: Mapping[str, Sequence[str]], lines: Sequence[int]) -> pd.DataFrame:
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


@dataclass(frozen=True)
class Columns:
    """Column names (or JSON keys) of a table, and how its text is stored; raises InputError for invalid values."""

    text: str = "text"
    aspect: str | None = "aspect"  # None, also in the next lines: the column does not exist or is not read
    label: str | None = "label"
    id: str | None = None
    target: str | None = None
    delimiter: str = AUTO  # of CSV and TSV; AUTO: found in the header
    encoding: str = UTF_8  # of CSV, TSV, JSON, JSONL and TXT
    wide: bool = False  # whether the table has a column of labels for each aspect, instead of `aspect` and `label`
    aspect_columns: tuple[str, ...] | None = None  # of a wide table; None: all but text, id, target and split
    quoting: str = AUTO  # one of QUOTING: what quotation marks mean in CSV and TSV

    def __post_init__(self):
        if self.delimiter == "\\t":  # two characters, as typed in a shell
            object.__setattr__(self, "delimiter", "\t")
        for names in ([*self.fields().values()], self.required()):
            if len(set(names)) < len(names):
                raise InputError(
                    f"columns: expected distinct names, got {', '.join(names)}; pass other names with --text-column,"
                    " --aspect-column, --label-column, --id-column or --target-column"
                )
        if self.delimiter != AUTO and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            expected = "auto or one character, except a quotation mark or line end"
            raise InputError(f"delimiter: expected {expected}, got {self.delimiter!r}")
        if self.quoting not in QUOTING:
            raise InputError(f"quoting: expected one of {', '.join(QUOTING)}, got {self.quoting!r}")
        try:
            codec = codecs.lookup(self.encoding)
            "".encode(self.encoding)  # fails for codecs such as base64 and rot13
        except (LookupError, ValueError, TypeError):
            expected = "expected the name of an encoding such as utf-8, cp1252, latin-1 or utf-16"
            raise InputError(f"encoding: {expected}, got {self.encoding!r}") from None
        if codec.name in ("utf-8", "utf-8-sig"):
            object.__setattr__(self, "encoding", UTF_8)

    def fields(self) -> dict[str, str]:
        """Returns the column of each field of a row; the text is the field `sentence`."""
        named = {field: getattr(self, field) for field in ("aspect", "label", "id", "target")}
        return {"sentence": self.text} | {field: name for field, name in named.items() if name is not None}

    def required(self) -> list[str]:
        """Returns the columns that a file must have."""
        if not self.wide:
            return [*self.fields().values()]
        optional = (self.id, self.target, *(self.aspect_columns or ()))
        return [self.text, *(name for name in optional if name is not None)]

    @property
    def split(self) -> str | None:
        """The name of the split column, SPLIT_COLUMN; None if `label` is None or another field has this name."""
        others = [*self.fields().values(), *(self.aspect_columns or ())]
        return None if self.label is None or SPLIT_COLUMN in others else SPLIT_COLUMN


def shown_delimiter(delimiter: str) -> str:
    """Returns the delimiter as users type it in a shell."""
    return "\\t" if delimiter == "\t" else delimiter


def wide_aspects(names: Iterable[str], columns: Columns) -> list[str]:
    """Returns `columns.aspect_columns` if given; else the named columns except text, id, target and `split`."""
    if columns.aspect_columns is not None:
        return list(columns.aspect_columns)
    others = (*columns.required(), columns.split)
    # `distinct_names` names unnamed columns "", " (2)" and so on.
    return [name for name in names if name.strip() and not name.startswith(" (") and name not in others]


def distinct_names(names: list[str]) -> list[str]:
    """Returns the column names, with a number appended to repeated names, so that no column hides another."""
    found: list[str] = []
    for name in names:
        numbers = itertools.count(2)
        given = name
        while given in found:
            given = f"{name} ({next(numbers)})"
        found.append(given)
    return found


def check_names(path: Path, line: int, names: list[str], columns: Columns) -> None:
    """Raises DataError unless a header, or the keys of a JSON object, has each required column once."""
    required = columns.required()
    missing = [name for name in required if name not in names]
    twice = ", ".join(repr(name) for name in required if names.count(name) > 1)
    has = ", ".join(map(repr, names)) or "nothing"
    if missing:
        reason = f"{', '.join(map(repr, missing))}, got {has}; {_advice(path, names, columns)}"
    elif twice:
        reason = f"each name once, got {twice} more than once; rename or delete a column"
    elif columns.wide and not wide_aspects(names, columns):
        reason = f"a column for each aspect, got only {has}; add aspect columns, or omit --wide"
    else:
        return
    raise DataError(path, line, f"columns: expected {reason}")


def _advice(path: Path, names: list[str], columns: Columns) -> str:
    """Returns advice for an error about missing columns."""
    other = next((mark for mark in DELIMITERS if len(names) == 1 and mark in names[0]), None)
    if other is not None:
        return f"pass the delimiter with --delimiter '{shown_delimiter(other)}'"
    flags = {
        "--text-column": [columns.text],
        "--aspect-column": [] if columns.wide else [columns.aspect],
        "--label-column": [] if columns.wide else [columns.label],
        "--aspect-columns": columns.aspect_columns or [],
        "--id-column": [columns.id],
        "--target-column": [columns.target],
    }
    missing = [flag for flag, given in flags.items() if any(name not in (None, *names) for name in given)]
    advice = f"pass {'other names' if missing[1:] else 'another name'} with {_listed(missing)}"
    if {"--aspect-column", "--label-column"} <= {*missing}:
        wide = _listed([flag for flag in missing if flag == "--text-column"] + ["--wide"])
        advice = f"for a table with a column for each aspect, pass {wide}; otherwise {advice}"
    if "--aspect-columns" in missing:
        advice += "; or, for a table with a row for each aspect, omit --aspect-columns and set wide=false (--set)"
    if path.suffix.lower() not in (".json", ".jsonl", ".parquet") and not set(columns.required()) & set(names):
        advice = f"the first row must be the header, with the names of the columns; {advice}"
    return advice


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def rows_of_table(table: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Returns a row for each text and aspect: `columns.fields()`, and `split` if the table has it.

    A row of a wide table without a text becomes only one row, so that it is reported once.
    """
    import numpy as np

    fields = columns.fields() | ({"split": SPLIT_COLUMN} if columns.split in table else {})
    if columns.wide:
        aspects = wide_aspects(table.columns, columns)
        fields = {field: name for field, name in fields.items() if field not in ("aspect", "label")}
    rows = table[[*fields.values()]].set_axis([*fields], axis=1)
    if columns.wide:
        rows = rows.iloc[np.repeat(np.arange(len(table)), len(aspects))]
        rows = rows.assign(aspect=aspects * len(table), label=table[aspects].to_numpy().ravel())
        rows = rows[(rows["sentence"] != "") | (np.arange(len(rows)) % max(1, len(aspects)) == 0)]
    return rows.assign(split=rows["split"].str.strip().str.lower()) if "split" in rows else rows


def without_empty_cells(
    rows: pd.DataFrame, source: Source, columns: Columns, skipped: RowProblems | None = None
) -> pd.DataFrame:
    """Returns the rows, with line numbers as index, without those that have an empty cell in a field.

    `skipped` counts the latter; if it is None, they raise an error. It is also an error if no row is left.
    """
    import numpy as np

    problems, fields = skipped or RowProblems(source), columns.fields()
    empty = np.column_stack([(rows[field] == "").to_numpy(bool) for field in fields])
    bad = empty.any(axis=1)
    for place in np.flatnonzero(bad):
        field = [*fields][int(empty[place].argmax())]
        # In a wide table, the column of a label has the name of the aspect.
        shown = rows["aspect"].iloc[place] if columns.wide and field == "label" else fields[field]
        problems.add(int(rows.index[place]), f"has an empty {shown!r}")
    if skipped is None and problems.total:
        advice = "fill in empty cells" + (" (the label 'none' means no opinion)" if columns.label is not None else "")
        way_out = "--skip-empty" if source.index is None else "on_empty='skip'"
        raise problems.error(f"{advice}, or pass {way_out} to leave such rows out")
    if problems.total and bad.all():
        reason = f"expected at least one row without an empty cell, got none ({problems.summary()})"
        raise source.error(None, reason)
    return rows[~bad] if problems.total else rows


def with_ids(rows: pd.DataFrame, prefix: str = "") -> pd.DataFrame:
    """Returns rows without empty cells with the columns that `labelled_examples` reads; `prefix` begins each id."""
    frame = rows.reset_index(names="line")
    if "target" not in frame:
        frame["target"] = ""
    if "id" not in frame:
        frame["id"] = _ids(frame)
    if prefix:
        frame["id"] = prefix + frame["id"]
    return frame


def _ids(frame: pd.DataFrame) -> pd.api.extensions.ExtensionArray:
    """Returns an id for each row: "line N", where N is the first line of this copy of its text and target."""
    import numpy as np
    import pandas as pd

    texts = frame.groupby(["sentence", "target"], sort=False).ngroup()
    copies = frame.groupby([texts, frame["aspect"]], sort=False).cumcount()
    numbers, _ = pd.factorize(texts * len(frame) + copies)
    begins = pd.Series(frame["line"].to_numpy()[np.unique(numbers, return_index=True)[1]])
    same = begins.groupby(begins).cumcount()  # items of a JSON array can begin on one line
    names = "line " + begins.astype(str) + np.where(same, " (" + (same + 1).astype(str) + ")", "")
    return names.array.take(numbers)


def discover(
    rows: pd.DataFrame,
    source: Source,
    columns: Columns,
    *,
    aspects: tuple[str, ...] | None,
    labels: tuple[str, ...] | None,
    absent_label: str | None,
) -> Task:
    """Returns the task of training rows, which have the columns aspect and label.

    Without `aspects` or `labels`, the task has the names in the rows, in natural order (2 before 10). `absent_label`
    means "no opinion" and gets index 0; by default it is "none", or the first label that differs from it only in case
    or surrounding spaces.
    """
    names = [*(labels or ())]
    if aspects is None or labels is None:
        if rows.empty:
            raise source.error(None, "has no rows")
        pairs = rows[["aspect", "label"]].drop_duplicates()
        if columns.wide and columns.aspect_columns is None:
            _check_aspects(pairs, source)
        if aspects is None:
            aspects = tuple(sorted(set(pairs["aspect"]), key=natural_key))
        if labels is None:
            names = sorted(set(pairs["label"]), key=natural_key)
            if len(names) < 2:
                reason = f"labels: expected at least 2, got {len(names)} ({', '.join(names)})"
                raise source.error(None, f"{reason}; add training rows with another label")
    absent = absent_label
    if absent is None:
        candidates = [name for name in names if name.strip().casefold() == "none"]
        absent = min(candidates, key=lambda name: name != "none", default=None)
    elif absent not in names:
        raise InputError(f"absent_label: expected one of {', '.join(names)}, got {absent!r}")
    if absent is not None:
        names = [absent, *(name for name in names if name != absent)]
    return Task("own", tuple(names), aspects, has_absent=absent is not None, has_targets=columns.target is not None)


def _check_aspects(pairs: pd.DataFrame, source: Source) -> None:
    """Raises InputError for a column of a wide table with many labels, or with none of the other columns' labels."""
    by_aspect = {aspect: set(found) for aspect, found in pairs.groupby("aspect", sort=False)["label"]}
    for aspect, values in by_aspect.items():
        if len(values) > MOST_LABELS:
            reason = f"column {aspect!r} has more than {MOST_LABELS} different values"
            raise source.error(None, f"{reason}; {NOT_WIDE}")
    for aspect, values in by_aspect.items():
        others = set().union(*(found for name, found in by_aspect.items() if name != aspect))
        if others and not values & others:
            shown = ", ".join(sorted(values, key=natural_key)[:3])
            reason = f"column {aspect!r} ({shown}) shares no label with the other columns"
            raise source.error(None, f"{reason}; {NOT_WIDE}")


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Returns a sort key that orders numbers inside texts by value: 2 before 10; keys of different texts differ."""
    key = []
    for part in re.split(r"([0-9]+)", text):
        if part and part[0] in "0123456789":
            digits = part.lstrip("0")
            key.append((0, len(digits), digits))  # no int(), which Python limits to a few thousand digits
        elif part:
            key.append((1, 0, part))
    return [*key, (-1, 0, text)]  # 01 before 1
