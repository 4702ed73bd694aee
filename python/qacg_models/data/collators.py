"""Batches of encoded rows, padded or packed, for training, evaluation and prediction."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class PaddingCollator:
    """Pads the features of `encode_examples` to the longest row of the batch.

    Args:
        pad_token_id: padding value of `input_ids`; token types and the attention mask are padded with 0.
    """

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(self, features: Sequence[dict]) -> dict:
        """Int64 tensors: (B, L) token ids, types and mask; (B,) labels and context ids if present."""
        lengths = torch.tensor([len(feature["input_ids"]) for feature in features])
        single = [name for name in ("context_ids", "labels") if name in features[0]]
        return {
            "input_ids": padded_rows([feature["input_ids"] for feature in features], self.pad_token_id),
            "token_type_ids": padded_rows([feature["token_type_ids"] for feature in features], 0),
            "attention_mask": (torch.arange(int(lengths.max())) < lengths[:, None]).long(),
        } | {name: torch.tensor([feature[name] for feature in features]) for name in single}

    def describe(self, padding: float) -> str:
        """One line about a share of padding."""
        return f"batches are padded to their longest row: {padding:.0%} of their tokens are padding"


class PackingCollator:
    """Concatenates the features of `encode_examples` into a packed batch without padding.

    Usable as the `collate_fn` of a `DataLoader` or as the collator of a `Trainer`. The batch has the keyword
    arguments of this package's models: (B,) labels and context_ids if the features have them; (T,) input_ids,
    token_type_ids and position_ids; cu_seqlens (B + 1,) int32; and the integer max_seqlen.
    """

    def __call__(self, features: Sequence[dict]) -> dict:
        """Returns one packed batch.

        Raises:
            ValueError: there are no features, or one has no tokens.
        """
        if not features:
            raise ValueError("features: expected at least one, got none")
        lengths = [len(feature["input_ids"]) for feature in features]
        if not min(lengths):
            raise ValueError(f"features: expected at least one token each, got none in feature {lengths.index(0)}")
        batch = {}
        # (B,) first: transformers' Trainer takes the batch size from the first tensor it finds.
        for name in ("labels", "context_ids"):
            if name in features[0]:
                batch[name] = torch.tensor([feature[name] for feature in features])
        for name in ("input_ids", "token_type_ids"):
            if name in features[0]:
                batch[name] = torch.tensor([value for feature in features for value in feature[name]])
        ends = torch.tensor([0, *lengths]).cumsum(0)
        batch["position_ids"] = torch.arange(int(ends[-1])) - ends[:-1].repeat_interleave(torch.tensor(lengths))
        return batch | {"cu_seqlens": ends.int(), "max_seqlen": max(lengths)}

    def describe(self, padding: float) -> str:
        """One line about the share of padding that packing avoids."""
        return f"batches are packed: without it {padding:.0%} of their tokens would be padding"


def padded_rows(rows: Sequence[list[int]], fill: int) -> torch.Tensor:
    """Rows as one int64 tensor, padded at their ends to the longest."""
    length = max(map(len, rows))
    return torch.tensor([row + [fill] * (length - len(row)) for row in rows], dtype=torch.int64)


def slice_batch(batch: dict, start: int, end: int) -> dict:
    """Rows `start` to `end` (exclusive) of a padded or packed batch."""
    if "cu_seqlens" not in batch:
        return {name: values[start:end] for name, values in batch.items()}
    offsets = batch["cu_seqlens"][start : end + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    per_token = ("input_ids", "token_type_ids", "position_ids")
    sliced = {
        name: values[first:last] if name in per_token else values[start:end]
        for name, values in batch.items()
        if name not in ("cu_seqlens", "max_seqlen")
    }
    return sliced | {"cu_seqlens": offsets - first, "max_seqlen": int(offsets.diff().max())}


def batch_maker(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> PaddingCollator | PackingCollator:
    """The collator that suits a model: packed for fused attention, padded for others.

    Only fused attention reads packed batches directly; other implementations would pad them again.
    """
    if model.config._attn_implementation == "fused":
        return PackingCollator()
    return PaddingCollator(tokenizer.pad_token_id)


def padding_share(lengths: Sequence[int], batch_size: int, seed: int) -> float:
    """Share of padding tokens in random batches of rows with these lengths."""
    shuffled = [*lengths]
    random.Random(seed).shuffle(shuffled)
    batches = [shuffled[start : start + batch_size] for start in range(0, len(shuffled), batch_size)]
    return 1 - sum(shuffled) / sum(max(batch) * len(batch) for batch in batches)


def by_length(lengths: Sequence[int]) -> list[int]:
    """Row indices, shortest first, so that batches have little padding."""
    return sorted(range(len(lengths)), key=lengths.__getitem__)
