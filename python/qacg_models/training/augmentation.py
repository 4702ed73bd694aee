"""Augmentation of the training rows, for models that start from random weights and would overfit a small file.

Word dropout replaces some tokens by the unknown token (Iyyer et al., 2015). Joined texts put a second text before or
after the row's own text. The second text has no opinion on the row's aspect, so the model has to find where the aspect
is discussed (concatenation as augmentation: Kondo et al., 2021, for translation).
"""

from collections.abc import Iterable, Iterator

import torch

from qacg_models.data.tokenization import FeatureTable
from qacg_models.errors import InputError

ABSENT = 0  # the label that means "no opinion", where a task has one
RowKey = int | tuple[int, int]


class WordDropout:
    """Replaces random tokens of the first segment by the unknown token; special tokens are kept.

    Args:
        share: probability that a token is replaced, in [0, 1).
        unknown: id of the unknown token; None if the tokenizer has none.
        special: ids of special tokens.

    Raises:
        InputError: `share` is not 0 and the tokenizer has no unknown token.
    """

    def __init__(self, share: float, unknown: int | None, special: Iterable[int]):
        if share and unknown is None:
            raise InputError(f"word_dropout: expected 0 for a tokenizer without an unknown token, got {share}.")
        self.share, self.unknown, self.special = share, unknown, torch.tensor(sorted(special))

    def __call__(self, inputs: dict) -> dict:
        """Returns the batch with randomly chosen tokens replaced by the unknown token.

        Uses torch's default generator, whose state is part of checkpoints.
        """
        if not self.share:
            return inputs
        tokens = inputs["input_ids"]
        replaced = torch.rand(tokens.shape).to(tokens.device) < self.share
        replaced &= (inputs["token_type_ids"] == 0) & ~torch.isin(tokens, self.special.to(tokens.device))
        return inputs | {"input_ids": torch.where(replaced, self.unknown, tokens)}


class JoinedTexts:
    """A sequence of training rows; a pair of indices as key joins the texts of two rows of the same aspect.

    Args:
        rows: features with context ids.
        share: share of the sampled rows that are joined, in [0, 1).
        max_length: maximum number of tokens of a joined row. If a joined row would be longer, one of its two rows is
            returned unchanged: the first one with an opinion, or the first row if neither has an opinion.
    """

    def __init__(self, rows: FeatureTable, share: float, max_length: int):
        self.rows, self.share, self.max_length = rows, share, max_length
        self.contexts = torch.as_tensor(rows.contexts)
        absent = torch.nonzero(torch.as_tensor(rows.labels) == ABSENT).flatten()
        contexts = self.contexts[absent].long()
        # Rows without an opinion, sorted by aspect.
        self.absent = absent[torch.argsort(contexts, stable=True)]
        self.counts = torch.bincount(contexts, minlength=int(self.contexts.max()) + 1)
        self.starts = self.counts.cumsum(0) - self.counts

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: RowKey) -> dict:
        if isinstance(key, int):
            return self.rows[key]
        first, second = self.rows[key[0]], self.rows[key[1]]
        # The joined row omits the separator at the end of the first text, and the first token of the second row.
        end = first["token_type_ids"].count(0) - 1
        if end + len(second["input_ids"]) - 1 > self.max_length:
            return first if first["labels"] != ABSENT or second["labels"] == ABSENT else second
        joined = {name: first[name][:end] + second[name][1:] for name in ("input_ids", "token_type_ids")}
        return second | joined | {"labels": first["labels"] or second["labels"]}

    def pairs(self, drawn: torch.Tensor, generator: torch.Generator) -> Iterator[RowKey]:
        """Yields the index of each sampled row, or a pair of indices if the row is joined with another row.

        The other row is drawn at random from the rows of the same aspect that are labelled "no opinion". If there are
        none, the sampled row is not joined. Which of the two rows comes first is random.

        Args:
            drawn: (M) indices of the sampled rows.
            generator: source of the random numbers.
        """
        if not len(self.absent):
            yield from drawn.tolist()
            return
        chance = torch.rand((3, len(drawn)), generator=generator, dtype=torch.float64)
        contexts = self.contexts[drawn].long()
        counts = self.counts[contexts]
        others = self.absent[(self.starts[contexts] + (chance[0] * counts).long()).clamp(max=len(self.absent) - 1)]
        joined = ((chance[1] < self.share) & (counts > 0)).tolist()
        for row, other, is_joined, is_first in zip(drawn.tolist(), others.tolist(), joined, (chance[2] < 0.5).tolist()):
            yield (row, other) if is_joined and is_first else (other, row) if is_joined else row
