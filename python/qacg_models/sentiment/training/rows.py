"""The training rows: encoded once, their order in an epoch, and augmentation.

Augmentation is for models that start from random weights and would overfit a small file: word dropout (Iyyer et al.,
2015), and a second text, without an opinion on the row's aspect, before or after the row's own text, so that the model
has to find where the aspect is discussed (concatenation as augmentation: Kondo et al., 2021, for translation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler

from qacg_models.errors import InputError
from qacg_models.sentiment.dataset import Dataset
from qacg_models.sentiment.encoding import FeatureTable, has_token_types
from qacg_models.sentiment.example import Example, text_fraction
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.utils.text import counted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.models.configuration import EncoderConfig

# The accuracy of 20,000 rows has a standard error of at most 0.35 points; more rows would only take longer.
MAX_EVALUATED = 20_000
ABSENT = 0  # the label that means "no opinion", where a task has one
# The generator's seed is seed * _EPOCHS_PER_SEED + epoch, unique for epochs below this number.
_EPOCHS_PER_SEED = 100_003
# Number of row indices that are converted to Python integers at a time; the integers take five times a tensor's memory.
_CHUNK = 1 << 16
RowKey = int | tuple[int, int]


class EncodedSplits(NamedTuple):
    """Features of train, and of the rows that select checkpoints, shortest first, with their examples."""

    train: FeatureTable
    evaluated: list[dict]
    evaluated_rows: list[Example]


def encode_splits(
    dataset: Dataset,
    split: str,
    options: TrainingOptions,
    tokenizer: PreTrainedTokenizerFast,
    config: EncoderConfig,
    say: Callable[[str], None],
) -> EncodedSplits:
    """Encodes train and the split that selects checkpoints."""
    contexts = getattr(config, "contexts", None)

    def encode(name: str, rows: Sequence[Example]) -> FeatureTable:
        types = has_token_types(config)
        features = FeatureTable(rows, tokenizer, contexts, options.max_length, options.context_standalone, types)
        if features.truncated:
            total = counted(len(rows), "row")
            say(f"truncated to {options.max_length} tokens: {features.truncated:,} of {total} of {name} (--max-length)")
        return features

    rows = evaluation_sample(dataset.splits[split], MAX_EVALUATED, options.seed)
    if len(rows) < len(dataset.splits[split]):
        say(
            f"checkpoints are selected on {len(rows):,} of the {len(dataset.splits[split]):,} rows of {split}, drawn at"
            " random (all aspects of a sentence together); the final metrics use all rows"
        )
    train, features = encode("train", dataset.splits["train"]), encode(split, rows)
    order = features.lengths().argsort(kind="stable").tolist()  # batches have little padding
    features, rows = [*features], [*rows]
    return EncodedSplits(train, [features[index] for index in order], [rows[index] for index in order])


def evaluation_sample(rows: Sequence[Example], limit: int, seed: int) -> Sequence[Example]:
    """Returns the rows; if there are more than `limit`, a sample of about `limit` rows in their order.

    The sample has complete groups (`Example.group`), selected by a hash of the seed and the group, so the selection
    does not depend on the order of rows.
    """
    if len(rows) <= limit:
        return rows
    share = limit / len(rows)
    return [row for row in rows if text_fraction("\n".join((str(seed), *row.group))) < share]


class EpochSampler(Sampler):
    """Yields the row indices of an epoch; with a balance above 0, rows of rare classes are drawn more often.

    With a balance above 0, rows are drawn with replacement, with probabilities proportional to count(class) **
    -balance. With a balance of 0, every row is drawn once. The order of an epoch does not depend on earlier epochs. So
    a resumed run draws the same rows, and so does each of several processes. The caller sets the attribute `epoch`
    before each iteration.

    With `join`, some of the drawn rows are replaced by pairs of indices (`JoinedTexts.pairs`). With `texts`, the (N)
    index of the text of each row, texts are drawn with all of their rows, so that a batch computes the layers before
    `context_from_layer` once per text. The weight of a text is the mean weight of its rows. The last text that is drawn
    may lack rows, because an epoch has N rows.
    """

    def __init__(
        self,
        labels: Sequence[int] | np.ndarray,
        balance: float,
        seed: int,
        join: JoinedTexts | None = None,
        texts: Sequence[int] | np.ndarray | None = None,
    ):
        classes = torch.as_tensor(labels).long()
        counts = torch.bincount(classes).double().clamp(min=1)
        self.weights = counts.pow(-balance)[classes] if balance else None
        self.size, self.seed, self.join, self.epoch = len(classes), seed, join, 0
        self.texts = None if texts is None else torch.as_tensor(texts).long()

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[RowKey]:
        generator = torch.Generator().manual_seed(self.seed * _EPOCHS_PER_SEED + self.epoch)
        if self.texts is not None:
            drawn = self._rows_of_texts(self.texts, generator)
        elif self.weights is None:
            drawn = torch.randperm(self.size, generator=generator)
        else:
            drawn = torch.multinomial(self.weights, self.size, replacement=True, generator=generator)
        for chunk in drawn.split(_CHUNK):
            yield from chunk.tolist() if self.join is None else self.join.pairs(chunk, generator)

    def _rows_of_texts(self, texts: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Returns (N) row indices, text by text; with weights, texts are drawn with replacement."""
        counts = torch.bincount(texts)
        if self.weights is None:
            order = torch.randperm(len(counts), generator=generator)
        else:
            means = torch.zeros(len(counts), dtype=torch.float64).index_add(0, texts, self.weights) / counts
            # Enough texts are drawn for at least N rows, of which the first N are used.
            order = torch.multinomial(means, self.size, replacement=True, generator=generator)
        starts = counts.cumsum(0) - counts  # in the rows sorted by text
        drawn_counts = counts[order]
        ends = drawn_counts.cumsum(0)
        places = torch.arange(int(ends[-1])) - (ends - drawn_counts).repeat_interleave(drawn_counts)
        by_text = torch.argsort(texts, stable=True)
        return by_text[(starts[order].repeat_interleave(drawn_counts) + places)[: self.size]]


