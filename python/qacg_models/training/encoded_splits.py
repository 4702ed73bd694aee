"""The splits of a training as features, in files of the run's folder, so that a run that goes on has them at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qacg_models.data import Dataset, Example
from qacg_models.data.collators import by_length
from qacg_models.data.feature_table import FeatureTable, feature_table
from qacg_models.runs.options import TrainingOptions
from qacg_models.utils.distributed import on_main

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.configs.encoder import EncoderConfig

# An accuracy of 20,000 rows has a standard error of at most 0.35 points; more would only take longer.
MOST_EVALUATED = 20_000


class EncodedSplits(NamedTuple):
    """What the trainer is given.

    Attributes:
        train: in the order of the data.
        evaluated, evaluated_rows: features and rows of the split that chooses checkpoints, or of whole groups drawn
            from it where it is large; shortest first.
    """

    train: FeatureTable
    evaluated: list[dict]
    evaluated_rows: list[Example]


def encode_splits(
    work: Path,
    dataset: Dataset,
    split: str,
    options: TrainingOptions,
    tokenizer: PreTrainedTokenizerFast,
    config: EncoderConfig,
    say: Callable[[str], None],
) -> EncodedSplits:
    """The features of train and of `split`, which chooses checkpoints.

    Args:
        work: the run's folder; what it holds already was made of the same data.

    Raises:
        InputError: a file cannot be written.
    """

    def encoded(name: str, rows: Sequence[Example]) -> FeatureTable:
        def told_cut(cut: int) -> None:
            say(f"cut to {options.max_length} tokens: {cut} rows of {name}")

        def table() -> FeatureTable:
            contexts = getattr(config, "contexts", None)
            path, standalone = work / f"features-{name}.arrow", options.context_standalone
            return feature_table(path, rows, tokenizer, contexts, options.max_length, standalone, told_cut=told_cut)

        on_main(lambda: table() and None)
        return table()

    rows = evaluation_sample(dataset.splits[split], MOST_EVALUATED, options.seed)
    if len(rows) < len(dataset.splits[split]):
        say(
            f"checkpoints are chosen by {len(rows):,} of the {len(dataset.splits[split]):,} rows of {split}, whole"
            " sentences drawn at random; the figures at the end are of all"
        )
    train, features = encoded("train", dataset.splits["train"]), encoded(split, rows)
    order = by_length(features.lengths().tolist())
    features, rows = [*features], [*rows]
    return EncodedSplits(train, [features[index] for index in order], [rows[index] for index in order])


def evaluation_sample(rows: Sequence[Example], most: int, seed: int) -> Sequence[Example]:
    """The rows, or about `most` of them: those of groups drawn by a hash of the seed and their names."""
    if len(rows) <= most:
        return rows
    share = most / len(rows)
    return [row for row in rows if _draw(row, seed) < share]


def _draw(row: Example, seed: int) -> float:
    text = "\n".join((str(seed), *row.group))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
