"""Hidden words: while training, some pieces of a text are replaced by the one for unknown words.

A model that begins at random learns whole sentences of a small file by heart; with words missing at every look, it has
to find the ones that say it (word dropout: Iyyer et al., 2015).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from qacg_models.errors import InputError


class WordDropout:
    """Replaces pieces of the first segment, where special tokens stay.

    Args:
        share: of the pieces that are replaced, each by itself, in [0, 1).
        unknown: id of the token that takes their place.
        special: ids that stay.

    Raises:
        InputError: words are to be hidden, and the tokenizer has no such token.
    """

    def __init__(self, share: float, unknown: int | None, special: Iterable[int]):
        if share and unknown is None:
            raise InputError(f"word_dropout: got {share} with a tokenizer that has no unknown token; wanted 0")
        self.share, self.unknown, self.special = share, unknown, torch.tensor(sorted(special))

    def __call__(self, inputs: dict) -> dict:
        """A batch with other `input_ids`, of any shape, drawn from torch's generator, whose state checkpoints keep."""
        if not self.share:
            return inputs
        pieces = inputs["input_ids"]
        hidden = torch.rand(pieces.shape).to(pieces.device) < self.share
        hidden &= (inputs["token_type_ids"] == 0) & ~torch.isin(pieces, self.special.to(pieces.device))
        return inputs | {"input_ids": torch.where(hidden, self.unknown, pieces)}
