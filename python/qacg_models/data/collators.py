"""Batches of encoded rows, padded or packed, for training, evaluation and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class PaddingCollator:
    """Pads the features of `encode_examples` to the longest row of the batch.

    Args:
        pad_token_id: padding value of `input_ids`; token types and the attention mask are padded with 0.
        share_texts: True: the batch has each distinct text once, so B is the number of distinct texts, and `text_ids`
            (N,) has the index of each feature's text; requires a model whose `config.shares_texts` is True. False: the
            batch has a text for each of the N features, so B is N.
    """

    def __init__(self, pad_token_id: int, share_texts: bool = False):
        self.pad_token_id, self.share_texts = pad_token_id, share_texts

    def __call__(self, features: Sequence[dict]) -> dict:
        """Returns one padded batch as int64 tensors; `features` must not be empty.

        For N features and B texts of at most L tokens, the batch has (B, L) input_ids, token_type_ids and
        attention_mask. It also has (N,) labels and context_ids if the features have them, and (N,) text_ids with
        `share_texts`.
        """
        texts, batch = _texts_and_values(features, self.share_texts)
        lengths = torch.tensor([len(text["input_ids"]) for text in texts])
        return batch | {
            "input_ids": padded_rows([text["input_ids"] for text in texts], self.pad_token_id),
            "token_type_ids": padded_rows([text["token_type_ids"] for text in texts], 0),
            "attention_mask": (torch.arange(int(lengths.max())) < lengths[:, None]).long(),
        }


class PackingCollator:
    """Concatenates the features of `encode_examples` into a packed batch without padding.

    Usable as the `collate_fn` of a `DataLoader` or as the `data_collator` of a `Trainer`. The batch is a
    dictionary of keyword arguments for this package's models. For N features and B texts with T tokens in all, it has:

    - (N,) int64 labels and context_ids, if the features have them;
    - (T,) int64 input_ids, position_ids and, if the features have them, token_type_ids;
    - (B + 1,) int32 cu_seqlens, and the integer max_seqlen.

    Args:
        share_texts: True: the batch has each distinct text once, so B is the number of distinct texts, and `text_ids`
            (N,) has the index of each feature's text; requires a model whose `config.shares_texts` is True. False: the
            batch has a text for each of the N features, so B is N.
    """

    def __init__(self, share_texts: bool = False):
        self.share_texts = share_texts

    def __call__(self, features: Sequence[dict]) -> dict:
        """Returns one packed batch.

        Raises:
            ValueError: there are no features, or a feature has no tokens.
        """
        if not features:
            raise ValueError("features: expected at least one, got none")
        lengths = [len(feature["input_ids"]) for feature in features]
        if not min(lengths):
            raise ValueError(f"features: expected at least one token each, got none in feature {lengths.index(0)}")
        # (N,) first: transformers' Trainer takes the batch size from the first tensor it finds.
        texts, batch = _texts_and_values(features, self.share_texts)
        lengths = [len(text["input_ids"]) for text in texts]
        for name in ("input_ids", "token_type_ids"):
            if name in texts[0]:
                batch[name] = torch.tensor([value for text in texts for value in text[name]])
        ends = torch.tensor([0, *lengths]).cumsum(0)
        batch["position_ids"] = torch.arange(int(ends[-1])) - ends[:-1].repeat_interleave(torch.tensor(lengths))
        return batch | {"cu_seqlens": ends.int(), "max_seqlen": max(lengths)}


def _texts_and_values(features: Sequence[dict], share_texts: bool) -> tuple[Sequence[dict], dict[str, torch.Tensor]]:
    """Returns the features that provide the texts of the batch, and the batch's tensors of one value per feature.

    With `share_texts`, the first feature of each distinct text provides the text; otherwise every feature provides one.
    The tensors are labels and context_ids, if the features have them, and text_ids with `share_texts`.
    """
    batch = {
        name: torch.tensor([feature[name] for feature in features])
        for name in ("labels", "context_ids")
        if name in features[0]
    }
    if not share_texts:
        return features, batch
    numbers: dict[tuple[int, ...], int] = {}
    texts: list[dict] = []
    text_ids = []
    for feature in features:
        number = numbers.setdefault((*feature.get("token_type_ids", ()), *feature["input_ids"]), len(texts))
        if number == len(texts):
            texts.append(feature)
        text_ids.append(number)
    return texts, batch | {"text_ids": torch.tensor(text_ids)}


def padded_rows(rows: Sequence[list[int]], fill: int) -> torch.Tensor:
    """Returns one or more rows as one int64 tensor, padded on the right with `fill` to the longest row."""
    length = max(map(len, rows))
    return torch.tensor([row + [fill] * (length - len(row)) for row in rows], dtype=torch.int64)


def batch_maker(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> PaddingCollator | PackingCollator:
    """Returns the collator for a model: `PackingCollator` if its attention is fused, otherwise `PaddingCollator`.

    Fused attention reads packed batches directly; other implementations may have to convert them to padded batches.
    """
    share_texts = getattr(model.config, "shares_texts", False)
    if model.config._attn_implementation == "fused":
        return PackingCollator(share_texts)
    return PaddingCollator(tokenizer.pad_token_id, share_texts)


def by_length(lengths: Sequence[int]) -> list[int]:
    """Returns row indices ordered by length, shortest first, so that batches have little padding."""
    return sorted(range(len(lengths)), key=lengths.__getitem__)
