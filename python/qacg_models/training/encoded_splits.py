"""The splits of a training as features, in folders of the run's, with digests, so that a run that goes on has them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qacg_models.data import Dataset, Example
from qacg_models.data.collators import by_length
from qacg_models.data.feature_table import Encoding, FeatureTable, read_features, write_features
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.training.whole_folders import find_damage, publish
from qacg_models.utils.atomic_files import remove_folder
from qacg_models.utils.distributed import run_on_main

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.configs.encoder import EncoderConfig

# An accuracy of 20,000 rows has a standard error of at most 0.35 points; more would only take longer.
MOST_EVALUATED = 20_000
ROWS = "rows.arrow"


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

    encoding = Encoding(tokenizer, getattr(config, "contexts", None), options.max_length, options.context_standalone)

    def encoded(name: str, rows: Sequence[Example]) -> FeatureTable:
        folder = work / f"features-{name}"
        run_on_main(lambda: _make(folder, rows, encoding, say))
        found = read_features(folder / ROWS, len(rows), encoding)
        if found is None:
            raise InputError(f"{folder}: is not what the main process has just written there; wanted a shared disk")
        return found

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


def _make(folder: Path, rows: Sequence[Example], encoding: Encoding, say: Callable[[str], None]) -> None:
    """Writes the features of rows to a folder, unless it holds them as they were written."""
    if folder.exists():
        damage = find_damage(folder)
        if damage is None and read_features(folder / ROWS, len(rows), encoding) is not None:
            return
        if damage is not None:
            say(f"{damage}; it is made again")
        remove_folder(folder)
    writing = folder.with_name(f".{folder.name}")
    remove_folder(writing)
    writing.mkdir()
    cut = write_features(writing / ROWS, rows, encoding)
    publish(writing, folder)
    if cut:
        say(f"cut to {encoding.max_length} tokens: {cut} rows of {folder.name.removeprefix('features-')}")


def evaluation_sample(rows: Sequence[Example], most: int, seed: int) -> Sequence[Example]:
    """The rows, or about `most` of them: those of groups drawn by a hash of the seed and their names."""
    if len(rows) <= most:
        return rows
    share = most / len(rows)
    return [row for row in rows if _draw(row, seed) < share]


def _draw(row: Example, seed: int) -> float:
    text = "\n".join((str(seed), *row.group))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
