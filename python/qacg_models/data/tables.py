"""Readers of Excel workbooks and Parquet files."""

import datetime
import itertools
import math
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from qacg_models.data.example import DataError, ReadingWarning
from qacg_models.errors import InputError
from qacg_models.utils.quiet import quiet

_DAMAGED = "is damaged, or is not {}; open it in the program that wrote it and save it as CSV"
# How a workbook writes a UTF-16 code unit that XML cannot contain; `_x005F_` is the underscore of a text `_x000D_`.
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")
_STRICT = b"http://purl.oclc.org/ooxml/"  # namespaces of Strict Open XML


def excel_rows(path: Path) -> Iterator[tuple[int, list[object]]]:
    """Yields the number (from 1) and the cells of every row of the first sheet; an empty cell is None.

    The cell of a formula has the value that the file stores; NaN if this is an error such as #N/A. Dates and times are
    yielded as text, whole numbers as int (1.0 as 1).

    Raises:
        InputError: openpyxl is not installed.
        DataError: the file cannot be read, or is not an Excel workbook.
    """
    try:
        import openpyxl
    except ImportError:
        raise InputError(f"{path}: .xlsx requires openpyxl: pip install openpyxl, or save the file as CSV") from None
    _check_file(path)
    number = 0
    try:
        _check_not_strict(path)
        with quiet():  # openpyxl warns of styles and extensions that it does not read
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        with closing(book):
            if not book.worksheets:
                raise DataError(path, None, "expected a worksheet, got a workbook without one")
            sheet, *others = book.worksheets
            _warn_of_sheets(path, sheet, others)
            sheet.reset_dimensions()  # some programs write wrong dimensions
            rows = sheet.iter_rows()
            for number in itertools.count(1):
                with quiet():
                    cells = next(rows, None)
                if cells is None:
                    return
                yield number, [_excel_cell(cell) for cell in cells]
    except (DataError, MemoryError):
        raise
    except Exception as error:  # zipfile, XML parsers, KeyError: a damaged workbook can cause any error
        reason = _DAMAGED.format("an Excel workbook (.xlsx)")
        raise DataError(path, number or None, f"{reason} ({type(error).__name__}: {error})") from None


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yields the number (from 1) and the fields of every row, with one batch of rows in memory at a time.

    Dates and times are yielded as text, whole numbers as int (1.0 as 1).

    Raises:
        DataError: the file cannot be read, or is not Parquet.
    """
    import pyarrow as pa
    from pyarrow import parquet

    _check_file(path)
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {name: plain_cell(value) for name, value in row.items()}
    except (pa.ArrowException, OSError) as error:
        raise DataError(path, number or None, f"{_DAMAGED.format('a Parquet file')} ({error})") from None


def _warn_of_sheets(path: Path, first, others: list) -> None:
    """Warns of the sheets other than the first one that have rows."""
    with quiet():
        names = [repr(one.title) for one in others if next(one.iter_rows(), None) is not None]
    if names:
        message = f"{path}: only the first sheet, {first.title!r}, is read; not {', '.join(names)}"
        warnings.warn(message, ReadingWarning, stacklevel=2)


def _check_not_strict(path: Path) -> None:
    """Raises DataError for a workbook in Strict Open XML, whose sheets openpyxl does not find."""
    with zipfile.ZipFile(path) as parts:
        if "xl/workbook.xml" in parts.namelist() and _STRICT in parts.read("xl/workbook.xml"):
            reason = "expected an Excel workbook (.xlsx), got a workbook in the form Strict Open XML"
            raise DataError(path, None, f"{reason}; save it as Excel Workbook (.xlsx)")


def _excel_cell(cell) -> object:
    """Returns the value of a cell of openpyxl: NaN for an error, and texts without the escapes of a workbook."""
    if cell.data_type == "e":
        return math.nan
    if isinstance(cell.value, str) and "_x" in cell.value:
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), cell.value)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # joins surrogate pairs
    return plain_cell(cell.value)


def _check_file(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise DataError(path, None, f"cannot be read ({error.strerror})") from None


def plain_cell(value: object) -> object:
    """Returns a date or time as text, a float of integer value as int, and any other value unchanged."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return str(value) if isinstance(value, datetime.date | datetime.time) else value
