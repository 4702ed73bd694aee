"""Records of a CSV: an error where quotation marks join rows or line ends split a row, a warning about short rows."""

import csv
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.arrow_rows import blocks
from qacg_models.data.delimiters import AUTO, reader_quoting, shown_delimiter
from qacg_models.data.example import DataError, ReadingWarning
from qacg_models.data.row_problems import RowProblems
from qacg_models.utils.cells import counted

# Excel divides a sheet into blocks of 16 rows. It omits the delimiters at the ends of the rows of a block if all cells
# there are empty.
EXCEL_BLOCK = 16


def csv_rows(
    path: Path, lines: Iterator[str], delimiter: str, before: int, quoting: str
) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the fields of every record of a CSV, blank records included.

    If `quoting` is "auto", records of several lines are counted: those most of whose lines look like rows, and those
    that are read right only with quotation marks. In a table of one column, every line looks like a row.

    Args:
        path: the file, for messages.
        lines: its lines, with their line ends.
        delimiter: the delimiter.
        before: number of lines of the file that come before `lines`.
        quoting: one of `delimiters.QUOTING`.

    Warns:
        ReadingWarning: lines of a record look like rows, but there is only one column, or most such records need their
            quotation marks.

    Raises:
        DataError: the file is not CSV with this delimiter; the lines of the header look like rows; or, at the end of
            the file, more records have lines that look like rows than need their quotation marks.
    """
    taken: list[str] = []  # lines of the current record

    def take() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line

    reader = csv.reader(take(), delimiter=delimiter, quoting=reader_quoting(quoting), strict=True)
    start, width, spaced = before + 1, None, False
    joined: list[tuple[int, int]] = []  # records whose lines look like rows
    needed = 0  # records that need their quotation marks
    try:
        for fields in reader:
            line, start = start, before + reader.line_num + 1
            marks = taken[0].count(delimiter) if width is None else width
            if len(taken) > 1 and (width == 0 or _joins_rows(taken, delimiter, marks, spaced)):
                joined.append((line, start - 1))
            else:
                needed += len(taken) > 1 or taken[0].count(delimiter) >= len(fields)
            if joined and width is None and quoting == AUTO:
                raise _joined_rows_error(path, *joined[0])
            if width is None and any(field.strip() for field in fields):
                width, spaced = len(fields) - 1, any(f"{delimiter} " in one for one in taken)
            taken.clear()
            yield line, fields
    except csv.Error as error:
        raise _csv_error(path, start, delimiter, str(error)) from None
    if joined and quoting == AUTO:
        first, last = joined[0]
        if width and len(joined) > needed:
            raise _joined_rows_error(path, first, last)
        warnings.warn(
            f"{path}: {counted(len(joined), 'text')} in quotation marks on several lines, the first on lines {first} to"
            f" {last}; if quotation marks are ordinary characters, pass --quoting none",
            ReadingWarning,
            stacklevel=2,
        )


def _joined_rows_error(path: Path, first: int, last: int) -> DataError:
    return DataError(
        path,
        first,
        f"expected one row in a field in quotation marks, got lines {first} to {last}, most of which have as many"
        " delimiters as the header; pass --quoting none if quotation marks are ordinary characters, or"
        " --quoting minimal if they enclose a text of several lines",
    )


def _csv_error(path: Path, line: int, delimiter: str, reason: str) -> DataError:
    """Returns the error for an error message of the csv module about the record that begins on `line`."""
    if "field limit" in reason:
        reason = (
            f"expected fields of at most {csv.field_size_limit():,} characters, got a longer field or a quotation mark"
            " that is not closed; close the quotation mark, pass --quoting none if quotation marks are ordinary"
            " characters, shorten the text, or write the data as JSONL"
        )
    elif "new-line character" in reason:
        expected = "expected line feeds as line ends, got a carriage return alone"
        reason = f"{expected}; save the file with the line ends of Unix or Windows"
    else:
        reason = (
            f"is not CSV with the delimiter '{shown_delimiter(delimiter)}' ({reason}); double the quotation marks"
            " inside a quoted field, pass --quoting none if quotation marks are ordinary characters, or pass another"
            " delimiter with --delimiter"
        )
    return DataError(path, line, reason)


def fitting_rows(path: Path, rows: Iterator[tuple[int, list[str]]], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the records of `csv_rows` that are not blank, the header first.

    Args:
        path: the file, for messages.
        rows: the records.
        delimiter: the delimiter.

    Warns:
        ReadingWarning: records have fewer fields than the header.

    Raises:
        DataError: records have more fields than the header, or one of several, or are the parts of a record that a line
            end splits: consecutive records with fewer fields, which add up to those of the header. The message lists
            all of them.
    """
    marked = _marked_rows(rows)
    line, header, _ = next(marked, (0, [], False))
    if header:
        yield line, header
    named = _named(header)
    bad, short = RowProblems(path), RowProblems(path)
    run: list[tuple[int, int]] = []  # line and number of fields of consecutive short records
    try:
        for line, fields, omitted in marked:
            count = len(fields)
            is_omitted = omitted and not short.total  # Excel itself writes no other short record
            run = [*run[-len(header) :], (line, count)] if count < len(header) and not is_omitted else []
            parts = _parts(run, named, len(header))
            if parts or not min(2, len(header)) <= count <= len(header):
                for place, found in parts or [(line, count)]:
                    bad.add(place, f"expected {len(header)} fields as in the header, got {found}")
                run = []
            elif not bad.total:
                if count < named and not is_omitted:
                    short.add(line, "has fewer fields than the header")
                yield line, fields
    except DataError:  # of a later line
        if not bad.total:
            raise
    if bad.total:
        shown = shown_delimiter(delimiter)
        quoted = f"put fields that contain '{shown}' or a line end into quotation marks"
        raise bad.error(f"{quoted}, and separate fields by '{shown}'")
    if short.total:
        rows_with = counted(short.total, "row has", "rows have")
        message = f"{path}: {rows_with} fewer fields than the header ({short.lines()}); missing ones are read as empty"
        warnings.warn(message, ReadingWarning, stacklevel=2)


