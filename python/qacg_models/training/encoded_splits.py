"""The encoded rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from qacg_models.data import Dataset, Example
from qacg_models.data.collators import by_length
from qacg_models.data.example import text_fraction
from qacg_models.data.tokenization import Encoding, FeatureTable
from qacg_models.runs.options import TrainingOptions
from qacg_models.utils.cells import counted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.configs.encoder import EncoderConfig

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
    dataset: Dataset,
    split: str,
    options: TrainingOptions,
    tokenizer: PreTrainedTokenizerFast,
    config: EncoderConfig,
    say: Callable[[str], None],
) -> EncodedSplits:
    """Encodes train and the split that selects checkpoints.

    Args:
        dataset: the data set.
        split: split that selects checkpoints.
        options: options of training, from `resolve_options`.
        tokenizer: tokenizer of the model.
        config: configuration of the model.
        say: called with each log line.

    Raises:
        InputError: `max_length` leaves no room for text.
    """
    encoding = Encoding(tokenizer, getattr(config, "contexts", None), options.max_length, options.context_standalone)

    def encode(name: str, rows: Sequence[Example]) -> FeatureTable:
        features = FeatureTable(rows, encoding)
        if features.truncated:
            total = counted(len(rows), "row")
            say(
                f"truncated to {encoding.max_length} tokens: {features.truncated:,} of {total} of {name} (--max-length)"
            )
        return features

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
