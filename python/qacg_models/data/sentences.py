"""Splits prose into sentences, and normalises sentences so that they can be compared."""

import re

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
    a lower-case letter, no stop ends a sentence if a closing quote or bracket follows it: `"Good!" she said`.

    Returns:
        The sentences with single spaces; an empty list for a blank text.
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
