"""The encoded rows of a run, memory-mapped from files in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from qacg_models.data import Dataset, Example
from qacg_models.data.collators import by_length
from qacg_models.data.example import text_fraction
from qacg_models.data.feature_table import Encoding, FeatureTable, read_features, write_features
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.training.run_folder import RunFolder
from qacg_models.utils.cells import counted
from qacg_models.utils.distributed import run_on_main

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.models.config import EncoderConfig

# The accuracy of 20,000 rows has a standard error of at most 0.35 points; more rows would only take longer.
MAX_EVALUATED = 20_000


class EncodedSplits(NamedTuple):
    """The rows that the Trainer reads.

    Attributes:
        train: features of the training split, in the order of the data.
        evaluated: features of the split that selects checkpoints, or of a sample of it (`evaluation_sample`), shortest
            first.
        evaluated_rows: the examples of `evaluated`, in the same order.
    """

    train: FeatureTable
    evaluated: list[dict]
    evaluated_rows: list[Example]


def encode_splits(
    folder: RunFolder,
    dataset: Dataset,
    split: str,
    options: TrainingOptions,
    tokenizer: PreTrainedTokenizerFast,
    config: EncoderConfig,
    say: Callable[[str], None],
) -> EncodedSplits:
    """Encodes train and the split that selects checkpoints.

    Args:
        folder: folder of the run.
        dataset: the data set.
        split: split that selects checkpoints.
        options: options of training, from `resolve_options`.
        tokenizer: tokenizer of the model.
        config: configuration of the model.
        say: called with each log line.

    Raises:
        InputError: a file cannot be written, the processes do not share a disk, or `max_length` leaves no room for
            text.
    """
    encoding = Encoding(tokenizer, getattr(config, "contexts", None), options.max_length, options.context_standalone)

    def encode(name: str, rows: Sequence[Example]) -> FeatureTable:
        path = folder.path / f"features-{name}.arrow"
        cut = run_on_main(lambda: write_features(path, rows, encoding))
        if cut:
            total = counted(len(rows), "row")
            say(f"truncated to {encoding.max_length} tokens: {cut:,} of {total} of {name} (--max-length)")
        try:
            return read_features(path)
        except FileNotFoundError:
            raise InputError(
                f"{path}: expected the file of the main process, got none. Use a disk that all processes share."
            ) from None

    rows = evaluation_sample(dataset.splits[split], MAX_EVALUATED, options.seed)
    if len(rows) < len(dataset.splits[split]):
        say(
            f"checkpoints are selected on {len(rows):,} of the {len(dataset.splits[split]):,} rows of {split}, drawn at"
            " random (all aspects of a sentence together); the final metrics use all rows"
        )
    train, features = encode("train", dataset.splits["train"]), encode(split, rows)
    order = by_length(features.lengths().tolist())
    features, rows = [*features], [*rows]
    return EncodedSplits(train, [features[index] for index in order], [rows[index] for index in order])


def evaluation_sample(rows: Sequence[Example], limit: int, seed: int) -> Sequence[Example]:
    """Returns the rows; if there are more than `limit`, a sample of about `limit` rows in their order.

    The sample has complete groups (`Example.group`). Groups are selected by a hash of the seed and the group, so the
    selection does not depend on the order of rows.
    """
    if len(rows) <= limit:
        return rows
    share = limit / len(rows)
    return [row for row in rows if text_fraction("\n".join((str(seed), *row.group))) < share]
