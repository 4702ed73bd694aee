"""Texts of any length: cut into sentences that a model takes, and what it says of them brought together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qacg_models.data.sentences import split_sentences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# What an answer is about: the text as it is, cut to the length that the model takes; each of its sentences; or all of
# its sentences together.
BY = ("text", "sentence", "document")


def pieces(text: str, tokenizer: PreTrainedTokenizerFast, room: int) -> list[str]:
    """The sentences of a text; one of more than `room` tokens in windows of whole words, where a word has room.

    Args:
        text: with a letter at least.
        room: tokens that a model takes of a text, special tokens and context not counted.
    """
    return [piece for sentence in split_sentences(text) for piece in _windows(sentence, tokenizer, room)]


def _windows(sentence: str, tokenizer: PreTrainedTokenizerFast, room: int) -> list[str]:
    encoded = tokenizer(sentence, add_special_tokens=False, truncation=False, return_offsets_mapping=True)
    places = encoded["offset_mapping"]
    # Where a token is the first of a word, or of a character that the vocabulary spells in several.
    begins = [number for number, (start, _) in enumerate(places) if not start or sentence[start - 1].isspace()]
    found, first = [], 0
    while len(places) - first > room:
        last = max((number for number in begins if first < number <= first + room), default=first + room)
        found.append(sentence[places[first][0] : places[last][0]].strip())
        first = last
    rest = sentence[places[first][0] if first else 0 :].strip()
    return [piece for piece in [*found, rest] if piece]


def combine(probabilities: np.ndarray, has_absent: bool) -> np.ndarray:
    """What a document says of an aspect, from what its sentences say.

    An opinion is in the document if it is in a sentence, so that the sentence that most likely has one says how likely
    the document does; which one it is, is the mean over the sentences, each weighted by how likely it has one. Without
    a label for no opinion it is the mean of all.

    Args:
        probabilities: (S, classes) of each of S sentences.
        has_absent: whether class 0 says that there is no opinion.

    Returns:
        (classes); of a single sentence its own.
    """
    if not has_absent:
        return probabilities.mean(axis=0)
    absent = probabilities[:, 0].min()
    opinions = probabilities[:, 1:].sum(axis=0)
    if not opinions.sum():
        return probabilities[0]
    return np.concatenate([[absent], (1 - absent) * opinions / opinions.sum()])
