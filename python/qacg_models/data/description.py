"""What a split holds, and what splits share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from qacg_models.data.example import Example, text_digest
from qacg_models.data.example_table import counts, distinct
from qacg_models.data.splitting import plain
from qacg_models.data.task import Task


def label_shares(rows: Sequence[Example], task: Task) -> list[float]:
    """Share of each label among the rows, in the task's order; sums to 1."""
    found = counts(rows, "label")
    return [found.get(index, 0) / len(rows) for index in range(len(task.labels))]


def describe_examples(split: str, rows: Sequence[Example], task: Task) -> str:
    """One line with the size of a split and the shares of its labels."""
    shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(task.labels, label_shares(rows, task)))
    sentences, groups = len(distinct(rows, "sentence")), len(distinct(rows, "id", "target"))
    return f"{split}: {sentences} sentences, {groups} groups, {len(rows)} rows ({shares})"


def count_overlap(splits: Mapping[str, Sequence[Example]]) -> dict[tuple[str, str], int]:
    """Distinct sentences that two splits share, for every pair; case and spaces do not make a difference."""
    found = {
        name: {text_digest(plain(text)) for (text,) in distinct(rows, "sentence")} for name, rows in splits.items()
    }
    return {(a, b): len(found[a] & found[b]) for a, b in combinations(found, 2)}


def describe_overlap(overlap: Mapping[tuple[str, str], int]) -> str:
    """One line."""
    shared = [f"{count} in both {a} and {b}" for (a, b), count in overlap.items() if count]
    return "sentences shared between splits: " + (", ".join(shared) or "none")
