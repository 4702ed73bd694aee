"""Text files: their encoding, with advice if it is another one, their lines, and JSON with line numbers.

All functions that read raise DataError for a file that cannot be read, is not in the given encoding, or is not JSON.
"""

import codecs
import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from qacg_models.errors import InputError
from qacg_models.sentiment.example import DataError
from qacg_models.utils.text import parse_json, parse_json_at

STANDARD_INPUT = Path("-")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
UTF_8 = "utf-8"
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
_SPACE = re.compile(r"\s*")


def checked_encoding(name: str) -> str:
    """Returns the name of a text encoding: "utf-8" for all spellings of UTF-8, other names unchanged."""
    try:
        found = codecs.lookup(name)
        "".encode(name)  # fails for codecs such as base64 and rot13
    except (LookupError, ValueError, TypeError):
        raise InputError(
            f"encoding: expected the name of an encoding such as utf-8, cp1252, latin-1 or utf-16, got {name!r}"
        ) from None
    return UTF_8 if found.name in ("utf-8", "utf-8-sig") else name


def check_uncompressed(path: Path) -> None:
    """Raises DataError, with advice, for a path with the suffix of a compressed file."""
    if path.suffix.lower() in COMPRESSED:
        raise DataError(path, None, f"expected a file that is not compressed, got {path.suffix}; decompress it")


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file, or of standard input for STANDARD_INPUT; raises DataError if it is unreadable."""
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
    before = content[: error.start].decode(encoding, "ignore")
    number = before.count("\n") + 1
    if encoding != UTF_8:
        return DataError(
            path,
            number,
            f"is not {encoding} (byte {error.start + 1:,} of the file is 0x{content[error.start]:02x}); pass the"
            " file's encoding with --encoding",
        )
    start = content.rfind(b"\n", 0, error.start) + 1
    line = content[start:].split(b"\n", 1)[0]
    western = line.decode("cp1252", "replace")
    advice = next((advice for mark, advice in _BEGINNINGS.items() if number == 1 and content.startswith(mark)), None)
    if advice is None and not line.decode(UTF_8, "ignore").removeprefix("\ufeff").isascii():
        advice = "the line also has UTF-8 characters, so the file is damaged or mixes encodings: save it as UTF-8"
    elif advice is None and ("\ufffd" in western or _NOT_WESTERN.search(western)):
        advice = "pass the encoding that the file was saved in, such as --encoding cp1251 or gb18030, or save it as"
        advice += " UTF-8"
    elif advice is None:
        advice = "this looks like Windows-1252: pass --encoding cp1252"
    place = f"byte {error.start - start + 1} of the line is 0x{content[error.start]:02x}"
    return DataError(path, number, f"is not UTF-8 ({place}); {advice}")


def numbered_lines(path: Path, encoding: str = UTF_8) -> Iterator[tuple[int, str]]:
    """Yields the number (from 1) and the text of every line, without its line end."""
    for number, line in enumerate(open_text(path, encoding), 1):
        yield number, line.rstrip("\r\n")


def json_values(path: Path, encoding: str = UTF_8, lines: bool = False) -> Iterator[tuple[int, object]]:
    """Yields the line number and the value of each item of a JSON array, or of each line of JSON lines.

    The number of an item is that of the line on which it begins. If the whole array is on one line, as pandas writes
    it, the number is the item's position in the array (from 1).

    Args:
        path: the file, or STANDARD_INPUT.
        encoding: encoding of the file.
        lines: True: the file has a value on every line that is not blank. False: that is so if it is empty or begins
            with {; otherwise it is an array.
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
        raise DataError(
            path, text.count("\n", 0, position) + 1, "expected the end of the file after the array, got more text"
        )
