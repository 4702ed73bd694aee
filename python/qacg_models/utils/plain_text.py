"""Text that files and programs can take: bounded files, JSON errors with line and column, cells that spreadsheets run.

Python's texts may hold surrogates, halves of a character of UTF-16: JSON's escapes make them, and so do bytes on the
command line that are not UTF-8. No file, tokenizer or terminal takes them.

A spreadsheet runs a cell of a CSV as a formula if it begins with `=`, `+`, `-` or `@`, quoted or not.
"""

from __future__ import annotations

import errno
import json
import re
import sys
from pathlib import Path

# The most that is read: a device or a damaged file may have no end, and its reader would take all of the memory.
MOST_LINE_BYTES = 16 << 20
MOST_FILE_BYTES = 256 << 20  # of files that are in memory as a whole

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DECODER = json.JSONDecoder()
# White space before the sign is passed over. Spreadsheets in Chinese, Japanese and Korean take full-width signs too.
# A tab or carriage return alone may move the rest of the cell into a cell of its own.
_FORMULA = re.compile(r"'*(?:[\t\r]|[\s\0]*[=+\-@＝＋－＠])")


def mebibytes(size: int) -> str:
    """A number of bytes as messages give it, such as "16 MiB"."""
    return f"{size >> 20} MiB"


def read_text(path: Path) -> str:
    """The UTF-8 text of a file of at most `MOST_FILE_BYTES`.

    Raises:
        OSError: the file cannot be read, or is larger (EFBIG).
        UnicodeDecodeError: it is not UTF-8.
    """
    with path.open("rb") as handle:
        content = handle.read(MOST_FILE_BYTES + 1)
    if len(content) > MOST_FILE_BYTES:
        raise OSError(errno.EFBIG, f"expected at most {mebibytes(MOST_FILE_BYTES)}, got a larger file", str(path))
    return content.decode("utf-8")


def lone_surrogate(text: str) -> str | None:
    """The first half of a character in a text, as an escape such as `\\ud83d`; None: there is none."""
    found = _SURROGATE.search(text)
    return None if found is None else f"\\u{ord(found[0]):04x}"


def escape_formula(cell: str) -> str:
    """The cell, with an apostrophe before it if a spreadsheet would run it as a formula.

    A cell that already has apostrophes before a formula gets one more, so that `unescape_formula` restores every cell.
    """
    return f"'{cell}" if _FORMULA.match(cell) else cell


def unescape_formula(cell: str) -> str:
    """Inverse of `escape_formula`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def parse_json(text: str) -> object:
    """The value of a JSON text.

    Raises:
        json.JSONDecodeError: as for `parse_json_at`, or more text behind the value.
    """
    value, end = parse_json_at(text, len(text) - len(text.lstrip()))
    rest = text[end:].lstrip()
    if rest:
        raise json.JSONDecodeError("the text goes on after its end", text, len(text) - len(rest))
    return value


def parse_json_at(text: str, start: int) -> tuple[object, int]:
    """The JSON value that begins at `start`, without space before it, and where it ends.

    Raises:
        json.JSONDecodeError: no JSON; a number of more digits than Python reads, lists and objects nested too deep
            for it, or an escape that is half a character.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("lists and objects are nested too deep, wanted a few levels", text, start) from None
    except ValueError:  # Python's limit against texts that take hours to become a number
        most = sys.get_int_max_str_digits()
        place = re.compile(rf"[0-9]{{{most + 1}}}").search(text, start)
        where = start if place is None else place.start()
        raise json.JSONDecodeError(f"a number has more than {most} digits", text, where) from None
    if (place := _half_character(text, start, end)) is not None:
        escape = text[place : place + 6]
        raise json.JSONDecodeError(f"the escape {escape} is half a character, wanted both halves", text, place)
    return value, end


def _half_character(text: str, start: int, end: int) -> int | None:
    """Where the first escape lies that is a surrogate without its other half."""
    if _ESCAPED_SURROGATE.search(text, start, end) is None:
        return None
    high: re.Match | None = None
    for escape in _ESCAPE.finditer(text, start, end):
        code = int(escape[1] or "0", 16)
        is_low = 0xDC00 <= code < 0xE000
        if high is not None and not (is_low and escape.start() == high.end()):
            return high.start()
        if is_low and high is None:
            return escape.start()
        high = escape if 0xD800 <= code < 0xDC00 else None
    return None if high is None else high.start()
