"""Texts of any length: splitting into sentences that fit the model, and combining their predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qacg_models.data.sentences import split_sentences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Unit of a prediction: the whole text, truncated to the model's maximum length; each sentence; or all sentences
# combined.
BY = ("text", "sentence", "document")


def pieces(text: str, tokenizer: PreTrainedTokenizerFast, room: int) -> list[str]:
    """Returns the sentences of a text; sentences of more than `room` tokens are divided.

    Such a sentence is divided between words. A word is divided only if it has more than `room` tokens.

    Args:
        text: the text; it must have a character other than white space.
        tokenizer: the tokenizer of the model.
        room: maximum number of tokens in a piece; special tokens and the context do not count.
    """
    return [piece for sentence in split_sentences(text) for piece in _windows(sentence, tokenizer, room)]


def _windows(sentence: str, tokenizer: PreTrainedTokenizerFast, room: int) -> list[str]:
    encoded = tokenizer(sentence, add_special_tokens=False, truncation=False, return_offsets_mapping=True)
    places = encoded["offset_mapping"]
    # Tokens with the first character of a word; a character can consist of several tokens.
    begins = [number for number, (start, _) in enumerate(places) if not start or sentence[start - 1].isspace()]
    found, first = [], 0
    while len(places) - first > room:
        last = max((number for number in begins if first < number <= first + room), default=first + room)
        found.append(sentence[places[first][0] : places[last][0]].strip())
        first = last
    rest = sentence[places[first][0] if first else 0 :].strip()
    return [piece for piece in [*found, rest] if piece]


def combine(probabilities: np.ndarray, has_absent: bool) -> np.ndarray:
    """Returns the probabilities of a document, computed from the probabilities of its sentences.

    A document has an opinion if one of its sentences has an opinion: P(no opinion) is the minimum over the sentences.
    The other labels share the rest in proportion to the sum of their probabilities over the sentences. If these sums
    are all 0, the result is the first sentence's probabilities. Without a label for "no opinion", the result is the
    mean over the sentences.

    Args:
        probabilities: (S, classes) probabilities of S sentences, at least one.
        has_absent: whether class 0 means "no opinion".

    Returns:
        (classes,) probabilities.
    """
    if not has_absent:
        return probabilities.mean(axis=0)
    absent = probabilities[:, 0].min()
    opinions = probabilities[:, 1:].sum(axis=0)
    if not opinions.sum():
        return probabilities[0]
    return np.concatenate([[absent], (1 - absent) * opinions / opinions.sum()])
