"""Reader of GermEval 2017 as published in lines: source, text, relevance, sentiment, and `category:polarity` pairs.

Fields are separated by tabs, pairs by spaces; a text without opinions has no pairs. Quotes are ordinary characters. A
source is a URL, which several texts can share. The XML of the same data (semeval_xml.py) also has the targets.
"""

from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.example import DataError
from qacg_models.data.lines import numbered_lines
from qacg_models.data.opinions import AnnotatedText, no_opinions, opinion
from qacg_models.utils.cells import counted

_RELEVANCE = ("true", "false", "unknown")
_SENTIMENT = ("positive", "negative", "neutral", "unknown")
_HEADER = ["SOURCE", "TEXT", "RELEVANCE", "SENTIMENT"]  # some files have it


def texts(path: Path) -> Iterator[AnnotatedText]:
    """Yields the texts of a file, with one line in memory at a time.

    Raises:
        DataError: the file cannot be opened, a line violates the format, or no text has an opinion.
    """
    count, labelled = 0, False
    for line, row in numbered_lines(path):
        fields = row.rstrip("\t").split("\t")
        if not row.strip() or fields[:4] == _HEADER:
            continue
        if not _fits(fields):
            expected = "source, text, relevance (true or false), sentiment and category:polarity pairs"
            raise DataError(path, line, f"expected 4 or 5 tab-separated fields ({expected}), got {row[:60]!r}")
        pairs = [pair.rpartition(":") for pair in "".join(fields[4:]).split()]
        opinions = [opinion(path, line, category, polarity) for category, _, polarity in pairs]
        count, labelled = count + 1, labelled or bool(opinions)
        yield AnnotatedText(line, None, fields[1], opinions, "" if fields[1].strip() else "without text")
    if not labelled:
        raise no_opinions(path, f"{counted(count, 'text')} with no opinions, as in a test file")


def recognised(path: Path) -> bool:
    """Whether the first line of a file has the fields of this format, or the names of its fields."""
    try:
        with path.open("rb") as handle:
            fields = handle.readline(1 << 16).decode(errors="replace").removeprefix("\ufeff").split("\t")
    except OSError:
        return False
    return fields[:4] == _HEADER or _fits([field.rstrip("\r\n") for field in fields][:5])


def _fits(fields: list[str]) -> bool:
    return len(fields) in (4, 5) and fields[2].lower() in _RELEVANCE and fields[3].lower() in _SENTIMENT
