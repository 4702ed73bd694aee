"""Which sentences become dev where no dev is shipped, and which stand in two splits, so that figures are optimistic."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import combinations

from qacg_models.data.example import Example
from qacg_models.errors import InputError


def count_overlap(splits: Mapping[str, Sequence[Example]]) -> dict[tuple[str, str], int]:
    """Distinct sentences that two splits share, for every pair; case and spaces do not make a difference."""
    sentences = {name: {plain(row.sentence) for row in rows} for name, rows in splits.items()}
    return {(a, b): len(sentences[a] & sentences[b]) for a, b in combinations(sentences, 2)}


def plain(sentence: str) -> str:
    """A sentence without what does not make it another one."""
    return " ".join(sentence.casefold().split())


def describe_overlap(overlap: Mapping[tuple[str, str], int]) -> str:
    """One line."""
    shared = [f"{count} in both {a} and {b}" for (a, b), count in overlap.items() if count]
    return "sentences shared between splits: " + (", ".join(shared) or "none")


def split_dev(rows: Sequence[Example], fraction: float, seed: int) -> tuple[list[Example], list[Example]]:
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
    parts: tuple[list[Example], list[Example]] = ([], [])
    for row in rows:
        parts[plain(row.sentence) in chosen].append(row)
    return parts


def _rank(text: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\n{text}".encode()).digest()
