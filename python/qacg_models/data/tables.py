"""Tables of your own as DataFrames of texts: CSV, TSV, TXT, JSON, JSONL, Excel and Parquet."""

from __future__ import annotations

import datetime
import io
import itertools
import re
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.data.columns import SHEET_COLUMNS, Columns, check_names, distinct_names, wide_aspects
from qacg_models.data.csv_tables import csv_table
from qacg_models.data.example import DataError, ReadingWarning
from qacg_models.data.frames import cell_text, text_table
from qacg_models.data.text_files import json_values, numbered_lines, read_bytes
from qacg_models.errors import InputError
from qacg_models.utils.plain_text import unescape_formula
from qacg_models.utils.quiet import quiet

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("txt", "csv", "tsv", "json", "jsonl", "xlsx", "parquet")
BINARY = ("xlsx", "parquet")
WITH_HEADER = ("csv", "tsv", "xlsx")
WITH_COLUMNS = (*WITH_HEADER, "parquet")  # the formats of which predictions keep all columns
_IMPORT_ID = re.compile(r'\s*\{\s*"ImportId"\s*:')  # a cell of the third header row of Qualtrics
_DAMAGED = "is damaged, or is not {}; open it in the program that wrote it and save it as CSV"
# How a workbook writes a UTF-16 code unit that XML cannot contain; `_x005F_` is the underscore of a text `_x000D_`.
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")
_STRICT = b"http://purl.oclc.org/ooxml/"  # namespaces of Strict Open XML


def read_table(path: Path, columns: Columns, data_format: str | None = None) -> pd.DataFrame:
    """Returns a table with all columns of a file, in which each cell is a text.

    Missing and blank cells are empty texts. Numbers and booleans are written as `cell_text` does. Blank lines, and rows
    of CSV, TSV and Excel with blank cells only, are no rows.

    Args:
        path: the file, or `text_files.STANDARD_INPUT`.
        columns: names of the columns that the file must have, and how its text is stored.
        data_format: one of FORMATS; a txt file has a text on each line. None: the suffix of `path`.

    Returns:
        A DataFrame whose index `line` is the number of the line on which a row begins (of the row, for Excel, Parquet
        and a JSON array on one line).

    Warns:
        ReadingWarning: header rows of a survey tool are left out, sheets of a workbook are not read, records have fewer
            fields than the header, or lines in quotation marks look like rows.

    Raises:
        DataError: the file cannot be read, or violates its format; the message names the file and, if known, the line.
        InputError: the file is an Excel workbook, and openpyxl is not installed.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "reviews.csv")
        ...     _ = path.write_text('id,text\\n007,"fine,\\nreally"\\n008,slow\\n')
        ...     table = read_table(path, Columns(aspect=None, label=None))
        >>> table.index.tolist(), table["id"].tolist()
        ([2, 4], ['007', '008'])
    """
    data_format = data_format or path.suffix.lower().removeprefix(".")
    readers = {"csv": csv_table, "tsv": csv_table, "xlsx": _excel_table, "parquet": _parquet_table}
    readers |= {"json": _json_table, "jsonl": _jsonl_table, "txt": _txt_table}
    if data_format not in readers:
        reason = f"suffix: expected one of .{', .'.join(FORMATS)}, got {path.suffix!r}"
        raise DataError(path, None, f"{reason}; save the table in one of these formats")
    table = readers[data_format](path, columns)
    if data_format in WITH_HEADER:
        table = _without_survey_header(path, table)
    if data_format in WITH_COLUMNS and set(table.columns) >= SHEET_COLUMNS:
        table = table.map(unescape_formula)
    return table


def _txt_table(path: Path, columns: Columns) -> pd.DataFrame:
    rows = [(line, text) for line, text in numbered_lines(path, columns.encoding) if text.strip()]
    return text_table({columns.text: [text for _, text in rows]}, [line for line, _ in rows])


