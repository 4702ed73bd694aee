"""Text encodings: files in other encodings are converted to UTF-8, with advice if decoding fails."""

import codecs
import io
import re
from pathlib import Path
from typing import BinaryIO

from qacg_models.data.example import DataError
from qacg_models.errors import InputError

UTF_8 = "utf-8"
_NOT_FOR_FILES = ("escape", "utf-7", "idna", "punycode", "undefined")
# Words of Western languages rarely have three consecutive accented letters.
_NOT_WESTERN = re.compile("[\u00c0-\u00ff]{3}")
_BLOCK = 1 << 16
_GZIP = b"\x1f\x8b"
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Single-byte Western encodings: their non-ASCII text is almost never valid UTF-8 by chance.
_WESTERN = ("iso8859-1", "iso8859-15", "cp1252")


def checked_encoding(name: str) -> str:
    """Returns the name of a text encoding: "utf-8" for all spellings of UTF-8, other names unchanged.

    Raises:
        InputError: Python has no text encoding of that name, or it is not an encoding of files (utf-7, for example).
    """
    try:
        found = codecs.lookup(name)
        "".encode(name)  # fails for codecs such as base64 and rot13
        if any(kind in found.name for kind in _NOT_FOR_FILES):
            raise LookupError(name)
    except (LookupError, ValueError, TypeError):
        raise InputError(
            f"encoding: expected the name of an encoding such as utf-8, cp1252, latin-1 or utf-16, got {name!r}"
        ) from None
    return UTF_8 if found.name in ("utf-8", "utf-8-sig") else name


def open_as_utf8(path: Path, handle: BinaryIO, encoding: str) -> BinaryIO:
    """Returns a stream that converts a file from another encoding to UTF-8; closing the stream closes `handle`.

    Reading the stream raises DataError for bytes that the encoding cannot decode, with line and byte, and for a missing
    byte order mark that the encoding requires. If `encoding` is Latin-1, Latin-9 or Windows-1252, reading a file that
    looks like UTF-8 or UTF-16 raises DataError too.

    Args:
        path: path of the file, for errors.
        handle: the opened file.
        encoding: name of the file's encoding.
    """
    return io.BufferedReader(_AsUtf8(path, handle, encoding), _BLOCK)


def encoding_advice(raw: bytes, is_first: bool) -> str:
    """Returns advice for an error about a line that is not UTF-8.

    Args:
        raw: the bytes of the line.
        is_first: whether the line is the first of the file.
    """
    if is_first and raw.startswith(_GZIP):
        return "this looks like a gzip file: decompress it"
    if is_first and raw.startswith(codecs.BOM_UTF32_LE):
        return "this looks like UTF-32: pass --encoding utf-32"
    if is_first and raw.startswith(_UTF_16_MARKS):
        return "this looks like UTF-16: pass --encoding utf-16"
    if is_first and raw.startswith(b"PK\x03\x04"):
        return "this looks like an Excel workbook or a ZIP file: rename a workbook so that it ends in .xlsx"
    if not raw.decode(UTF_8, "ignore").removeprefix("\ufeff").isascii():
        return "the line also has UTF-8 characters, so the file is damaged or mixes encodings: save it as UTF-8"
    text = raw.decode("cp1252", "replace")
    if "\ufffd" in text or _NOT_WESTERN.search(text):
        return "pass the encoding that the file was saved in, such as --encoding cp1251 or gb18030, or save it as UTF-8"
    return "this looks like Windows-1252: pass --encoding cp1252"


class _AsUtf8(io.RawIOBase):
    def __init__(self, path: Path, handle: BinaryIO, encoding: str):
        self._path, self._handle, self._encoding = path, handle, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready = b""
        self._bytes = self._line_ends = 0  # numbers of bytes and line ends in the decoded blocks
        self._ended = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._handle.close()
        super().close()

    def readinto(self, buffer) -> int:
        while not self._ready and not self._ended:
            block = self._handle.read(_BLOCK)
            self._ended = not block
            self._ready = self._decoded(block).encode(UTF_8)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _decoded(self, block: bytes) -> str:
        if self._bytes == 0:
            self._check_not_unicode(block)
        try:
            text = self._decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            pending = len(error.object) - len(block)  # bytes of the previous block
            self._decoder.errors = "ignore"
            before = self._decoder.decode(block[: max(error.start - pending, 0)])
            raise DataError(
                self._path,
                1 + self._line_ends + before.count("\n"),
                f"is not {self._encoding} (byte {self._bytes - pending + error.start + 1:,} of the file is"
                f" 0x{error.object[error.start]:02x}); pass the file's encoding with --encoding",
            ) from None
        except UnicodeError:  # UTF-16 or UTF-32 without a byte order mark
            reason = f"does not begin with a byte order mark, which {self._encoding} requires"
            raise DataError(self._path, 1, f"{reason}; pass --encoding utf-8 or utf-16-le") from None
        self._bytes += len(block)
        self._line_ends += text.count("\n")
        return text

    def _check_not_unicode(self, block: bytes) -> None:
        if codecs.lookup(self._encoding).name not in _WESTERN or block.isascii():
            return
        if block.startswith(_UTF_16_MARKS):
            raise DataError(self._path, 1, f"looks like UTF-16, not {self._encoding}: pass --encoding utf-16")
        try:
            codecs.getincrementaldecoder(UTF_8)().decode(block)
        except UnicodeDecodeError:
            return
        raise DataError(self._path, None, f"looks like UTF-8, not {self._encoding}: pass --encoding utf-8")
