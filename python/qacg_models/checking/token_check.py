"""Counts of texts that exceed the model's maximum length, and of words, tokens and unknown tokens in the texts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from qacg_models.data import Dataset
from qacg_models.data.example_table import distinct
from qacg_models.runs.options import SCRATCH, TrainingOptions
from qacg_models.training.model_setup import begin_tokenizer
from qacg_models.training.resolve_options import choose_start, resolve_options
from qacg_models.utils.cells import counted

EXAMINED = 20_000  # maximum number of examined texts
MOST_PIECES = 2.0  # tokens per word above which a vocabulary does not suit the texts; English reviews have 1.1 to 1.3
LEARNED = "learned from the texts"
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
        unknown: number of these tokens that are the unknown token.
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

    def lines(self) -> list[str]:
        """Returns the lines to print, with warnings at the end."""
        per_word, unknown = self.pieces / max(1, self.words), self.unknown / max(1, self.pieces)
        found = [
            self.start,
            f"tokens: the longest of {counted(self.texts, 'text')} has {self.longest:,}; the model reads"
            f" {self.max_length}",
            f"vocabulary ({self.vocabulary}): {per_word:.2f} tokens per word, {unknown:.2%} of the tokens unknown",
        ]
        if self.cut:
            found.append(
                f"warning: {counted(self.cut, 'text is', 'texts are')} longer than {self.max_length} tokens and"
                f" truncated ({self.cut / self.texts:.1%} of the texts); pass a larger --max-length, or split the texts"
            )
        if per_word > MOST_PIECES or unknown > 0.01:
            scratch = "" if self.vocabulary == LEARNED else ", or from random weights (--from scratch)"
            found.append(
                "warning: the vocabulary does not suit the language of the texts; start from a checkpoint of this"
                f" language (--from){scratch}"
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
    lengths = [len(ids) + extra for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    words = [word for text in texts for word in _WORD.findall(text)]
    pieces = tokenizer(words, add_special_tokens=False)["input_ids"] if words else []
    unknown = sum(piece == tokenizer.unk_token_id for ids in pieces for piece in ids)
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
        unknown=unknown,
    )


def _stride(count: int, most: int) -> int:
    """Returns the smallest stride that selects at most `most` of `count` items."""
    return max(1, -(-count // most))
