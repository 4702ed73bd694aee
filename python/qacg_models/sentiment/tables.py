"""Files as DataFrames of texts: tables of your own in CSV, TSV, TXT, JSON, JSONL, Excel and Parquet.

The csv module reads the records of a CSV, because pandas cannot tell a record with fewer fields from one with empty
cells. Their quotation marks and numbers of fields are checked. All functions that read raise DataError for a file that
cannot be read, is not in the given encoding, or violates its format.
"""

from __future__ import annotations

import codecs
import csv
import datetime
import io
import itertools
import json
import re
import warnings
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.errors import InputError
from qacg_models.sentiment.columns import (
    AUTO,
    DELIMITERS,
    SHEET_COLUMNS,
    UTF_8,
    Columns,
    cell_text,
    check_names,
    distinct_names,
    shown_delimiter,
    text_table,
    wide_aspects,
    without_empty_cells,
)
from qacg_models.sentiment.example import DataError, ReadingWarning, RowProblems, Source
from qacg_models.utils.machine import quiet
from qacg_models.utils.text import counted, parse_json, parse_json_at, unescape_formula

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

STANDARD_INPUT = Path("-")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
# Words of Western languages rarely have three consecutive accented letters.
_NOT_WESTERN = re.compile("[\u00c0-\u00ff]{3}")
# Single-byte Western encodings: their non-ASCII text is almost never valid UTF-8 by chance.
_WESTERN = ("iso8859-1", "iso8859-15", "cp1252")
# First bytes of files that are no UTF-8. UTF-32's mark begins with that of UTF-16.
_BEGINNINGS = {
    b"\x1f\x8b": "this looks like a gzip file: decompress it",
    b"PK\x03\x04": "this looks like an Excel workbook or a ZIP file: rename a workbook so that it ends in .xlsx",
    codecs.BOM_UTF32_LE: "this looks like UTF-32: pass --encoding utf-32",
    codecs.BOM_UTF16_LE: "this looks like UTF-16: pass --encoding utf-16",
    codecs.BOM_UTF16_BE: "this looks like UTF-16: pass --encoding utf-16",
}
_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
FORMATS = ("txt", "csv", "tsv", "json", "jsonl", "xlsx", "parquet")
WITH_HEADER = ("csv", "tsv", "xlsx")
WITH_COLUMNS = (*WITH_HEADER, "parquet")  # the formats of which predictions keep all columns
_IMPORT_ID = re.compile(r'\s*\{\s*"ImportId"\s*:')  # a cell of the third header row of Qualtrics
_DAMAGED = "is damaged, or is not {}; open it in the program that wrote it and save it as CSV"
# How a workbook writes a UTF-16 code unit that XML cannot contain; `_x005F_` is the underscore of a text `_x000D_`.
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")
_STRICT = b"http://purl.oclc.org/ooxml/"  # namespaces of Strict Open XML
# Excel divides a sheet into blocks of 16 rows. It omits the delimiters at the ends of the rows of a block if all cells
# there are empty.
EXCEL_BLOCK = 16
_BLOCK = 1 << 16  # records of a CSV that are converted at a time
_LONGEST_HEADER = 100  # maximum number of lines; quoted names may contain line ends
# Excel reads the delimiter from a first line such as `sep=;`, and does not show this line.
_EXCEL_DELIMITER = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)
_SPACE = re.compile(r"\s*")


def read_texts(
    path: Path, columns: Columns, data_format: str = "auto", skipped: RowProblems | None = None
) -> pd.DataFrame:
    """Returns the texts of a file (`read_table`), with the columns that `columns` names, and all others of a table.

    `data_format` "auto" means the suffix. `skipped` counts rows with an empty cell, which are returned too; if it is
    None, such rows raise DataError.
    """
    check_uncompressed(path)
    if data_format == "auto":
        data_format = path.suffix.lower().removeprefix(".")
    if data_format not in FORMATS:
        advice = f"select one with --format {{{','.join(FORMATS)}}}"
        advice = "write the texts to a CSV with the column text" if data_format == "xml" else advice
        raise DataError(path, None, f"expected a suffix of a known format, got {data_format!r}; {advice}")
    table, fields = read_table(path, columns, data_format), columns.fields()
    if table.empty:
        raise DataError(path, None, "has no texts")
    read = table[[*fields.values()]]
    without_empty_cells(read.set_axis([*fields], axis=1), Source(path), columns, skipped)
    return table if data_format in WITH_COLUMNS else read