class WordDropout:
    """Replaces a share of the tokens of the text, from `first` to `separator`, by `unknown`; keeps special tokens.

    `first` and `separator` are the ids of the tokenizer's cls_token and sep_token.
    """

    def __init__(self, share: float, unknown: int | None, special: Iterable[int], first: int, separator: int):
        if share and unknown is None:
            raise InputError(
                f"word_dropout: expected 0 for a tokenizer without an unknown token, got {share}. Set word_dropout=0."
            )
        self.share, self.unknown, self.special = share, unknown, torch.tensor(sorted(special))
        self.ends = first, separator

    def __call__(self, inputs: dict) -> dict:
        """Returns the batch with replaced tokens; uses torch's generator, whose state is part of checkpoints."""
        if not self.share:
            return inputs
        tokens = inputs["input_ids"]
        replaced = torch.rand(tokens.shape).to(tokens.device) < self.share
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        # The places of the nearest first token and of the nearest separator at or before each token, padded or packed.
        first, separator = (torch.where(tokens == end, places, -1).cummax(-1).values for end in self.ends)
        replaced &= (first > separator) & ~torch.isin(tokens, self.special.to(tokens.device))
        return inputs | {"input_ids": torch.where(replaced, self.unknown, tokens)}


class JoinedTexts:
    """A sequence of training rows; a pair of indices as key joins the texts of two rows of the same aspect.

    `share` is the share of the sampled rows that are joined. If a joined row would be longer than `max_length` tokens,
    one of its two rows is returned unchanged: the first one with an opinion, or the first row if neither has an
    opinion. `separator` is the id of the tokenizer's sep_token. With byte-level BPE, the joined text has no space
    between its parts.
    """

    def __init__(self, rows: FeatureTable, share: float, max_length: int, separator: int):
        self.rows, self.share, self.max_length, self.separator = rows, share, max_length, separator
        self.contexts = torch.as_tensor(rows.contexts)
        absent = torch.nonzero(torch.as_tensor(rows.labels) == ABSENT).flatten()
        contexts = self.contexts[absent].long()
        # Rows without an opinion, sorted by aspect.
        self.absent = absent[torch.argsort(contexts, stable=True)]
        self.counts = torch.bincount(contexts, minlength=int(self.contexts.max()) + 1)
        self.starts = self.counts.cumsum(0) - self.counts

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: RowKey) -> dict:
        if isinstance(key, int):
            return self.rows[key]
        first, second = self.rows[key[0]], self.rows[key[1]]
        # The joined row omits the separator at the end of the first text, and the first token of the second row.
        end = first["input_ids"].index(self.separator)
        if end + len(second["input_ids"]) - 1 > self.max_length:
            return first if first["labels"] != ABSENT or second["labels"] == ABSENT else second
        sequences = [name for name in ("input_ids", "token_type_ids") if name in first]
        joined = {name: first[name][:end] + second[name][1:] for name in sequences}
        return second | joined | {"labels": first["labels"] or second["labels"]}

    def pairs(self, drawn: torch.Tensor, generator: torch.Generator) -> Iterator[RowKey]:
        """Yields the index of each of (M) sampled rows, or a pair of indices if the row is joined with another row.

        The other row is drawn at random from the rows of the same aspect that are labelled "no opinion". If there are
        none, the sampled row is not joined. Which of the two rows comes first is random.
        """
        if not len(self.absent):
            yield from drawn.tolist()
            return
        chance = torch.rand((3, len(drawn)), generator=generator, dtype=torch.float64)
        contexts = self.contexts[drawn].long()
        counts = self.counts[contexts]
        others = self.absent[(self.starts[contexts] + (chance[0] * counts).long()).clamp(max=len(self.absent) - 1)]
        joined = ((chance[1] < self.share) & (counts > 0)).tolist()
        for row, other, is_joined, is_first in zip(drawn.tolist(), others.tolist(), joined, (chance[2] < 0.5).tolist()):
            yield (row, other) if is_joined and is_first else (other, row) if is_joined else row
