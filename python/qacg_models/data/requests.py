"""Texts to predict, read one at a time: lines of a text file, or rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data.columns import TABLES, Columns, records
from qacg_models.data.example import DataError
from qacg_models.data.lines import STANDARD_INPUT, numbered_lines, open_file
from qacg_models.data.row_problems import RowProblems, filled
from qacg_models.errors import InputError

FORMATS = ("txt", "csv", "tsv", "jsonl", "xlsx", "parquet")
BINARY = ("xlsx", "parquet")
WITH_COLUMNS = tuple(suffix.removeprefix(".") for suffix in TABLES)


@dataclass(frozen=True, slots=True)
class Request:
    """One text.

    Attributes:
        line: of the file, where the text begins.
        id, target, aspect: None where the file has no such column.
        others: the other columns of one of WITH_COLUMNS, by name, where they are asked for.
        skipped: whether one of the fields above is empty, so that the text is not asked about.
    """

    line: int
    text: str
    id: str | None = None
    target: str | None = None
    aspect: str | None = None
    others: dict[str, str] | None = None
    skipped: bool = False


def format_of(path: Path, data_format: str = "auto") -> str:
    """The format of a file, one of FORMATS.

    Raises:
        DataError: no such file, or "auto" and a name that does not say.
    """
    if data_format == "auto":
        data_format = path.suffix.lower().removeprefix(".")
    if data_format not in FORMATS:
        known = ",".join(FORMATS)
        raise DataError(path, None, f"has no suffix of a known format; say which by --input-format {{{known}}}")
    if path == STANDARD_INPUT and data_format in BINARY:
        raise InputError(f"input: expected a file for {data_format}, got standard input")
    if not path.is_fifo():  # a pipe can be opened only once
        open_file(path).close()
    return data_format


def read_requests(
    path: Path,
    data_format: str,
    columns: Columns,
    others: bool = False,
    skipped: RowProblems | None = None,
) -> Iterator[Request]:
    """The texts of a file, one at a time; blank lines are passed over.

    Args:
        path: `lines.STANDARD_INPUT` for standard input.
        data_format: one of FORMATS; a text file has a text on every line, and no columns.
        others: of one of WITH_COLUMNS, return the other columns as well.
        skipped: counts the rows of a table that have an empty field, which are marked as skipped; None raises instead.

    Raises:
        DataError: as for `columns.records`, rows with an empty field, all listed, or a file without texts.
    """
    request = None
    if data_format == "txt":
        for line, text in numbered_lines(path, columns.encoding):
            if text.strip():
                request = Request(line, text)
                yield request
    else:
        names = columns.names()
        rows = records(path, columns, f".{data_format}", others)
        for line, record in filled(rows, path, columns, skipped, keep=True):
            own = (record[name] if name else None for name in (columns.id, columns.target, columns.aspect))
            more = {name: value for name, value in record.items() if name not in names} if others else None
            empty = not all([record[name] for name in names])
            request = Request(line, record[columns.text], *own, more, empty)
            yield request
    if request is None:
        raise DataError(path, None, "has no texts")


def check_requests(requests: Iterable[Request], path: Path, check: Callable[[Request], None]) -> int:
    """Reads all texts of a file, so that a row that cannot be used is known before any is predicted.

    Args:
        check: raises InputError for a text that cannot be asked about; not called for skipped ones.

    Returns:
        How many texts there are.

    Raises:
        DataError: as for `read_requests`, or listing the texts that did not pass `check`.
    """
    problems, count = RowProblems(path), 0
    for request in requests:
        count += 1
        if not request.skipped:
            try:
                check(request)
            except InputError as error:
                problems.add(request.line, str(error))
    if problems.total:
        raise problems.error("correct these rows, or leave them out")
    return count
