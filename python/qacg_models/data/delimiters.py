"""Detection of a CSV file's delimiter from its header."""

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain

AUTO = "auto"
DELIMITERS = (",", ";", "\t", "|")
_LONGEST_HEADER = 100  # maximum number of lines; quoted names may contain line ends
# Excel reads the delimiter from a first line such as `sep=;`, and does not show this line.
_EXCEL = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


def shown_delimiter(delimiter: str) -> str:
    """Returns the delimiter as users type it in a shell."""
    return "\\t" if delimiter == "\t" else delimiter


def find_delimiter(lines: Iterable[str], names: list[str]) -> tuple[str, int, Iterator[str]]:
    """Detects the delimiter of a CSV file.

    A first line such as `sep=;`, which Excel reads, gives the delimiter. Without such a line, the result is the one
    of the DELIMITERS that splits the header into the most fields. Delimiters with which the header has all of `names`
    take precedence over other delimiters.

    Args:
        lines: the lines of the file, with their line ends.
        names: column names that the header must have.

    Returns:
        The delimiter, the number of removed lines (1 for a line such as `sep=;`, else 0), and all other lines.
    """
    lines = iter(lines)
    head = _header(lines)
    if head and (declared := _EXCEL.fullmatch(head[0])):
        return declared[1], 1, chain(head[1:], lines)
    fields = {delimiter: _fields(head, delimiter) for delimiter in DELIMITERS}
    fitting = [delimiter for delimiter, found in fields.items() if set(names) <= set(found)]
    return max(fitting or DELIMITERS, key=lambda delimiter: len(fields[delimiter])), 0, chain(head, lines)


def _header(lines: Iterator[str]) -> list[str]:
    """Returns the first lines, up to the end of the first non-blank record; at most _LONGEST_HEADER lines."""
    head: list[str] = []
    quotes = 0
    for line in lines:
        head.append(line)
        quotes += line.count('"')
        if (line.strip(" \r\n" + "".join(DELIMITERS)) and quotes % 2 == 0) or len(head) == _LONGEST_HEADER:
            break
    return head


def _fields(head: list[str], delimiter: str) -> list[str]:
    try:
        records = [[field.strip() for field in one] for one in csv.reader(head, delimiter=delimiter, strict=True)]
    except csv.Error:
        return []
    return next((fields for fields in records if any(fields)), [])
