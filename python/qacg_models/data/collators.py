"""How encoded rows become batches: the one place that training, evaluation and prediction take them from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class PaddingCollator:
    """Stacks the features of `encode_examples`, padded to the longest of the batch.

    Args:
        pad_token_id: fills `input_ids`; token types and the attention mask are filled with 0.
    """

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(self, features: Sequence[dict]) -> dict:
        """Tensors (B, L) of int64 for tokens, types and mask; (B,) for labels, and context ids if there are any."""
        length = max(len(feature["input_ids"]) for feature in features)

        def padded(name: str, fill: int):
            return torch.tensor([feature[name] + [fill] * (length - len(feature[name])) for feature in features])

        lengths = torch.tensor([len(feature["input_ids"]) for feature in features])
        single = [name for name in ("context_ids", "labels") if name in features[0]]
        return {
            "input_ids": padded("input_ids", self.pad_token_id),
            "token_type_ids": padded("token_type_ids", 0),
            "attention_mask": (torch.arange(length) < lengths[:, None]).long(),
        } | {name: torch.tensor([feature[name] for feature in features]) for name in single}


class PackingCollator:
    """Joins features as `encode_examples` makes them into a packed batch, for a `Trainer` or a `DataLoader`.

    The batch holds (B,) labels and context_ids, (T,) input_ids, token_type_ids and position_ids, cu_seqlens
    (B + 1,) int32, and the integer max_seqlen: the keyword arguments of the models here, one row per feature.
    `labels` and `context_ids` are there if the features have them.
    """

    def __call__(self, features: Sequence[dict]) -> dict:
        """One packed batch.

        Raises:
            ValueError: there are no features, or one has no tokens.
        """
        if not features:
            raise ValueError("features: got none, wanted at least one")
        lengths = [len(feature["input_ids"]) for feature in features]
        if not min(lengths):
            raise ValueError(f"features: number {lengths.index(0)} has no tokens, wanted at least one")
        batch = {}
        # (B,) first: transformers' Trainer takes the size of a batch from the first tensor it finds.
        for name in ("labels", "context_ids"):
            if name in features[0]:
                batch[name] = torch.tensor([feature[name] for feature in features])
        for name in ("input_ids", "token_type_ids"):
            if name in features[0]:
                batch[name] = torch.tensor([value for feature in features for value in feature[name]])
        ends = torch.tensor([0, *lengths]).cumsum(0)
        batch["position_ids"] = torch.arange(int(ends[-1])) - ends[:-1].repeat_interleave(torch.tensor(lengths))
        return batch | {"cu_seqlens": ends.int(), "max_seqlen": max(lengths)}


def rows_of(batch: dict, start: int, end: int) -> dict:
    """The rows `start` to `end`, not included, of a batch of either collator."""
    if "cu_seqlens" not in batch:
        return {name: values[start:end] for name, values in batch.items()}
    offsets = batch["cu_seqlens"][start : end + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    of_tokens = ("input_ids", "token_type_ids", "position_ids")
    found = {
        name: values[first:last] if name in of_tokens else values[start:end]
        for name, values in batch.items()
        if name not in ("cu_seqlens", "max_seqlen")
    }
    return found | {"cu_seqlens": offsets - first, "max_seqlen": int(offsets.diff().max())}


class PaddedBatches:
    """Batches (B, L), padded to their longest row."""

    def __init__(self, pad_token_id: int):
        self.collate = PaddingCollator(pad_token_id)

    def __call__(self, features: Sequence[dict]) -> dict:
        """The inputs of the model for features of `encode_examples`."""
        return self.collate(features)

    def describe(self, padding: float) -> str:
        """One line on what becomes of the padding."""
        return f"batches are padded to their longest row: {padding:.0%} of their tokens are padding"


class PackedBatches:
    """Batches (T) of rows one after another, without padding."""

    def __call__(self, features: Sequence[dict]) -> dict:
        """The inputs of the model for features of `encode_examples`."""
        return PackingCollator()(features)

    def describe(self, padding: float) -> str:
        """One line on what becomes of the padding."""
        return f"batches are packed: without it {padding:.0%} of their tokens would be padding"


def batch_maker(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> PaddedBatches | PackedBatches:
    """What turns features of `encode_examples` into the inputs of `model`.

    Packed batches for fused attention, which reads them as they are; other implementations would pad them again.
    """
    if model.config._attn_implementation == "fused":
        return PackedBatches()
    return PaddedBatches(tokenizer.pad_token_id)


def padding_share(lengths: Sequence[int], batch_size: int, seed: int) -> float:
    """Share of padding in batches of rows of these lengths drawn at random, each padded to its longest row."""
    shuffled = [*lengths]
    random.Random(seed).shuffle(shuffled)
    batches = [shuffled[start : start + batch_size] for start in range(0, len(shuffled), batch_size)]
    return 1 - sum(shuffled) / sum(max(batch) * len(batch) for batch in batches)


def by_length(lengths: Sequence[int]) -> list[int]:
    """Numbers of the rows, shortest first: batches of like lengths have little padding."""
    return sorted(range(len(lengths)), key=lengths.__getitem__)