def read_table(path: Path, columns: Columns, data_format: str | None = None) -> pd.DataFrame:
    """Returns a table with all columns of a file, in which each cell is a text.

    Missing and blank cells are empty texts. Blank lines, and rows of CSV, TSV and Excel with blank cells only, are no
    rows.

    The index `line` is the number of the line on which a row begins (of the row, for Excel, Parquet and a JSON array on
    one line). A ReadingWarning states which rows or sheets are left out, and which rows are doubtful. `data_format`
    None means the suffix of `path`.
    """
    data_format = data_format or path.suffix.lower().removeprefix(".")
    readers = {"csv": _csv_table, "tsv": _csv_table, "xlsx": _excel_table, "parquet": _parquet_table}
    readers |= {"json": _json_table, "jsonl": partial(_json_table, lines=True), "txt": _txt_table}
    if data_format not in readers:
        reason = f"suffix: expected one of .{', .'.join(FORMATS)}, got {path.suffix!r}"
        raise DataError(path, None, f"{reason}; save the table in one of these formats")
    table = readers[data_format](path, columns)
    if data_format in WITH_HEADER:
        table = _without_survey_header(path, table)
    if data_format in WITH_COLUMNS and set(table.columns) >= SHEET_COLUMNS:
        table = table.map(unescape_formula)
    return table


