"""Splits prose into sentences, and normalises sentences so that they can be compared."""

import re

# A sentence ends at . ! or ? and optional closing quotes or brackets. White space, optional opening quotes or brackets,
# and a capital or digit must follow. A sentence also ends at an empty line.
_END = re.compile(r"""(?<=[.!?])(?=["'”’)\]]*\s)["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z0-9À-ÖØ-Þ])|\n\s*\n""")
_CLOSING = re.compile(r"""^["'”’)\]]+""")


def split_sentences(text: str) -> list[str]:
    """Splits plain prose into sentences by punctuation and empty lines; abbreviations are not recognised.

    Returns:
        The sentences with single spaces; an empty list for a blank text.
    """
    found, start = [], 0
    for match in _END.finditer(text):
        closing = _CLOSING.match(match.group())
        found.append(text[start : match.start() + (closing.end() if closing else 0)])
        start = match.end()
    found.append(text[start:])
    return [" ".join(sentence.split()) for sentence in found if sentence.strip()]


def normalized(sentence: str) -> str:
    """Returns a case-folded sentence with single spaces; sentences equal in this form count as the same sentence."""
    return " ".join(sentence.casefold().split())
