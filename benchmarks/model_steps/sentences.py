"""Batches of published sentences with their contexts, so that lengths are realistic."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from qacg_models.sentiment.dataset import load_data, sample_directory
from qacg_models.sentiment.encoding import (
    PackingCollator,
    PaddingCollator,
    encode_examples,
    load_tokenizer,
    train_tokenizer,
)

from benchmarks.cases import LONGEST

VOCABULARY = 30522  # BERT's; a tokenizer that is trained on the split uses fewer entries


@dataclass(frozen=True)
class Batch:
    """A batch of sentences in two forms: padded to the longest sentence, and packed."""

    padded: dict[str, torch.Tensor]
    packed: dict[str, object]

    @property
    def sentences(self) -> int:
        return len(self.padded["labels"])

    @property
    def device(self) -> str:
        return self.padded["labels"].device.type

    @property
    def tokens(self) -> int:
        """The number of tokens without padding."""
        return len(self.packed["input_ids"])

    @property
    def padded_tokens(self) -> int:
        """The number of tokens with padding."""
        return self.padded["input_ids"].numel()


@dataclass(frozen=True)
class Sentences:
    """Encoded sentences with their contexts, and a description of their source."""

    features: list[dict]
    contexts: list[str]
    source: str

    def draw(self, count: int, size: int, seed: int = 0, device: str = "cpu") -> list[Batch]:
        """Draws `count` batches of `size` sentences each on a device, in random order, as in training."""
        if count * size > len(self.features):
            raise ValueError(f"batches: expected at most {len(self.features)} sentences, got {count} batches of {size}")
        order = torch.randperm(len(self.features), generator=torch.Generator().manual_seed(seed)).tolist()
        chosen = [[self.features[i] for i in order[n * size : (n + 1) * size]] for n in range(count)]
        return [
            Batch(*(_on(device, collate(features)) for collate in (PaddingCollator(0), PackingCollator())))
            for features in chosen
        ]


def _on(device: str, batch: dict) -> dict:
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def default_data() -> str | None:
    """Path of SentiHood's folder below QACG_DATA; None if the variable is not set."""
    named = os.environ.get("QACG_DATA")
    return str(Path(named) / "sentihood") if named else None


def load_sentences(data: str | None, tokenizer: str | None) -> Sentences:
    """Loads and encodes the training split of a folder, or of the bundled sample, whose sentences are shorter.

    Without a tokenizer, trains one on the split, which yields slightly fewer tokens.
    """
    dataset = load_data(data or sample_directory(), ("train",))
    rows = dataset.splits["train"]
    if tokenizer is None:
        pieces = train_tokenizer([*dict.fromkeys(row.sentence for row in rows), *dataset.contexts], VOCABULARY)
    else:
        pieces = load_tokenizer(tokenizer)
    features, _ = encode_examples(rows, pieces, dataset.contexts, LONGEST)
    by = "learned" if tokenizer is None else "given"
    where = "bundled sample" if data is None else f"{Path(data).name}, train split"
    return Sentences(features, list(dataset.contexts), f"{where}, {by} vocabulary of {len(pieces)}")
