"""Reads text and JSON of limited size from untrusted files; finds lone surrogates and cells that are formulas.

A lone surrogate is half of a UTF-16 character. A Python str can contain one, from a JSON escape or from bytes of the
command line that are not UTF-8; files, tokenizers and terminals reject it.

A spreadsheet runs a cell of a CSV as a formula if it begins with `=`, `+`, `-` or `@`, quoted or not.
"""

import errno
import json
import re
import sys
from pathlib import Path

# Without a limit, reading a device or a damaged file that has no end would use up the memory.
MOST_FILE_BYTES = 256 << 20  # bytes of a file that is read at once

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DECODER = json.JSONDecoder()
# Spreadsheets skip white space before the sign. Chinese, Japanese and Korean ones accept full-width signs too. A tab or
# carriage return can move the rest of the cell into a cell of its own.
_FORMULA = re.compile(r"'*(?:[\t\r]|[\s\0]*[=+\-@＝＋－＠])")


def read_text(path: Path) -> str:
    """Reads a UTF-8 file of at most `MOST_FILE_BYTES`.

    Raises:
        OSError: the file cannot be read, or is larger (EFBIG).
        UnicodeDecodeError: the file is not UTF-8.
    """
    with path.open("rb") as handle:
        content = handle.read(MOST_FILE_BYTES + 1)
    if len(content) > MOST_FILE_BYTES:
        raise OSError(errno.EFBIG, f"expected at most {MOST_FILE_BYTES >> 20} MiB, got a larger file", str(path))
    return content.decode("utf-8")


def lone_surrogate(text: str) -> str | None:
    """Returns the first surrogate as an escape, such as `\\ud83d`; None if there is none."""
    found = _SURROGATE.search(text)
    return None if found is None else f"\\u{ord(found[0]):04x}"


def escape_formula(cell: str) -> str:
    """Returns the cell, with an apostrophe before it if a spreadsheet would run it as a formula.

    A formula that already begins with apostrophes gets one more, so that `unescape_formula` restores every cell.
    """
    return f"'{cell}" if _FORMULA.match(cell) else cell


def unescape_formula(cell: str) -> str:
    """Returns the original of a cell that `escape_formula` returned."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def parse_json(text: str) -> object:
    """Returns the value of a JSON text.

    Raises:
        json.JSONDecodeError: the text is not one JSON value, or is rejected by `parse_json_at`.
    """
    value, end = parse_json_at(text, len(text) - len(text.lstrip()))
    rest = text[end:].lstrip()
    if rest:
        raise json.JSONDecodeError("more text follows the value", text, len(text) - len(rest))
    return value


def parse_json_at(text: str, start: int) -> tuple[object, int]:
    """Returns the JSON value that begins at `start`, and the position of its end.

    Raises:
        json.JSONDecodeError: the text is not JSON; a number has more digits than Python reads; lists and objects are
            nested too deep; or an escape is a lone surrogate.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("lists and objects are nested too deep", text, start) from None
    except ValueError:  # Python limits the digits, because converting many takes hours
        most = sys.get_int_max_str_digits()
        place = re.compile(rf"[0-9]{{{most + 1}}}").search(text, start)
        where = start if place is None else place.start()
        raise json.JSONDecodeError(f"a number has more than {most} digits", text, where) from None
    if (place := _lone_surrogate_escape(text, start, end)) is not None:
        escape = text[place : place + 6]
        raise json.JSONDecodeError(f"the escape {escape} is half a character", text, place)
    return value, end


def _lone_surrogate_escape(text: str, start: int, end: int) -> int | None:
    """Returns the position of the first escape that is a lone surrogate; None if there is none."""
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
