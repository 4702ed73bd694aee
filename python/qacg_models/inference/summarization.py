"""Summaries by selection: a text cut into sentences, scored by BertSum, the best ones kept without repetition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qacg_models.data.sentences import split_sentences
from qacg_models.data.tokenization import check_text
from qacg_models.errors import InputError
from qacg_models.models.bertsum import NO_SENTENCE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from qacg_models.models.bertsum import BertSumForExtractiveSummarization

_WORD = re.compile(r"\w+")


def trigrams(sentence: str) -> set[tuple[str, str, str]]:
    """Every three consecutive words, in lower case and without punctuation."""
    words = _WORD.findall(sentence.lower())
    return set(zip(words, words[1:], words[2:]))


def select(sentences: Sequence[str], scores: Sequence[float], count: int, block_trigrams: bool = True) -> list[int]:
    """Indices of the chosen sentences, in the order of the text.

    Sentences are taken by falling score (of equal ones the earlier) until there are `count`; with
    `block_trigrams`, one that shares three consecutive words with a sentence already taken is passed over.

    Raises:
        ValueError: `count` is below 1, or there are not as many scores as sentences.
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
    """A document as BertSum reads it.

    Attributes:
        input_ids: [CLS] sentence [SEP], for every sentence in turn.
        token_type_ids: 0 for the first, third, ... sentence and 1 for the others.
        positions: of each [CLS].
    """

    input_ids: list[int]
    token_type_ids: list[int]
    positions: list[int]


def encode_document(sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Document:
    """As many sentences, from the first on, as fit whole into `max_length` tokens; a first that does not is cut.

    Raises:
        InputError: no sentence, an empty one, a tokenizer without [CLS] or [SEP], or no room for text.
    """
    if isinstance(sentences, str) or not sentences:
        raise InputError(f"sentences: expected a list of at least one sentence, got {sentences!r}")
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    if cls is None or sep is None:
        raise InputError("tokenizer: has no cls_token or no sep_token")
    if max_length < 3:
        raise InputError(f"max_length: expected at least 3, a token between [CLS] and [SEP], got {max_length}")
    ids: list[int] = []
    types: list[int] = []
    positions: list[int] = []
    for i, sentence in enumerate(sentences):
        if not isinstance(sentence, str) or not sentence.strip():
            raise InputError(f"sentences: number {i} is {sentence!r}, wanted text")
        check_text(f"sentences: number {i}", sentence)
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
    """The inputs of BertSum: tokens, types and mask (B, L), sentence positions (B, S) with -1 as padding."""

    def padded(rows: Iterable[list[int]], fill: int) -> Tensor:
        rows = list(rows)
        width = max(map(len, rows))
        return torch.tensor([row + [fill] * (width - len(row)) for row in rows])

    return {
        "input_ids": padded((d.input_ids for d in documents), pad_token_id),
        "attention_mask": padded(([1] * len(d.input_ids) for d in documents), 0),
        "token_type_ids": padded((d.token_type_ids for d in documents), 0),
        "sentence_positions": padded((d.positions for d in documents), NO_SENTENCE),
    }


@dataclass(frozen=True)
class Summary:
    """A summary and where it comes from.

    Attributes:
        text: the chosen sentences, joined by spaces, in the order of the document.
        sentences: those sentences.
        indices: their numbers in the document.
        scores: of every sentence that was read.
        unread: how many sentences at the end the encoder had no positions for.
    """

    text: str
    sentences: list[str]
    indices: list[int]
    scores: list[float]
    unread: int


class ExtractiveSummarizer:
    """Summarises documents with a `BertSumForExtractiveSummarization`.

    Args:
        model, tokenizer: belonging together; the tokenizer has [CLS] and [SEP].
        max_length: tokens of a document that are read; None: as many as the encoder has positions for, or 512.

    Raises:
        InputError: they do not fit together, or the encoder has fewer positions.
    """

    def __init__(
        self,
        model: BertSumForExtractiveSummarization,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
    ):
        limit = model.max_length
        if max_length is None:
            max_length = 512 if limit is None else limit
        elif limit is not None and max_length > limit:
            raise InputError(f"max_length: expected at most {limit}, the positions of the encoder, got {max_length}")
        rows = model.get_input_embeddings().num_embeddings
        if len(tokenizer) > rows:
            raise InputError(f"tokenizer: has {len(tokenizer)} tokens, but the model {rows} embeddings")
        if tokenizer.pad_token_id is None:
            raise InputError("tokenizer: has no pad_token")
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = max_length

    def summarize(self, document: str | Sequence[str], count: int = 3, *, block_trigrams: bool = True) -> Summary:
        """The summary of a text, or of a list of its sentences.

        Args:
            document: text, which `split_sentences` cuts, or sentences.
            count: how many to choose at most.
            block_trigrams: pass over a sentence that shares three consecutive words with one already chosen.

        Raises:
            InputError: no sentence, or an empty one.
            ValueError: `count` is below 1.
        """
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
