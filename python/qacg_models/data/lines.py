"""Text files read as lines or as items of a JSON array, with line numbers."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from qacg_models.data.encodings import UTF_8, encoding_advice, open_as_utf8
from qacg_models.data.example import DataError
from qacg_models.utils.plain_text import MOST_FILE_BYTES, MOST_LINE_BYTES, mebibytes, parse_json, parse_json_at

_SPACE = re.compile(r"\s*")


STANDARD_INPUT = Path("-")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")


def check_uncompressed(path: Path) -> None:
    """Raises DataError, with advice, for a path with the suffix of a compressed file."""
    if path.suffix.lower() in COMPRESSED:
        raise DataError(path, None, f"expected a file that is not compressed, got {path.suffix}; decompress it")


def open_file(path: Path, encoding: str = UTF_8):
    """Opens a file, or standard input for STANDARD_INPUT, as a stream of UTF-8 bytes.

    Args:
        path: the file, or STANDARD_INPUT.
        encoding: encoding of the file. Other encodings than UTF-8 are converted; UTF-8 is returned unchecked.

    Raises:
        DataError: the file cannot be opened.
    """
    try:
        # closefd=False: closing the reader must not close the process's standard input.
        handle = open(0, "rb", closefd=False) if path == STANDARD_INPUT else path.open("rb")  # noqa: SIM115
    except OSError as error:
        raise DataError(path, None, f"cannot be read ({error.strerror})") from None
    return handle if encoding == UTF_8 else open_as_utf8(path, handle, encoding)


def numbered_lines(path: Path, encoding: str = UTF_8, most_bytes: int | None = None) -> Iterator[tuple[int, str]]:
    """Yields the number (from 1) and the text of every line, with one line in memory at a time.

    Line ends and a byte order mark are removed. Only line feeds end lines: other Unicode line ends occur inside texts.

    Args:
        path: the file, or STANDARD_INPUT.
        encoding: encoding of the file.
        most_bytes: maximum number of bytes of a line; None: `MOST_LINE_BYTES`.

    Raises:
        DataError: the file cannot be opened, a line is too long, or the text is not in `encoding`.
    """
    most_bytes = MOST_LINE_BYTES if most_bytes is None else most_bytes
    with open_file(path, encoding) as handle:
        for number in itertools.count(1):
            raw = handle.readline(most_bytes + 1)
            if not raw:
                return
            if len(raw) > most_bytes:
                raise DataError(
                    path,
                    number,
                    f"expected lines of at most {mebibytes(most_bytes)}, got a longer line; pass a text file whose"
                    " lines end with line feeds",
                )
            try:
                # A file saved by a spreadsheet may begin with a byte order mark.
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                advice = encoding_advice(raw, number == 1)
                raise DataError(
                    path,
                    number,
                    f"is not UTF-8 (byte {error.start + 1} of the line is 0x{raw[error.start]:02x}); {advice}",
                ) from None
            if number == 1 and "\0" in text[:2]:
                order = "be" if text[0] == "\0" else "le"
                raise DataError(path, 1, f"looks like UTF-16 without a byte order mark: pass --encoding utf-16-{order}")
            yield number, text.rstrip("\r\n")


def json_lines(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, object]]:
    """Yields the number and the JSON value of every line that is not blank.

    Raises:
        DataError: a line is not one JSON value.
    """
    for number, text in lines:
        if not text.strip():
            continue
        try:
            yield number, parse_json(text)
        except json.JSONDecodeError as error:
            advice = "write one object per line, or an array in a file that ends in .json"
            reason = f"is not JSON ({error.msg}, column {error.colno}); {advice}"
            raise DataError(path, number, reason) from None


def json_items(path: Path, encoding: str = UTF_8) -> Iterator[tuple[int, object]]:
    """Yields the number and value of each array item, or of each line if a file is empty or begins with {.

    Raises:
        DataError: as in `json_array` and `json_lines`.
    """
    lines = numbered_lines(path, encoding, MOST_FILE_BYTES)
    head = list(_up_to_text(lines))
    first = head[-1][1].lstrip() if head else ""
    if not first or first.startswith("{"):
        yield from json_lines(path, itertools.chain(head, lines))
    else:
        yield from _array_items(path, itertools.chain(head, lines))


def json_array(path: Path, encoding: str = UTF_8) -> Iterator[tuple[int, object]]:
    """Yields the line number (from 1) and the value of each item of a JSON array.

    The number is that of the line on which the item begins. If the whole array is on one line, as pandas writes it, the
    number is the item's position in the array (from 1). The whole text is in memory.

    Raises:
        DataError: the file cannot be opened, has more than `MOST_FILE_BYTES` in UTF-8, is not in `encoding`, or is not
            a JSON array.
    """
    yield from _array_items(path, numbered_lines(path, encoding, MOST_FILE_BYTES))


def _up_to_text(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yields the lines up to the first one that is not blank."""
    for number, text in lines:
        yield number, text
        if text.strip():
            return


def _array_items(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, object]]:
    text = _whole_text(path, lines)
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


def _whole_text(path: Path, numbered: Iterable[tuple[int, str]]) -> str:
    lines, size = [], 0
    for _, line in numbered:
        lines.append(line)
        size += len(line.encode()) + 1
        if size > MOST_FILE_BYTES:
            raise DataError(
                path,
                None,
                f"expected a JSON array of at most {mebibytes(MOST_FILE_BYTES)}, got a larger file; write it as JSONL,"
                " which is read line by line",
            )
    return "\n".join(lines)
