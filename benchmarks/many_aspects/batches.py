"""Batches of texts with all questions about them; a question is a pair of a text and an aspect."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from qacg_models.data import Example
from qacg_models.data.collators import PackingCollator
from qacg_models.data.tokenization import encode_examples
from qacg_models.modules.packing import Packing, packing_of
from torch import Tensor
from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Tokens:
    """Packed texts.

    Attributes:
        ids, types, positions: token ids, token types and positions, (T) each, for T tokens in all texts.
        packing: the offsets of the texts.
    """

    ids: Tensor
    types: Tensor
    positions: Tensor
    packing: Packing

    @classmethod
    def of(cls, features: Sequence[dict]) -> "Tokens":
        """Packs encoded texts."""
        batch = PackingCollator()([{name: one[name] for name in ("input_ids", "token_type_ids")} for one in features])
        packing = packing_of(batch["cu_seqlens"], batch["max_seqlen"], batch["input_ids"])
        return cls(batch["input_ids"], batch["token_type_ids"], batch["position_ids"], packing)


@dataclass(frozen=True)
class Batch:
    """Texts and N questions about them.

    Attributes:
        texts: the packed texts.
        asked: index of each question's text in `texts`, (N).
        contexts: context id of each question, (N).
        labels: class of each question, (N).
        rows: index of each question in its split, (N).
    """

    texts: Tokens
    asked: Tensor
    contexts: Tensor
    labels: Tensor
    rows: np.ndarray


class Questions:
    """The encoded rows of a split, grouped by text.

    Args:
        rows: the examples of the split.
        tokenizer: the model's tokenizer.
        contexts: names of the contexts.
        joined: whether the name of the context is part of each text, as its second segment.
    """

    def __init__(
        self, rows: Sequence[Example], tokenizer: PreTrainedTokenizerFast, contexts: Sequence[str], joined: bool
    ):
        self.joined = joined
        self.features, _ = encode_examples(rows, tokenizer, contexts, 128, context_standalone=not joined)
        texts: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            texts.setdefault(row.sentence, []).append(index)
        self.texts = list(texts.values())

    def shuffled(self, rows: int, generator: np.random.Generator) -> list[Batch]:
        """The batches of an epoch, of whole texts in random order; all but the last have at least `rows` questions."""
        return list(self._batches(generator.permutation(len(self.texts)), rows))

    def by_length(self, rows: int) -> Iterator[Batch]:
        """Yields batches of whole texts, the shortest first; all but the last have at least `rows` questions."""
        lengths = [len(self.features[indices[0]]["input_ids"]) for indices in self.texts]
        return self._batches(np.argsort(lengths, kind="stable"), rows)

    def _batches(self, order: np.ndarray, rows: int) -> Iterator[Batch]:
        chosen: list[list[int]] = []
        for text in order:
            chosen.append(self.texts[text])
            if sum(map(len, chosen)) >= rows:
                yield self._batch(chosen)
                chosen = []
        if chosen:
            yield self._batch(chosen)

    def _batch(self, texts: Sequence[list[int]]) -> Batch:
        rows = [row for text in texts for row in text]
        # If texts are joined with the aspect, every question has a text of its own.
        encoded = rows if self.joined else [text[0] for text in texts]
        asked = range(len(rows)) if self.joined else np.repeat(range(len(texts)), [len(text) for text in texts])
        return Batch(
            Tokens.of([self.features[row] for row in encoded]),
            torch.as_tensor(np.asarray(asked)),
            torch.tensor([self.features[row]["context_ids"] for row in rows]),
            torch.tensor([self.features[row]["labels"] for row in rows]),
            np.array(rows),
        )
