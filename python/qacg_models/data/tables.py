"""Readers of Excel workbooks and Parquet files."""

import datetime
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from qacg_models.data.example import DataError
from qacg_models.errors import InputError

_DAMAGED = "is damaged, or is not {}; open it in the program that wrote it and save it as CSV"


def excel_rows(path: Path) -> Iterator[tuple[int, list[object]]]:
    """Yields the number (from 1) and the cells of every row of the first sheet; an empty cell is None.

    The cell of a formula has the value that the file stores. Dates and times are yielded as text, whole numbers as int
    (1.0 as 1).

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
        with closing(openpyxl.load_workbook(path, read_only=True, data_only=True)) as book:
            if not book.worksheets:
                raise DataError(path, None, "expected a worksheet, got a workbook without one")
            sheet = book.worksheets[0]
            sheet.reset_dimensions()  # some programs write wrong dimensions
            for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
                yield number, [plain_cell(cell) for cell in cells]
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
