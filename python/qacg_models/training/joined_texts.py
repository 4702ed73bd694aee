"""Joined texts: while training, some rows get a second text beside their own, one without an opinion on their aspect.

What is said of the aspect then stands before or behind more that is said of others. A model that begins at random
learns whole texts of a small file by heart; among texts that it never sees twice it has to find where the aspect is
spoken of (concatenation as augmentation: Kondo et al., 2021, for translation).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from qacg_models.data.feature_table import FeatureTable

ABSENT = 0  # the label that means "no opinion", where a task has one
Key = int | tuple[int, int]


class JoinedTexts:
    """Rows of a table by number, and two rows as one by a pair of numbers, which share an aspect.

    Args:
        rows: with context ids.
        share: of the drawn rows that are joined, in [0, 1).
        most: tokens; a pair that has more is the one of the two that has an opinion, or the first.
    """

    def __init__(self, rows: FeatureTable, share: float, most: int):
        self.rows, self.share, self.most = rows, share, most
        self.contexts = torch.as_tensor(rows.column("context_ids"))
        absent = torch.nonzero(torch.as_tensor(rows.labels()) == ABSENT).flatten()
        found = self.contexts[absent].long()
        # Rows without an opinion, those of one aspect beside one another.
        self.absent = absent[torch.argsort(found, stable=True)]
        self.counts = torch.bincount(found, minlength=int(self.contexts.max()) + 1)
        self.starts = self.counts.cumsum(0) - self.counts

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Key) -> dict:
        if isinstance(key, int):
            return self.rows[key]
        first, second = self.rows[key[0]], self.rows[key[1]]
        # Without the last token of the first text's segment, its separator, and the first of the second row.
        end = first["token_type_ids"].count(0) - 1
        if end + len(second["input_ids"]) - 1 > self.most:
            return first if first["labels"] != ABSENT or second["labels"] == ABSENT else second
        joined = {name: first[name][:end] + second[name][1:] for name in ("input_ids", "token_type_ids")}
        return second | joined | {"labels": first["labels"] or second["labels"]}

    def pairs(self, drawn: torch.Tensor, generator: torch.Generator) -> Iterator[Key]:
        """Keys for rows that were drawn: some as they are, the others with a row of their aspect at either side."""
        chance = torch.rand((3, len(drawn)), generator=generator, dtype=torch.float64)
        contexts = self.contexts[drawn].long()
        counts = self.counts[contexts]
        others = self.absent[(self.starts[contexts] + (chance[0] * counts).long()).clamp(max=len(self.absent) - 1)]
        joined = ((chance[1] < self.share) & (counts > 0)).tolist()
        for row, other, is_joined, is_first in zip(drawn.tolist(), others.tolist(), joined, (chance[2] < 0.5).tolist()):
            yield (row, other) if is_joined and is_first else (other, row) if is_joined else row
