"""Extractive summaries: sentences scored by BertSum, selected with trigram blocking."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qacg_models.data.collators import padded_rows
from qacg_models.data.sentences import split_sentences
from qacg_models.data.tokenization import check_text, check_tokenizer
from qacg_models.errors import InputError
from qacg_models.models.bertsum import NO_SENTENCE, BertSumForExtractiveSummarization
from qacg_models.utils.field_checks import check_is_integer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WORD = re.compile(r"\w+")


def trigrams(sentence: str) -> set[tuple[str, str, str]]:
    """Returns all triples of consecutive words, in lower case without punctuation."""
    words = _WORD.findall(sentence.lower())
    return set(zip(words, words[1:], words[2:]))


def select(sentences: Sequence[str], scores: Sequence[float], count: int, block_trigrams: bool = True) -> list[int]:
    """Selects the sentences with the highest scores.

    Args:
        sentences: the sentences of the text.
        scores: score of each sentence; among equal scores the earlier sentence is selected.
        count: maximum number of selected sentences.
        block_trigrams: skip a sentence that shares three consecutive words with an already selected sentence.

    Returns:
        Indices of the selected sentences, in the order of the text.

    Raises:
        ValueError: `count` is below 1, or the numbers of scores and sentences differ.
    """
    if count < 1:
        raise ValueError(f"count: expected at least 1, got {count}")
    if len(scores) != len(sentences):
        raise ValueError(f"scores: expected one for each of {len(sentences)} sentences, got {len(scores)}")
    taken: list[int] = []
    seen: set[tuple[str, str, str]] = set()
    for i in sorted(range(len(sentences)), key=lambda i: (-scores[i], i)):
        own = trigrams(sentences[i])
        if block_trigrams and own & seen:
            continue
        taken.append(i)
        seen |= own
        if len(taken) == count:
            break
    return sorted(taken)


@dataclass(frozen=True)
class Document:
    """The BertSum input of a document.

    Attributes:
        input_ids: token ids of [CLS] sentence [SEP] for every sentence.
        token_type_ids: 0 and 1 for alternating sentences.
        positions: index of the [CLS] of each sentence in `input_ids`.
    """

    input_ids: list[int]
    token_type_ids: list[int]
    positions: list[int]


def encode_document(sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Document:
    """Encodes the leading sentences that fit completely into `max_length` tokens.

    If the first sentence does not fit, it is truncated, and no other sentence is encoded.

    Args:
        sentences: the sentences of the text, at least one.
        tokenizer: a tokenizer with [CLS] and [SEP].
        max_length: maximum number of tokens.

    Returns:
        The tokens, and the index of the [CLS] of each encoded sentence.

    Raises:
        InputError: an argument is invalid; the message names it. Of the sentences, only the encoded ones and the next
            one are checked.
    """
    if isinstance(sentences, str) or not sentences:
        raise InputError(f"sentences: expected a list of at least one sentence, got {sentences!r}")
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    if cls is None or sep is None:
        raise InputError(f"tokenizer: expected a cls_token and a sep_token, got the ids {cls} and {sep}")
    if max_length < 3:
        raise InputError(f"max_length: expected at least 3, for [CLS], one token and [SEP], got {max_length}")
    ids: list[int] = []
    types: list[int] = []
    positions: list[int] = []
    for i, sentence in enumerate(sentences):
        if not isinstance(sentence, str) or not sentence.strip():
            raise InputError(f"sentences[{i}]: expected text, got {sentence!r}")
        check_text(f"sentences[{i}]", sentence)
        tokens = tokenizer(sentence, add_special_tokens=False)["input_ids"]
        if i == 0:
            tokens = tokens[: max_length - 2]
        if len(ids) + len(tokens) + 2 > max_length:
            break
        positions.append(len(ids))
        ids += [cls, *tokens, sep]
        types += [i % 2] * (len(tokens) + 2)
    return Document(ids, types, positions)


def pad_documents(documents: Sequence[Document], pad_token_id: int) -> dict[str, Tensor]:
    """Returns one or more documents as a padded batch of int64 tensors for BertSum.

    The batch has (B, L) input_ids, attention_mask and token_type_ids, and (B, S) sentence_positions padded with -1.
    """
    return {
        "input_ids": padded_rows([d.input_ids for d in documents], pad_token_id),
        "attention_mask": padded_rows([[1] * len(d.input_ids) for d in documents], 0),
        "token_type_ids": padded_rows([d.token_type_ids for d in documents], 0),
        "sentence_positions": padded_rows([d.positions for d in documents], NO_SENTENCE),
    }


@dataclass(frozen=True)
class Summary:
    """An extractive summary.

    Attributes:
        text: the selected sentences in the order of the document, joined by spaces.
        sentences: the selected sentences.
        indices: indices of the selected sentences in the document.
        scores: score in [0, 1] of every sentence except the unread ones.
        unread: number of unread sentences: those at the end of the document, beyond the maximum number of tokens.

    Example:
        >>> Summary("It rained.", ["It rained."], [0], [0.9, 0.2], unread=0).indices
        [0]
    """

    text: str
    sentences: list[str]
    indices: list[int]
    scores: list[float]
    unread: int


class ExtractiveSummarizer:
    """Summarises documents with a `BertSumForExtractiveSummarization`.

    Args:
        model: the model.
        tokenizer: its tokenizer, with [CLS] and [SEP].
        max_length: maximum number of tokens of a document; None: the number of the encoder's positions, or 512 for an
            encoder without a limit.

    Raises:
        TypeError: `model` has another class, or `max_length` is not an integer.
        InputError: `tokenizer` is not one of transformers, has no padding token, or has more tokens than the model has
            embeddings; or `max_length` exceeds the encoder's positions.

    Example:
        >>> from qacg_models import BertModel, BertSumConfig, BertSumForExtractiveSummarization, PlainBertConfig
        >>> from qacg_models.data.tokenization import train_tokenizer
        >>> text = "The river rose in the night. A bridge was closed at once."
        >>> tokenizer = train_tokenizer([text], vocab_size=100)
        >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        >>> bert = BertModel(PlainBertConfig(vocab_size=len(tokenizer), **sizes))
        >>> config = BertSumConfig(inter_layers=1, heads=2, ff_size=32)
        >>> model = BertSumForExtractiveSummarization.from_encoder(bert, config)
        >>> ExtractiveSummarizer(model, tokenizer).summarize(text, count=1).text in text
        True
    """

    def __init__(
        self,
        model: BertSumForExtractiveSummarization,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
    ):
        if not hasattr(model, "max_length"):  # a compiled model has another class
            raise TypeError(f"model: expected a BertSumForExtractiveSummarization, got {type(model).__name__}")
        if max_length is not None:
            check_is_integer("max_length", max_length)
        limit = model.max_length
        if max_length is None:
            max_length = 512 if limit is None else limit
        elif limit is not None and max_length > limit:
            raise InputError(
                f"max_length: expected at most {limit}, as many as the encoder has positions, got {max_length}"
            )
        check_tokenizer(tokenizer, model.get_input_embeddings().num_embeddings)
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = max_length

    def summarize(self, document: str | Sequence[str], count: int = 3, *, block_trigrams: bool = True) -> Summary:
        """Summarises a text or a list of sentences.

        Args:
            document: text, which `split_sentences` divides, or a list of sentences.
            count: maximum number of sentences in the summary.
            block_trigrams: skip a sentence that shares three consecutive words with an already selected sentence.

        Returns:
            The summary: its sentences in the order of the text, and the score of each sentence that is read
            (all but the `unread` ones).

        Raises:
            InputError: there is no sentence; a sentence that is read is empty, not a str, or cannot be encoded; the
                tokenizer has no [CLS] or no [SEP]; or `max_length` of this object is below 3.
            TypeError: `document` is neither text nor iterable, or `count` is not an integer.
            ValueError: `count` is below 1.
        """
        if not isinstance(document, Iterable):
            raise TypeError(f"document: expected text or a list of sentences, got {type(document).__name__}")
        check_is_integer("count", count)
        sentences = split_sentences(document) if isinstance(document, str) else list(document)
        read = encode_document(sentences, self.tokenizer, self.max_length)
        scores = self._scores(read)
        chosen = select(sentences[: len(scores)], scores, count, block_trigrams)
        kept = [sentences[i] for i in chosen]
        return Summary(" ".join(kept), kept, chosen, scores, len(sentences) - len(scores))

    @torch.inference_mode()
    def _scores(self, document: Document) -> list[float]:
        training = self.model.training
        self.model.eval()
        try:
            batch = pad_documents([document], self.tokenizer.pad_token_id)
            if not self.model.takes_token_types:
                del batch["token_type_ids"]
            return self.model(**{name: t.to(self.model.device) for name, t in batch.items()}).scores[0].tolist()
        finally:
            self.model.train(training)