def _excel_table(path: Path, columns: Columns) -> pd.DataFrame:
    """Returns the first sheet; the cell of a formula has the value that the file stores, empty if it is an error."""
    import pandas as pd

    try:
        import openpyxl  # noqa: F401
    except ImportError:
        raise InputError(f"{path}: .xlsx requires openpyxl: pip install openpyxl, or save the file as CSV") from None
    content = io.BytesIO(read_bytes(path))
    try:
        with zipfile.ZipFile(content) as parts:  # openpyxl does not find the sheets of Strict Open XML
            if "xl/workbook.xml" in parts.namelist() and _STRICT in parts.read("xl/workbook.xml"):
                reason = "expected an Excel workbook (.xlsx), got a workbook in the form Strict Open XML"
                raise DataError(path, None, f"{reason}; save it as Excel Workbook (.xlsx)")
        # openpyxl warns of styles and extensions that it does not read.
        with quiet(), pd.ExcelFile(content, engine="openpyxl") as book:
            sheets = book.book.worksheets
            if not sheets:
                raise DataError(path, None, "expected a worksheet, got a workbook without one")
            unread = [repr(one.title) for one in sheets[1:] if next(one.iter_rows(), None) is not None]
            cells = book.parse(sheets[0].title, header=None, dtype=object, na_filter=False)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # zipfile, XML parsers, KeyError: a damaged workbook can cause any error
        reason = _DAMAGED.format("an Excel workbook (.xlsx)")
        raise DataError(path, None, f"{reason} ({type(error).__name__}: {error})") from None
    if unread:
        message = f"{path}: only the first sheet, {sheets[0].title!r}, is read; not {', '.join(unread)}"
        warnings.warn(message, ReadingWarning, stacklevel=2)
    rows = {line + 1: row for line, *row in cells.itertuples(name=None)}
    widths = {line: _filled_width(row) for line, row in rows.items()}
    lines = [line for line, width in widths.items() if width]
    header: list[str] = []
    if lines:
        header = [_excel_text(name).strip() for name in rows[lines[0]][: widths[lines[0]]]]
        check_names(path, lines[0], header, columns)
    for line in lines[1:]:
        if widths[line] > len(header):
            expected = f"expected {len(header)} cells as in the header, got {widths[line]}"
            raise DataError(path, line, f"{expected}; name every column in the header")
    names = distinct_names(header or columns.required())
    texts = {name: [_excel_text(rows[line][place]) for line in lines[1:]] for place, name in enumerate(names)}
    return text_table(texts, lines[1:])


def _excel_text(cell: object) -> str:
    """Returns the text of a cell, without the escapes of a workbook."""
    if not isinstance(cell, str) or "_x" not in cell:
        return _plain_text(cell)
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), cell)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # joins surrogate pairs


def _filled_width(cells: list[object]) -> int:
    """Returns the number of cells up to the last one that is not blank; NaN is the cell of an error such as #N/A."""
    filled = (place for place, cell in enumerate(cells, 1) if not (isinstance(cell, str) and not cell.strip()))
    return max(filled, default=0)


def _parquet_table(path: Path, columns: Columns) -> pd.DataFrame:
    import pyarrow as pa
    from pyarrow import parquet

    content = io.BytesIO(read_bytes(path))
    try:
        found = parquet.read_table(content)
    except (pa.ArrowException, OSError) as error:
        raise DataError(path, None, f"{_DAMAGED.format('a Parquet file')} ({error})") from None
    if len(found):
        check_names(path, 1, found.column_names, columns)
    values = {name: column.to_pylist() for name, column in zip(found.column_names, found.columns)}
    return _checked_texts(path, values, range(1, len(found) + 1), columns)


def _jsonl_table(path: Path, columns: Columns) -> pd.DataFrame:
    return _json_table(path, columns, lines=True)


def _json_table(path: Path, columns: Columns, lines: bool = False) -> pd.DataFrame:
    numbers, records = [], []
    for line, record in json_values(path, columns.encoding, lines):
        if not isinstance(record, dict):
            expected = f"expected an object with the keys {', '.join(columns.required())}"
            raise DataError(path, line, f"{expected}, got the type {type(record).__name__}")
        check_names(path, line, list(record), columns)
        numbers.append(line)
        records.append(record)
    names = dict.fromkeys(itertools.chain.from_iterable(records))
    return _checked_texts(path, {name: [one.get(name) for one in records] for name in names}, numbers, columns)


def _checked_texts(path: Path, values: dict[str, list], lines: Sequence[int], columns: Columns) -> pd.DataFrame:
    """Returns a table of texts; raises DataError if a cell of a column to read is no text, number, boolean or date."""
    read = {*columns.required(), columns.split, *(wide_aspects(values, columns) if columns.wide else ())}
    found: dict[str, list[str]] = {name: [] for name in values or columns.required()}
    for name, cells in values.items():
        for line, cell in zip(lines, cells):
            try:
                is_date = isinstance(cell, datetime.date | datetime.time)
                found[name].append(cell_text(str(cell) if is_date else cell) if name in read else _plain_text(cell))
            except TypeError as error:
                raise DataError(path, line, f"{name!r}: {error}") from None
    return text_table(found, lines)


def _plain_text(value: object) -> str:
    """Returns a cell of any type as text."""
    try:
        return cell_text(value)
    except TypeError:
        return str(value)


def _without_survey_header(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows without those that Qualtrics writes below the header: question texts, then import ids."""
    for place, row in enumerate(table.head(2).to_numpy().tolist()):
        if all(_IMPORT_ID.match(cell) for cell in row if cell) and any(row):
            numbers = " and ".join(map(str, table.index[: place + 1]))
            which = f"lines {numbers}, which are header rows" if place else f"line {numbers}, which is a header row"
            warnings.warn(f"{path}: left out {which} of a survey tool (ImportId)", ReadingWarning, stacklevel=2)
            return table.iloc[place + 1 :]
    return table
