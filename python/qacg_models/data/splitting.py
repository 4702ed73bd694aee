"""A dev split where none is shipped: by sentence, and the same for the same sentences in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from qacg_models.data.leakage import plain
from qacg_models.data.rows import Row
from qacg_models.errors import InputError


def split_dev(rows: Sequence[Row], fraction: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Training rows and dev rows, each in the order of `rows`.

    Sentences are ordered by a hash of the seed and their text, and the first `fraction` of them are dev; all rows of
    a sentence stay together, and so do sentences with the same text.

    Raises:
        InputError: a part would be empty.
    """
    keys = sorted({plain(row.sentence) for row in rows}, key=lambda text: _rank(text, seed))
    count = round(fraction * len(keys))
    if not 0 < count < len(keys):
        raise InputError(
            f"dev fraction: got {fraction} of {len(keys)} sentences, which leaves no "
            f"{'training' if count else 'dev'} split; wanted another fraction, or a file of its own for dev"
        )
    chosen = set(keys[:count])
    parts: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        parts[plain(row.sentence) in chosen].append(row)
    return parts


def _rank(text: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\n{text}".encode()).digest()
