"""Detection of a CSV file's delimiter from its header."""

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain

AUTO = "auto"
DELIMITERS = (",", ";", "\t", "|")
# auto: as minimal, but a field over lines that each look like a row is an error, or a warning if most other fields need
# their quotation marks; minimal: quotation marks may enclose a field, as in csv.QUOTE_MINIMAL; none: they are ordinary
# characters, as in csv.QUOTE_NONE.
QUOTING = (AUTO, "minimal", "none")
_LONGEST_HEADER = 100  # maximum number of lines; quoted names may contain line ends
# Excel reads the delimiter from a first line such as `sep=;`, and does not show this line.
_EXCEL = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


def shown_delimiter(delimiter: str) -> str:
    """Returns the delimiter as users type it in a shell."""
    return "\\t" if delimiter == "\t" else delimiter


def reader_quoting(quoting: str) -> int:
    """Returns the constant of the csv module for a member of QUOTING."""
    return csv.QUOTE_NONE if quoting == "none" else csv.QUOTE_MINIMAL


def find_delimiter(
    lines: Iterable[str], names: list[str], quoting: str = AUTO, suffix: str = ".csv"
) -> tuple[str, int, Iterator[str]]:
    """Detects the delimiter of a CSV file.

    A first line such as `sep=;`, which Excel reads, gives the delimiter. Without such a line, the result is the one
    of the DELIMITERS that splits the header into the most fields. Delimiters with which the header has all of `names`
    take precedence over other delimiters. A header with one column fits all of them: the result is the tab for a file
    with the suffix .tsv, else the comma.

    Args:
        lines: the lines of the file, with their line ends.
        names: column names that the header must have.
        quoting: one of QUOTING.
        suffix: suffix of the file.

    Returns:
        The delimiter, the number of removed lines (1 for a line such as `sep=;`, else 0), and all other lines.
    """
    lines = iter(lines)
    head = _header(lines, quoting)
    if head and (declared := _EXCEL.fullmatch(head[0])):
        return declared[1], 1, chain(head[1:], lines)
    fields = {delimiter: _fields(head, delimiter, quoting) for delimiter in DELIMITERS}
    fitting = [delimiter for delimiter, found in fields.items() if set(names) <= set(found)]
    usual = "\t" if suffix.lower() == ".tsv" else ","
    found = max(fitting or DELIMITERS, key=lambda delimiter: (len(fields[delimiter]), delimiter == usual))
    return found, 0, chain(head, lines)


def _header(lines: Iterator[str], quoting: str) -> list[str]:
    """Returns the first lines, up to the end of the first non-blank record; at most _LONGEST_HEADER lines."""
    head: list[str] = []
    quotes = 0
    for line in lines:
        head.append(line)
        quotes += 0 if quoting == "none" else line.count('"')
        if (line.strip(" \r\n" + "".join(DELIMITERS)) and quotes % 2 == 0) or len(head) == _LONGEST_HEADER:
            break
    return head


def _fields(head: list[str], delimiter: str, quoting: str) -> list[str]:
    try:
        reader = csv.reader(head, delimiter=delimiter, quoting=reader_quoting(quoting), strict=True)
        records = [[field.strip() for field in one] for one in reader]
    except csv.Error:
        return []
    return next((fields for fields in records if any(fields)), [])