def _parts(run: list[tuple[int, int]], least: int, most: int) -> list[tuple[int, int]]:
    """Returns the last records of a run if they can be the parts of one record that line ends split; else none.

    They are at least two, their fields add up to `least` to `most`, and one of them has fewer than `least`.
    """
    total, shortest = 1, most
    for number, (_, count) in enumerate(reversed(run), 1):
        total, shortest = total + count - 1, min(shortest, count)  # a split field has a part in both records
        if number > 1 and shortest < least <= total <= most:
            return run[-number:]
    return []


def _marked_rows(rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str], bool]]:
    """Yields the records that are not blank, and whether Excel omitted fields at the end of the record.

    All records of such a block have the same number of fields. The block of the header has all fields. The last block
    can have fewer rows; they are marked only after another block, because few short records can have other causes.
    """
    before, header, line = 0, [], 0
    for line, header in rows:
        before += 1
        if any(field.strip() for field in header):
            yield line, header, False
            break
    first = list(itertools.islice(rows, -before % EXCEL_BLOCK))  # the others in the header's block
    is_excel = False
    for block in itertools.chain([first], blocks(rows, EXCEL_BLOCK)):
        filled = [(line, fields) for line, fields in block if any(field.strip() for field in fields)]
        widths = {len(fields) for _, fields in filled}
        is_short = block is not first and len(widths) == 1 and max(widths) < _named(header)
        is_excel |= is_short and len(block) == EXCEL_BLOCK
        yield from ((line, fields, is_short and is_excel) for line, fields in filled)


def _named(header: list[str]) -> int:
    """Returns the number of columns up to the last one with a name."""
    return max((place for place, name in enumerate(header, 1) if name.strip()), default=0)


def _joins_rows(lines: list[str], delimiter: str, width: int, spaced: bool) -> bool:
    """Whether most lines of a record look like rows of their own, because they have the header's number of delimiters.

    Args:
        lines: the lines of the record; blank ones are ignored.
        delimiter: the delimiter.
        width: number of delimiters in the header; if 0, the result is False.
        spaced: whether spaces follow delimiters in the header. Otherwise a comma or semicolon before a space belongs to
            a text.
    """
    in_texts = "" if spaced or delimiter not in ",;" else f"{delimiter} "
    counts = [line.count(delimiter) - (line.count(in_texts) if in_texts else 0) for line in lines if line.strip()]
    whole = counts.count(width)
    return width > 0 and whole > 1 and 2 * whole > len(counts)
