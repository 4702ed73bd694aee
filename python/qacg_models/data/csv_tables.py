"""Tables in CSV and TSV files: their delimiter, the checks of quotation marks and of numbers of fields.

The csv module reads the records, because pandas cannot tell a record with fewer fields from one with empty cells.
"""

from __future__ import annotations

import csv
import itertools
import re
import warnings
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.data.columns import (
    AUTO,
    DELIMITERS,
    SHEET_COLUMNS,
    Columns,
    check_names,
    distinct_names,
    shown_delimiter,
)
from qacg_models.data.example import DataError, ReadingWarning, RowProblems
from qacg_models.data.frames import text_table
from qacg_models.data.text_files import numbered_lines, open_text
from qacg_models.utils.cells import counted
from qacg_models.utils.plain_text import unescape_formula

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# Excel divides a sheet into blocks of 16 rows. It omits the delimiters at the ends of the rows of a block if all cells
# there are empty.
EXCEL_BLOCK = 16
_BLOCK = 1 << 16  # records of a CSV that are converted at a time
_LONGEST_HEADER = 100  # maximum number of lines; quoted names may contain line ends
# Excel reads the delimiter from a first line such as `sep=;`, and does not show this line.
_EXCEL_DELIMITER = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


def csv_table(path: Path, columns: Columns) -> pd.DataFrame:
    """Returns the table of a CSV or TSV file, as `tables.read_table` does."""
    # Line ends inside quoted fields become line feeds.
    lines: Iterator[str] = (line.rstrip("\r\n") + "\n" for line in open_text(path, columns.encoding))
    delimiter, before = columns.delimiter, 0
    if delimiter == AUTO:
        delimiter, before, lines = _find_delimiter(lines, columns, path.suffix)
    return _CsvRecords(path, lines, delimiter, before, columns).fitting()


def _find_delimiter(lines: Iterable[str], columns: Columns, suffix: str) -> tuple[str, int, Iterator[str]]:
    """Detects the delimiter of a CSV file.

    A first line such as `sep=;`, which Excel reads, gives the delimiter. Without such a line, the result is the one
    of the DELIMITERS that splits the header into the most fields. Delimiters with which the header has all required
    columns take precedence over other delimiters. A header with one column fits all of them: the result is the tab for
    a file with the suffix .tsv, else the comma.

    Returns:
        The delimiter, the number of removed lines (1 for a line such as `sep=;`, else 0), and all other lines.
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
    """The records of a CSV, and the checks of their quotation marks and numbers of fields.

    Attributes:
        cells: a row for each record, blank ones included; records with fewer fields have empty texts.
        starts: line on which each record begins.
        widths: number of fields of each record.
        top: place of the header among the records, the first one that is not blank.
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
        """Returns the table: the records below the header that are not blank, with the names of the header.

        Warns:
            ReadingWarning: records have fewer fields than the header; or lines of a record look like rows, but there is
                only one column, or most such records need their quotation marks.

        Raises:
            DataError: the file is not CSV with this delimiter; records have more fields than the header, or one of
                several, or are the parts of a record that a line end splits; or more records have lines that look like
                rows than need their quotation marks.
        """
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
        if "field limit" in reason:
            reason = (
                f"expected fields of at most {csv.field_size_limit():,} characters, got a longer field or a quotation"
                " mark that is not closed; close the quotation mark, pass --quoting none if quotation marks are"
                " ordinary characters, shorten the text, or write the data as JSONL"
            )
        elif "new-line character" in reason:
            expected = "expected line feeds as line ends, got a carriage return alone"
            reason = f"{expected}; save the file with the line ends of Unix or Windows"
        else:
            reason = (
                f"is not CSV with the delimiter '{shown_delimiter(self.delimiter)}' ({reason}); double the quotation"
                " marks inside a quoted field, pass --quoting none if quotation marks are ordinary characters, or pass"
                " another delimiter with --delimiter"
            )
        return DataError(self.path, line, reason)

    def _joined_rows(self, width: int) -> list[int]:
        """Returns the places of the records of several lines most of which look like rows of their own.

        A line looks like a row if it has the header's number of delimiters. In a table of one column, all do.

        Args:
            width: number of fields of the header.
        """
        import numpy as np

        found, mark = [], self.delimiter
        has_space = f"{mark} " in mark.join(self._record(self.top)) if width else False
        for place in np.flatnonzero(self.ends > self.starts).tolist():
            # The record as in the file, but without the quotation marks around fields.
            lines = [line for line in mark.join(self._record(place)).split("\n") if line.strip()]
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
        warnings.warn(
            f"{self.path}: {counted(len(joined), 'text')} in quotation marks on several lines, the first on lines"
            f" {self.starts[joined[0]]} to {self.ends[joined[0]]}; if quotation marks are ordinary characters, pass"
            " --quoting none",
            ReadingWarning,
            stacklevel=2,
        )

    def _joined_error(self, place: int) -> DataError:
        first, last = int(self.starts[place]), int(self.ends[place])
        return DataError(
            self.path,
            first,
            f"expected one row in a field in quotation marks, got lines {first} to {last}, most of which have as many"
            " delimiters as the header; pass --quoting none if quotation marks are ordinary characters, or"
            " --quoting minimal if they enclose a text of several lines",
        )

    def _check_widths(self, places: np.ndarray, header: list[str]) -> None:
        """Raises DataError for records that do not fit the header, and warns of short ones (`fitting`).

        Args:
            places: places of the records below the header that are not blank.
            header: the names of the columns.
        """
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
        if (short & ~omitted).any():
            problems = RowProblems(self.path)
            for place in np.flatnonzero(short & ~omitted):
                problems.add(int(self.starts[places[place]]), "has fewer fields than the header")
            rows_with = counted(problems.total, "row has", "rows have")
            message = f"{rows_with} fewer fields than the header ({problems.lines()}); missing ones are read as empty"
            warnings.warn(f"{self.path}: {message}", ReadingWarning, stacklevel=2)

    def _omitted_by_excel(self, places: np.ndarray, widths: np.ndarray, named: int) -> np.ndarray:
        """Returns whether Excel omitted the empty cells at the end of each record.

        All records of such a block have the same number of fields. The block of the header has all fields. The last
        block can have fewer rows; it counts only after another block, because few short records can have other causes.
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


def header_delimiter(path: Path, columns: Columns) -> str:
    """Returns the delimiter of a CSV or TSV file, from its header."""
    lines = (text + "\n" for _, text in itertools.islice(numbered_lines(path, columns.encoding), _LONGEST_HEADER))
    return _find_delimiter(lines, columns, path.suffix)[0]
