"""Sentences that stand in two splits, so that a model is judged on what it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from qacg_models.data.rows import Row


def count_overlap(splits: Mapping[str, Sequence[Row]]) -> dict[tuple[str, str], int]:
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