def check_uncompressed(path: Path) -> None:
    """Raises DataError, with advice, for a path with the suffix of a compressed file."""
    if path.suffix.lower() in COMPRESSED:
        raise DataError(path, None, f"expected a file that is not compressed, got {path.suffix}; decompress it")


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file, or of standard input for STANDARD_INPUT."""
    try:
        # closefd=False: closing the reader must not close the process's standard input.
        with open(0, "rb", closefd=False) if path == STANDARD_INPUT else path.open("rb") as handle:
            return handle.read()
    except OSError as error:
        raise DataError(path, None, f"cannot be read ({error.strerror})") from None


def open_text(path: Path, encoding: str = UTF_8) -> io.TextIOWrapper:
    """Returns a file, or standard input for STANDARD_INPUT, as a stream of text without a byte order mark.

    Only line feeds end lines: other Unicode line ends occur inside texts.
    """
    content, name = read_bytes(path), codecs.lookup(encoding).name
    if name == "utf-8" and b"\0" in content[:2]:
        order = "be" if content[:1] == b"\0" else "le"
        raise DataError(path, 1, f"looks like UTF-16 without a byte order mark: pass --encoding utf-16-{order}")
    try:
        content.decode(encoding)
    except UnicodeDecodeError as error:
        raise _encoding_error(path, content, encoding, error) from None
    if name in ("utf-16", "utf-32") and content and not content.startswith(_MARKS):
        reason = f"does not begin with a byte order mark, which {encoding} requires"
        raise DataError(path, 1, f"{reason}; pass --encoding utf-8 or utf-16-le")
    if name in _WESTERN and not content.isascii():
        if content.startswith(_MARKS[2:]):
            raise DataError(path, 1, f"looks like UTF-16, not {encoding}: pass --encoding utf-16")
        with suppress(UnicodeDecodeError):
            content.decode(UTF_8)
            raise DataError(path, None, f"looks like UTF-8, not {encoding}: pass --encoding utf-8")
    return io.TextIOWrapper(io.BytesIO(content), "utf-8-sig" if name == "utf-8" else encoding, newline="\n")


def _encoding_error(path: Path, content: bytes, encoding: str, error: UnicodeDecodeError) -> DataError:
    """Returns the error for a file that is not in `encoding`, with the encoding that it probably has."""
    number = content[: error.start].decode(encoding, "ignore").count("\n") + 1
    byte = f"is 0x{content[error.start]:02x}"
    if encoding != UTF_8:
        place = f"byte {error.start + 1:,} of the file {byte}"
        return DataError(path, number, f"is not {encoding} ({place}); pass the file's encoding with --encoding")
    start = content.rfind(b"\n", 0, error.start) + 1
    line = content[start:].split(b"\n", 1)[0]
    western = line.decode("cp1252", "replace")
    known = [advice for mark, advice in _BEGINNINGS.items() if number == 1 and content.startswith(mark)]
    if known:
        advice = known[0]
    elif not line.decode(UTF_8, "ignore").removeprefix("\ufeff").isascii():
        advice = "the line also has UTF-8 characters, so the file is damaged or mixes encodings: save it as UTF-8"
    elif "\ufffd" in western or _NOT_WESTERN.search(western):
        other = "pass the encoding that the file was saved in, such as --encoding cp1251 or gb18030"
        advice = f"{other}, or save it as UTF-8"
    else:
        advice = "this looks like Windows-1252: pass --encoding cp1252"
    return DataError(path, number, f"is not UTF-8 (byte {error.start - start + 1} of the line {byte}); {advice}")


def numbered_lines(path: Path, encoding: str = UTF_8) -> Iterator[tuple[int, str]]:
    """Yields the number (from 1) and the text of every line, without its line end."""
    for number, line in enumerate(open_text(path, encoding), 1):
        yield number, line.rstrip("\r\n")


def json_values(path: Path, encoding: str = UTF_8, lines: bool = False) -> Iterator[tuple[int, object]]:
    """Yields the line number and the value of each item of a JSON array, or of each line of JSON lines.

    If the whole array is on one line, as pandas writes it, the number is the item's position (from 1). Without `lines`,
    a file that is empty or begins with { has JSON lines too.
    """
    text = "" if lines else open_text(path, encoding).read()
    if text.strip() and not text.lstrip().startswith("{"):
        yield from _array_items(path, text)
        return
    for number, line in enumerate(open_text(path, encoding) if lines else io.StringIO(text), 1):
        if line.strip():
            try:
                yield number, parse_json(line.rstrip("\r\n"))
            except json.JSONDecodeError as error:
                advice = "write one object per line, or an array in a file that ends in .json"
                reason = f"is not JSON ({error.msg}, column {error.colno}); {advice}"
                raise DataError(path, number, reason) from None


def _array_items(path: Path, text: str) -> Iterator[tuple[int, object]]:
    """Yields the number and the value of each item of a JSON array (`json_values`)."""
    position = _SPACE.match(text).end()
    line, seen, number = 1, 0, 0
    one_line = "\n" not in text.strip()
    if not text.startswith("[", position):
        raise DataError(path, None, "expected a JSON array, which begins with [, got other text")
    position = _SPACE.match(text, position + 1).end()
    more = not text.startswith("]", position)
    while more:
        line, seen, number = line + text.count("\n", seen, position), position, number + 1
        try:
            item, position = parse_json_at(text, position)
        except json.JSONDecodeError as error:
            raise DataError(path, error.lineno, f"is not JSON ({error.msg}, column {error.colno})") from None
        yield number if one_line else line, item
        position = _SPACE.match(text, position).end()
        more = text.startswith(",", position)
        if not more and not text.startswith("]", position):
            raise DataError(path, text.count("\n", 0, position) + 1, "is not JSON (expected , or ] after an item)")
        position = _SPACE.match(text, position + 1).end() if more else position
    position = _SPACE.match(text, position + 1).end()
    if position < len(text):
        line = text.count("\n", 0, position) + 1
        raise DataError(path, line, "expected the end of the file after the array, got more text")


def _txt_table(path: Path, columns: Columns) -> pd.DataFrame:
    rows = [(line, text) for line, text in numbered_lines(path, columns.encoding) if text.strip()]
    return text_table({columns.text: [text for _, text in rows]}, [line for line, _ in rows])


def _csv_table(path: Path, columns: Columns) -> pd.DataFrame:
    # Line ends inside quoted fields become line feeds.
    lines: Iterator[str] = (line.rstrip("\r\n") + "\n" for line in open_text(path, columns.encoding))
    delimiter, before = columns.delimiter, 0
    if delimiter == AUTO:
        delimiter, before, lines = _find_delimiter(lines, columns, path.suffix)
    return _CsvRecords(path, lines, delimiter, before, columns).fitting()


def _find_delimiter(lines: Iterable[str], columns: Columns, suffix: str) -> tuple[str, int, Iterator[str]]:
    """Returns the delimiter of a CSV file, the number of removed lines (0 or 1), and all other lines.

    Without a first line such as `sep=;`, the delimiter is the one of DELIMITERS that splits the header into the most
    fields, first among those with which it has all required columns; a tie goes to the usual one of the suffix.
    """
    lines = iter(lines)
    head: list[str] = []  # up to the end of the first non-blank record
    quotes = 0
    for line in lines:
        head.append(line)
        quotes += 0 if columns.quoting == "none" else line.count('"')
        if (line.strip(" \r\n" + "".join(DELIMITERS)) and quotes % 2 == 0) or len(head) == _LONGEST_HEADER:
            break
    if head and (declared := _EXCEL_DELIMITER.fullmatch(head[0])):
        return declared[1], 1, itertools.chain(head[1:], lines)
    fields = {delimiter: _fields(head, delimiter, columns.quoting) for delimiter in DELIMITERS}
    fitting = [delimiter for delimiter, found in fields.items() if set(columns.required()) <= set(found)]
    usual = "\t" if suffix.lower() == ".tsv" else ","
    found = max(fitting or DELIMITERS, key=lambda delimiter: (len(fields[delimiter]), delimiter == usual))
    return found, 0, itertools.chain(head, lines)


def _fields(head: list[str], delimiter: str, quoting: str) -> list[str]:
    try:
        records = [[field.strip() for field in one] for one in _reader(head, delimiter, quoting)]
    except csv.Error:
        return []
    return next((fields for fields in records if any(fields)), [])


def _reader(lines: Iterable[str], delimiter: str, quoting: str):
    style = csv.QUOTE_NONE if quoting == "none" else csv.QUOTE_MINIMAL
    return csv.reader(lines, delimiter=delimiter, quoting=style, strict=True)


class _CsvRecords:
    """The records of a CSV, blank ones included, and the checks of their quotation marks and numbers of fields.

    The header, at place `top`, is the first record that is not blank.
    """

    def __init__(self, path: Path, lines: Iterator[str], delimiter: str, before: int, columns: Columns):
        import numpy as np
        import pandas as pd

        self.path, self.delimiter, self.columns = path, delimiter, columns
        self.failure: DataError | None = None
        reader = _reader(lines, delimiter, columns.quoting)
        starts, widths, parts, block = array("q", [before + 1]), array("q"), [], []
        try:
            for fields in reader:
                starts.append(before + reader.line_num + 1)
                widths.append(len(fields))
                block.append(fields)
                if len(block) == _BLOCK:
                    parts.append(_text_columns(block))
                    block = []
        except csv.Error as error:
            self.failure = self._error(starts[-1], str(error))
        parts.append(_text_columns(block))
        self.cells = pd.concat(parts, ignore_index=True).fillna("")
        self.starts, self.ends = np.array(starts[: len(widths)], np.int64), np.array(starts[1:], np.int64) - 1
        self.widths = np.array(widths, np.int64)
        filled = np.zeros(len(widths), bool)
        for name in self.cells:
            filled |= (self.cells[name].str.strip() != "").to_numpy(bool)
        self.filled = np.flatnonzero(filled)
        self.top = int(self.filled[0]) if len(self.filled) else 0

    def fitting(self) -> pd.DataFrame:
        """Returns the table: the records below the header that are not blank, with the names of the header."""
        header = [field.strip() for field in self._record(self.top)] if len(self.filled) else []
        joined = self._joined_rows(len(header))
        if len(joined) and joined[0] <= self.top and self.columns.quoting == AUTO:
            raise self._joined_error(joined[0])
        if header:
            header = [unescape_formula(name) for name in header] if set(header) >= SHEET_COLUMNS else header
            check_names(self.path, int(self.starts[self.top]), header, self.columns)
            self._check_widths(self.filled[1:], header)
        if self.failure is not None:
            raise self.failure
        if len(joined) and self.columns.quoting == AUTO:
            self._refuse_or_warn(joined, len(header))
        rows = self.cells.iloc[self.filled[1:]]
        names = distinct_names(header or self.columns.required())
        cells = {name: rows[place].array if header else [] for place, name in enumerate(names)}
        return text_table(cells, self.starts[self.filled[1:]])

    def _record(self, place: int) -> list[str]:
        return self.cells.iloc[place, : self.widths[place]].tolist()

    def _error(self, line: int, reason: str) -> DataError:
        """Returns the error for an error message of the csv module about the record that begins on `line`."""
        ordinary = "pass --quoting none if quotation marks are ordinary characters"
        if "field limit" in reason:
            most = f"expected fields of at most {csv.field_size_limit():,} characters"
            reason = f"{most}, got a longer field or a quotation mark that is not closed"
            reason += f"; close the quotation mark, {ordinary}, shorten the text, or write the data as JSONL"
        elif "new-line character" in reason:
            expected = "expected line feeds as line ends, got a carriage return alone"
            reason = f"{expected}; save the file with the line ends of Unix or Windows"
        else:
            reason = f"is not CSV with the delimiter '{shown_delimiter(self.delimiter)}' ({reason})"
            doubled = "double the quotation marks inside a quoted field"
            reason = f"{reason}; {doubled}, {ordinary}, or pass another delimiter with --delimiter"
        return DataError(self.path, line, reason)

    def _joined_rows(self, width: int) -> list[int]:
        """Returns the places of the records of several lines most of which look like rows of their own.

        A line looks like a row if it has the delimiters of a header of `width` fields; with one field, all do.
        """
        import numpy as np

        found, mark = [], self.delimiter
        has_space = f"{mark} " in mark.join(self._record(self.top)) if width else False
        places = np.flatnonzero(self.ends > self.starts)
        for place, cells in zip(places.tolist(), self.cells.iloc[places].to_numpy().tolist()):
            # The record as in the file, but without the quotation marks around fields.
            lines = [line for line in mark.join(cells[: self.widths[place]]).split("\n") if line.strip()]
            is_row = place > self.top
            marks = width - 1 if is_row else lines[0].count(mark) if lines else 0
            # A comma or semicolon before a space belongs to a text, unless the header has spaces there.
            in_texts = "" if (is_row and has_space) or mark not in ",;" else f"{mark} "
            counts = [line.count(mark) - (line.count(in_texts) if in_texts else 0) for line in lines]
            whole = counts.count(marks)
            if (marks == 0 and is_row) or (marks > 0 and whole > 1 and 2 * whole > len(counts)):
                found.append(place)
        return found

    def _refuse_or_warn(self, joined: list[int], width: int) -> None:
        """Raises DataError if more records join rows than need their quotation marks; else warns."""
        needed = self.ends > self.starts
        for name in self.cells:
            needed |= self.cells[name].str.contains(self.delimiter, regex=False).to_numpy(bool)
        needed[joined] = False
        if width > 1 and len(joined) > needed.sum():
            raise self._joined_error(joined[0])
        several = f"{counted(len(joined), 'text')} in quotation marks on several lines"
        first = f"the first on lines {self.starts[joined[0]]} to {self.ends[joined[0]]}"
        advice = "if quotation marks are ordinary characters, pass --quoting none"
        warnings.warn(f"{self.path}: {several}, {first}; {advice}", ReadingWarning, stacklevel=2)

    def _joined_error(self, place: int) -> DataError:
        first, last = int(self.starts[place]), int(self.ends[place])
        reason = (
            f"expected one row in a field in quotation marks, got lines {first} to {last}, most of which have as many"
            " delimiters as the header; pass --quoting none if quotation marks are ordinary characters, or"
            " --quoting minimal if they enclose a text of several lines"
        )
        return DataError(self.path, first, reason)

    def _check_widths(self, places: np.ndarray, header: list[str]) -> None:
        """Raises DataError for records at `places` that do not fit the header, and warns of short ones."""
        import numpy as np

        most = len(header)
        named = max(place for place, name in enumerate(header, 1) if name)
        widths = self.widths[places]
        bad = (widths < min(2, most)) | (widths > most)
        short = (widths < named) & ~bad
        if not (widths != most).any():
            return
        omitted = self._omitted_by_excel(places, widths, named)
        others = np.flatnonzero(short & ~omitted)
        omitted = omitted & (np.arange(len(widths)) < (others[0] if len(others) else len(widths)))
        run: list[int] = []  # consecutive records with fewer fields
        for place in np.flatnonzero((widths < most) & ~omitted).tolist():
            run = [*run[-most:], place] if run and place == run[-1] + 1 else [place]
            if parts := _parts(widths[run].tolist(), named, most):
                bad[run[-parts:]] = True
            if bad[place]:
                run = []
        if bad.any():
            problems, shown = RowProblems(self.path), shown_delimiter(self.delimiter)
            for place in np.flatnonzero(bad):
                reason = f"expected {most} fields as in the header, got {widths[place]}"
                problems.add(int(self.starts[places[place]]), reason)
            quoted = f"put fields that contain '{shown}' or a line end into quotation marks"
            raise problems.error(f"{quoted}, and separate fields by '{shown}'")
        problems = RowProblems(self.path)
        for place in np.flatnonzero(short & ~omitted):
            problems.add(int(self.starts[places[place]]), "has fewer fields than the header")
        if problems.total:
            rows_with = counted(problems.total, "row has", "rows have")
            message = f"{rows_with} fewer fields than the header ({problems.lines()}); missing ones are read as empty"
            warnings.warn(f"{self.path}: {message}", ReadingWarning, stacklevel=2)

    def _omitted_by_excel(self, places: np.ndarray, widths: np.ndarray, named: int) -> np.ndarray:
        """Returns whether Excel omitted the empty cells at the end of each record.

        All records of such a block have the same number of fields. The last block can have fewer rows; it counts only
        after another block, because few short records can have other causes.
        """
        import pandas as pd

        block = pd.Series(places // EXCEL_BLOCK)
        by_block = pd.Series(widths).groupby(block.to_numpy())
        is_short = (by_block.nunique() == 1) & (by_block.max() < named)
        is_short &= is_short.index > self.top // EXCEL_BLOCK
        is_whole = (is_short.index + 1) * EXCEL_BLOCK <= len(self.widths)
        return block.map(is_short & (is_short & is_whole).cummax()).to_numpy(bool)


def _parts(widths: list[int], least: int, most: int) -> int:
    """Returns the number of the last records of a run that can be the parts of one record that line ends split, or 0.

    They are at least two, their fields add up to `least` to `most`, and one of them has fewer than `least`.
    """
    total, shortest = 1, most
    for number, count in enumerate(reversed(widths), 1):
        total, shortest = total + count - 1, min(shortest, count)  # a split field has a part in both records
        if number > 1 and shortest < least <= total <= most:
            return number
    return 0


def _text_columns(records: list[list[str]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({n: values for n, values in enumerate(itertools.zip_longest(*records, fillvalue=""))})


def _excel_table(path: Path, columns: Columns) -> pd.DataFrame:
    """Returns the first sheet; the cell of a formula has the value that the file stores, empty if it is an error."""
    import numpy as np
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
    filled = cells.map(lambda cell: not isinstance(cell, str) or bool(cell.strip())).to_numpy(bool)  # errors are NaN
    widths = (filled * np.arange(1, filled.shape[1] + 1)).max(axis=1, initial=0)
    top, *places = np.flatnonzero(widths).tolist() or [None]
    if top is None:
        return text_table({name: [] for name in columns.required()}, [])
    header = [_excel_text(name).strip() for name in cells.iloc[top, : widths[top]]]
    check_names(path, top + 1, header, columns)
    for place in places:
        if widths[place] > len(header):
            expected = f"expected {len(header)} cells as in the header, got {widths[place]}"
            raise DataError(path, place + 1, f"{expected}; name every column in the header")
    texts = cells.iloc[places, : len(header)].map(_excel_text)
    return text_table(dict(zip(distinct_names(header), texts.to_numpy().T)), [place + 1 for place in places])


def _excel_text(cell: object) -> str:
    """Returns the text of a cell, without the escapes of a workbook."""
    if not isinstance(cell, str) or "_x" not in cell:
        return _plain_text(cell)
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), cell)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins surrogate pairs


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
