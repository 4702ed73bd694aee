"""Texts: counts and clipped values in messages, plain text files, sentences.

A lone surrogate is half of a UTF-16 character. A Python str can contain one, from a JSON escape or from bytes of the
command line that are not UTF-8; files, tokenizers and terminals reject it.

A spreadsheet runs a cell of a CSV as a formula if it begins with `=`, `+`, `-` or `@`, quoted or not.
"""

import errno
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def counted(count: int, one: str, many: str | None = None) -> str:
    """Returns a count with its noun, as "1 row" and "2,000 rows"; `many` is None for `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def clipped(text: str, most: int = 80) -> str:
    """Returns a text of at most `most` characters: the text, or its beginning with "..."."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def percent(share: float | None) -> str:
    """Formats a share in per cent, with one decimal and without the % sign; "n/a" for NaN and None."""
    return "n/a" if share is None or math.isnan(share) else f"{100 * share:.1f}"


def mean_and_deviation(values: Sequence[float], scale: float) -> str:
    """Formats mean and standard deviation, times `scale`, as "87.1 ± 0.3"; for a single value, the mean only."""
    mean = f"{scale * statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {scale * statistics.stdev(values):.1f}"


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]], texts: int) -> str:
    """Returns a Markdown table whose first `texts` columns are left-aligned, and the others right-aligned."""
    rule = "|" + "---|" * texts + "---:|" * (len(header) - texts)
    heading, *body = (f"| {' | '.join(cells)} |" for cells in (header, *lines))
    return "\n".join([heading, rule, *body])


# Without a limit, reading a device or a damaged file that has no end would use up the memory.
MOST_FILE_BYTES = 256 << 20  # bytes of a file that is read at once

_SURROGATE = re.compile("[\ud800-\udfff]")
# An escape of a surrogate in a JSON text, after an even number of backslashes: a pair, or half of a character.
_SURROGATE_ESCAPE = re.compile(
    r"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>\\u[dD][89a-fA-F]..))", re.DOTALL
)
_DECODER = json.JSONDecoder()
# Spreadsheets skip white space before the sign. Chinese, Japanese and Korean ones accept full-width signs too. A tab or
# carriage return can move the rest of the cell into a cell of its own.
_FORMULA = re.compile(r"'*(?:[\t\r]|[\s\0]*[=+\-@＝＋－＠])")


def read_text(path: Path) -> str:
    """Reads a UTF-8 file of at most `MOST_FILE_BYTES`; raises OSError (EFBIG) for a larger one."""
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
    """Returns the value of a JSON text; raises json.JSONDecodeError as `parse_json_at` does."""
    value, end = parse_json_at(text, len(text) - len(text.lstrip()))
    rest = text[end:].lstrip()
    if rest:
        raise json.JSONDecodeError("more text follows the value", text, len(text) - len(rest))
    return value


def parse_json_at(text: str, start: int) -> tuple[object, int]:
    """Returns the JSON value that begins at `start`, and the position of its end; raises json.JSONDecodeError only."""
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
    for escape in _SURROGATE_ESCAPE.finditer(text, start, end):
        if half := escape["half"]:
            raise json.JSONDecodeError(f"the escape {half} is half a character", text, escape.start("half"))
    return value, end


# Places where a sentence can end: a stop with optional closing quotes or brackets, or an empty line.
_BREAK = re.compile(r"""(?P<stop>[.!?](?P<closing>["'”’)\]]*)(?=\s)|[。！？]+[」』”’）]*)\s*|\n\s*\n""")
_EMPTY_LINE = re.compile(r"\n\s*\n")
_FIRST_LETTER = re.compile(r"""["'“‘(\[¿¡]*(\w)""")
_WORD_FOLLOWS = re.compile(r"[^\w.!?。！？]*\w")
_LAST_WORD = re.compile(r"(\w*)[^\w\s.]*$")
# Words after which "." does not end a sentence if a lower-case letter follows. Single letters (e.g., z.B., p.m.) need
# no entry.
# fmt: off
_ABBREVIATIONS = {
    "al", "approx", "bzw", "ca", "cf", "co", "dept", "dr", "est", "etc", "fig", "hrs", "inc",
    "incl", "ltd", "max", "min", "mr", "mrs", "ms", "no", "nr", "st", "str", "usw", "vs",
}
# fmt: on
_WORD_LIMIT = 20  # characters before a stop that are searched for the word; more than the longest abbreviation


def split_sentences(text: str) -> list[str]:
    """Splits plain prose into sentences by punctuation and empty lines.

    A stop and white space end a sentence; the full-width stops of Chinese and Japanese need no white space. Before a
    lower-case letter, "." does not end a sentence after a known abbreviation, a single letter or another ".". Before
    a lower-case letter, no stop ends a sentence if a closing quote or bracket follows it: `"Good!" she said`. White
    space in a sentence becomes single spaces.
    """
    found, start = [], 0
    for match in _BREAK.finditer(text):
        if _is_end(text, match):
            found.append(text[start : match.start() + len(match["stop"] or "")])
            start = match.end()
    found.append(text[start:])
    return [" ".join(sentence.split()) for sentence in found if sentence.strip()]


def _is_end(text: str, match: re.Match) -> bool:
    if _EMPTY_LINE.search(match.group()):
        return True
    stop = match["stop"]
    if stop[0] != "." and not match["closing"]:
        return _WORD_FOLLOWS.match(text, match.end()) is not None
    first = _FIRST_LETTER.match(text, match.end())
    if first is None or not first[1].islower():
        return first is not None
    if match["closing"]:
        return False
    word = _LAST_WORD.search(text[max(0, match.start() - _WORD_LIMIT) : match.start()])[1]
    return len(word) > 1 and word.casefold() not in _ABBREVIATIONS


def normalized(sentence: str) -> str:
    """Returns a case-folded sentence with single spaces; sentences equal in this form count as the same sentence."""
    return " ".join(sentence.casefold().split())
