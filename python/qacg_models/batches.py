"""How encoded rows become batches: the one place that training, evaluation and prediction take them from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qacg_models.tokenization import PaddingCollator

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.pretrained import EncoderPreTrainedModel


class PaddedBatches:
    """Batches (B, L), padded to their longest row."""

    def __init__(self, pad_token_id: int):
        self.collate = PaddingCollator(pad_token_id)

    def __call__(self, features: Sequence[dict]) -> dict:
        """The inputs of the model for features of `encode_rows`."""
        return self.collate(features)

    def describe(self, padding: float) -> str:
        """One line on what becomes of the padding."""
        return f"batches are padded to their longest row: {padding:.0%} of their tokens are padding"


class PackedBatches:
    """Batches (T) of rows one after another, without padding."""

    def __call__(self, features: Sequence[dict]) -> dict:
        """The inputs of the model for features of `encode_rows`."""
        from qacg_models.packing import PackingCollator

        return PackingCollator()(features)

    def describe(self, padding: float) -> str:
        """One line on what becomes of the padding."""
        return f"batches are packed: without it {padding:.0%} of their tokens would be padding"


def batch_maker(model: EncoderPreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> PaddedBatches | PackedBatches:
    """What turns features of `encode_rows` into the inputs of `model`.

    Packed batches for fused attention, which reads them as they are; other implementations would pad them again.
    """
    if model.config._attn_implementation == "fused":
        return PackedBatches()
    return PaddedBatches(tokenizer.pad_token_id)


def padding_share(features: Sequence[dict], batch_size: int, seed: int) -> float:
    """Share of padding in batches of rows drawn at random, each padded to its longest row."""
    lengths = [len(feature["input_ids"]) for feature in features]
    random.Random(seed).shuffle(lengths)
    batches = [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]
    return 1 - sum(lengths) / sum(max(batch) * len(batch) for batch in batches)


def by_length(features: Sequence[dict]) -> list[int]:
    """Numbers of the features, shortest first: batches of like lengths have little padding."""
    return sorted(range(len(features)), key=lambda index: len(features[index]["input_ids"]))
