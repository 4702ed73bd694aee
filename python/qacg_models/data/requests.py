"""Texts to predict, read from a text file or a table."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data.columns import Columns, without_empty_cells
from qacg_models.data.example import DataError, RowProblems, Source
from qacg_models.data.tables import BINARY, FORMATS, WITH_COLUMNS, read_table
from qacg_models.data.text_files import STANDARD_INPUT, check_uncompressed
from qacg_models.errors import InputError


@dataclass(frozen=True, slots=True)
class Request:
    """A text to predict.

    Attributes:
        line: number of the line or row, in the file, on which the text begins.
        text: the text.
        id, target, aspect: the cells of these columns; None if the column is not read.
        others: the cells of columns that `Columns` does not name, by column name; None if they are not requested or
            there are none.
        skipped: whether a cell is empty, so that the row gets no prediction.
    """

    line: int
    text: str
    id: str | None = None
    target: str | None = None
    aspect: str | None = None
    others: dict[str, str] | None = None
    skipped: bool = False


def format_of(path: Path, data_format: str = "auto") -> str:
    """Returns the format of a file, one of FORMATS, and checks that the file can be opened.

    Args:
        path: the file, or `lines.STANDARD_INPUT`; a named pipe is not opened.
        data_format: one of FORMATS; "auto": the suffix of `path`.

    Raises:
        DataError: the file cannot be opened or is compressed, or `data_format` (the suffix, if "auto") is not in
            FORMATS.
        InputError: standard input has a binary format.
    """
    check_uncompressed(path)
    if data_format == "auto":
        data_format = path.suffix.lower().removeprefix(".")
    if data_format not in FORMATS:
        known = ",".join(FORMATS)
        reason = f"expected a suffix of a known format, got {data_format!r}"
        advice = "write the texts to a CSV with the column text" if data_format == "xml" else ""
        raise DataError(path, None, f"{reason}; {advice or f'select one with --input-format {{{known}}}'}")
    if path == STANDARD_INPUT and data_format in BINARY:
        raise InputError(f"input: expected a file for {data_format}, got standard input; pass the path of a file")
    if path != STANDARD_INPUT and not path.is_fifo():  # a pipe can be opened only once
        try:
            path.open("rb").close()
        except OSError as error:
            raise DataError(path, None, f"cannot be read ({error.strerror})") from None
    return data_format


def read_requests(
    path: Path,
    data_format: str,
    columns: Columns,
    others: bool = False,
    skipped: RowProblems | None = None,
) -> Iterator[Request]:
    """Yields the texts of a file; blank lines are ignored.

    Args:
        path: the file, or `lines.STANDARD_INPUT`.
        data_format: one of FORMATS; a txt file has one text per line.
        columns: names of the columns of a table.
        others: also yield the columns of a table that `columns` does not name.
        skipped: counter of rows with an empty cell, which are yielded with `skipped` set to True; None: such rows
            raise DataError.

    Raises:
        DataError: the file cannot be read, violates its format, has no texts, or has an empty cell in every row. If
            `skipped` is None, an empty cell in any row raises DataError.
        InputError: the file is an Excel workbook, and openpyxl is not installed.
    """
    table = read_table(path, columns, data_format)
    if table.empty:
        raise DataError(path, None, "has no texts")
    names = columns.names()
    without_empty_cells(table, Source(path), columns, skipped)
    more = [name for name in table.columns if name not in names] if others and data_format in WITH_COLUMNS else []
    for line, *cells in table.itertuples(name=None):
        row = dict(zip(table.columns, cells))
        is_whole = all([row[name] for name in names])
        own = (None if name is None else row[name] for name in (columns.id, columns.target, columns.aspect))
        yield Request(line, row[columns.text], *own, {name: row[name] for name in more} or None, not is_whole)


def check_requests(requests: Iterable[Request], path: Path, check: Callable[[Request], object]) -> list[Request]:
    """Reads all texts, checks them, and returns them.

    Args:
        requests: the texts, from `read_requests`.
        path: path of their file, for errors.
        check: function that raises InputError for a text that cannot be predicted; not called for skipped texts.

    Raises:
        DataError: `check` raises InputError for a text; the message lists all such texts. Also the errors of
            `read_requests`.
    """
    problems, found = RowProblems(path), []
    for request in requests:
        found.append(request)
        if not request.skipped:
            try:
                check(request)
            except InputError as error:
                problems.add(request.line, str(error))
    if problems.total:
        raise problems.error("correct or remove these rows")
    return found
