"""Counts of texts that exceed the model's maximum length, and of words, tokens and unknown tokens in the texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qacg_models.data import Dataset
from qacg_models.data.example import distinct
from qacg_models.runs.options import SCRATCH, TrainingOptions
from qacg_models.training.model_setup import begin_tokenizer
from qacg_models.training.resolve_options import choose_start, resolve_options
from qacg_models.utils.cells import counted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

EXAMINED = 20_000  # maximum number of examined texts
MOST_UNKNOWN = 0.01  # share of unknown tokens above which a vocabulary does not suit the texts
MOST_PIECES = 2.0  # tokens per word above which a vocabulary does not suit the texts; English reviews have 1.1 to 1.3
LEARNED = "learned from the texts"
SHOWN = 3  # maximum number of unknown words that are printed
_HAN = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Chinese characters, which BERT's tokenizer separates like words
_WORD = re.compile(rf"[{_HAN}]|[^\W\d_{_HAN}]+")


@dataclass(frozen=True)
class TokenCheck:
    """Counts over the distinct training texts, or over a sample of them (`check_tokens`).

    The length of a text includes the special tokens. If the model's inputs contain the name of a context, the length
    also includes the tokens of the longest name.

    Attributes:
        start: a line that names what training starts from (a checkpoint or random weights), and the reason.
        vocabulary: tokenizer or checkpoint whose vocabulary is used, or LEARNED.
        texts: number of examined texts.
        max_length: maximum length of the model in tokens.
        cut: number of texts that are truncated, because they are longer than `max_length`.
        longest: length of the longest text in tokens.
        words: number of words in the examined texts; a Chinese character is a word.
        pieces: number of tokens of the words.
        unknown: number of tokens of the texts that are the unknown token.
        tokens: number of tokens of the texts.
        alike: number of texts that differ from another text only in unknown tokens, so that the model reads them as
            equal.
        unknown_words: the most frequent words and symbols that are unknown tokens, at most SHOWN.
    """

    start: str
    vocabulary: str
    texts: int
    max_length: int
    cut: int
    longest: int
    words: int
    pieces: int
    unknown: int
    tokens: int = 0
    alike: int = 0
    unknown_words: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns the lines to print, with warnings at the end."""
        per_word, unknown = self.pieces / max(1, self.words), self.unknown / max(1, self.tokens)
        shown = ", ".join(map(repr, self.unknown_words))
        scratch = "" if self.vocabulary == LEARNED else ", or from random weights (--from scratch)"
        found = [
            self.start,
            f"tokens: the longest of {counted(self.texts, 'text')} has {self.longest:,}; the model reads"
            f" {self.max_length}",
            f"vocabulary ({self.vocabulary}): {per_word:.2f} tokens per word, {unknown:.2%} of the tokens unknown"
            + (f" (most often {shown})" if shown else ""),
        ]
        if self.cut:
            found.append(
                f"warning: {counted(self.cut, 'text is', 'texts are')} longer than {self.max_length} tokens and"
                f" truncated ({self.cut / self.texts:.1%} of the texts); pass a larger --max-length, or split the texts"
            )
        if per_word > MOST_PIECES:
            found.append(
                "warning: the vocabulary does not suit the language of the texts; start from a checkpoint of this"
                f" language (--from){scratch}"
            )
        elif unknown > MOST_UNKNOWN:
            found.append(
                f"warning: the vocabulary lacks words or symbols of the texts ({shown}); start from a checkpoint that"
                f" has them (--from){scratch}"
            )
        if self.alike:
            found.append(
                f"warning: {counted(self.alike, 'text differs', 'texts differ')} from another text only in unknown"
                f" tokens ({shown}), so the model reads them as equal; replace these symbols by words, or start from a"
                f" checkpoint that has them (--from){scratch}"
            )
        return found


def check_tokens(dataset: Dataset, options: TrainingOptions) -> TokenCheck:
    """Counts the tokens of the distinct training texts, or of an evenly spaced sample if there are more than EXAMINED.

    Args:
        dataset: the data set; it has the split train.
        options: options of the planned training.

    Raises:
        InputError: the options do not fit the data, or their tokenizer or checkpoint cannot be loaded.
    """
    chosen, start = choose_start(options, dataset)
    resolved = resolve_options(chosen, dataset)
    tokenizer = begin_tokenizer(dataset, resolved)
    texts = [text for (text,) in distinct(dataset.splits["train"], "sentence")]
    texts = texts[:: _stride(len(texts), EXAMINED)]
    contexts = [] if resolved.context_standalone else list(dataset.contexts)
    longest_context = max((len(tokenizer(name, add_special_tokens=False)["input_ids"]) for name in contexts), default=0)
    extra = longest_context + tokenizer.num_special_tokens_to_add(pair=bool(contexts))
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    lengths = [len(ids) + extra for ids in encoded["input_ids"]]
    unknown = _unknown_words(texts, encoded, tokenizer)
    often = Counter(word for words in unknown for word in words)
    words = [word for text in texts for word in _WORD.findall(text)]
    pieces = tokenizer(words, add_special_tokens=False)["input_ids"] if words else []
    named = chosen.tokenizer or chosen.from_checkpoint
    return TokenCheck(
        start=start,
        vocabulary=LEARNED if named in (None, SCRATCH) else str(named),
        texts=len(texts),
        max_length=resolved.max_length,
        cut=sum(length > resolved.max_length for length in lengths),
        longest=max(lengths),
        words=len(words),
        pieces=sum(map(len, pieces)),
        unknown=often.total(),
        tokens=sum(map(len, encoded["input_ids"])),
        alike=_count_alike(encoded["input_ids"], unknown),
        unknown_words=tuple(word for word, _ in often.most_common(SHOWN)),
    )


def _unknown_words(texts: Sequence[str], encoded, tokenizer: PreTrainedTokenizerFast) -> list[tuple[str, ...]]:
    """Returns, for each text, the parts that are unknown tokens, in order; `encoded` has the texts' offsets."""
    return [
        tuple(text[start:end] for piece, (start, end) in zip(ids, offsets) if piece == tokenizer.unk_token_id)
        for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"])
    ]


def _count_alike(tokens: Sequence[Sequence[int]], unknown: Sequence[tuple[str, ...]]) -> int:
    """Returns the number of texts whose tokens are those of a text with other unknown words; case is ignored."""
    groups: dict[tuple[int, ...], Counter[tuple[str, ...]]] = {}
    for ids, words in zip(tokens, unknown):
        if words:
            groups.setdefault(tuple(ids), Counter())[tuple(word.casefold() for word in words)] += 1
    return sum(found.total() for found in groups.values() if len(found) > 1)


def _stride(count: int, most: int) -> int:
    """Returns the smallest stride that selects at most `most` of `count` items."""
    return max(1, -(-count // most))
