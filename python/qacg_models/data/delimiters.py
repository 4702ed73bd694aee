"""The delimiter of a CSV, found from its header."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain

AUTO = "auto"
DELIMITERS = (",", ";", "\t", "|")
_LONGEST_HEADER = 100  # lines, of names with line ends inside quotes
# Excel writes the delimiter into a first line of its own, and hides that line.
_EXCEL = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


def shown_delimiter(delimiter: str) -> str:
    """The delimiter as it is typed in a shell."""
    return "\\t" if delimiter == "\t" else delimiter


def find_delimiter(lines: Iterable[str], names: list[str]) -> tuple[str, int, Iterator[str]]:
    """The delimiter of a CSV, how many lines come before its table, and the lines from there.

    It is the one that an Excel line `sep=;` gives, else that by which the header has all of `names`, else that by which
    it has most fields.
    """
    lines = iter(lines)
    head = _header(lines)
    if head and (said := _EXCEL.fullmatch(head[0])):
        return said[1], 1, chain(head[1:], lines)
    fields = {delimiter: _fields(head, delimiter) for delimiter in DELIMITERS}
    fitting = [delimiter for delimiter, found in fields.items() if set(names) <= set(found)]
    return max(fitting or DELIMITERS, key=lambda delimiter: len(fields[delimiter])), 0, chain(head, lines)


def _header(lines: Iterator[str]) -> list[str]:
    """The first lines, up to the end of the first record that is not blank."""
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
