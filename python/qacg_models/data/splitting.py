"""Which sentences become dev where no dev is shipped."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from qacg_models.data.example import Example
from qacg_models.data.example_table import ExampleTable, distinct
from qacg_models.errors import InputError


def plain(sentence: str) -> str:
    """A sentence without what does not make it another one: case, and how much space there is."""
    return " ".join(sentence.casefold().split())


def split_dev(rows: Sequence[Example], fraction: float, seed: int) -> tuple[ExampleTable, ExampleTable]:
    """Training rows and dev rows, each in the order of `rows`.

    Sentences are ordered by a hash of the seed and their text, and the first `fraction` of them are dev; all rows of
    a sentence stay together, and so do sentences with the same text.

    Raises:
        InputError: a part would be empty.
    """
    table = rows if isinstance(rows, ExampleTable) else ExampleTable(rows)
    ranks = sorted({_rank(text, seed) for (text,) in distinct(table, "sentence")})
    count = round(fraction * len(ranks))
    if not 0 < count < len(ranks):
        raise InputError(
            f"dev fraction: got {fraction} of {len(ranks)} sentences, which leaves no "
            f"{'training' if count else 'dev'} split; wanted another fraction, or a file of its own for dev"
        )
    last = ranks[count - 1]
    return (
        table.where(lambda texts: [_rank(text, seed) > last for text in texts], "sentence"),
        table.where(lambda texts: [_rank(text, seed) <= last for text in texts], "sentence"),
    )


def _rank(text: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\n{plain(text)}".encode()).digest()
