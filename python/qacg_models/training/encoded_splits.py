"""The encoded rows of a run, stored in the run folder so that a resumed run does not encode the rows again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from qacg_models.data import Dataset, Example
from qacg_models.data.collators import by_length
from qacg_models.data.example import text_fraction
from qacg_models.data.feature_table import Encoding, FeatureTable, read_features, write_features
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.training.run_folder import RunFolder, find_damage
from qacg_models.utils.atomic_files import remove_folder
from qacg_models.utils.cells import counted
from qacg_models.utils.distributed import run_on_main

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.configs.encoder import EncoderConfig

# The accuracy of 20,000 rows has a standard error of at most 0.35 points; more rows would only take longer.
MAX_EVALUATED = 20_000
ROWS_NAME = "rows.arrow"


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
    """Encodes train and the split that selects checkpoints, or reads their encoded rows from the run folder.

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
        path = folder.path / f"features-{name}"
        run_on_main(lambda: _write(folder, path.name, rows, encoding, say))
        table = read_features(path / ROWS_NAME, len(rows), encoding)
        if table is None:
            raise InputError(
                f"{path}: expected the files of the main process, got none. Use a disk that all processes share."
            )
        return table

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


def _write(
    folder: RunFolder, name: str, rows: Sequence[Example], encoding: Encoding, say: Callable[[str], None]
) -> None:
    """Writes the features of rows, unless the run folder already has undamaged features of these rows."""
    path = folder.path / name
    if path.exists():
        damage = find_damage(path)
        if damage is None and read_features(path / ROWS_NAME, len(rows), encoding) is not None:
            return
        if damage is not None:
            say(f"{damage}; encoding the rows again")
        remove_folder(path)
    with folder.new_folder(name) as writing:
        remove_folder(writing)
        writing.mkdir(parents=True)
        cut = write_features(writing / ROWS_NAME, rows, encoding)
    if cut:
        total, split = counted(len(rows), "row"), name.removeprefix("features-")
        say(f"truncated to {encoding.max_length} tokens: {cut:,} of {total} of {split} (--max-length)")


def evaluation_sample(rows: Sequence[Example], limit: int, seed: int) -> Sequence[Example]:
    """Returns the rows; if there are more than `limit`, a sample of about `limit` rows in their order.

    The sample has complete groups (`Example.group`). Groups are selected by a hash of the seed and the group, so the
    selection does not depend on the order of rows.
    """
    if len(rows) <= limit:
        return rows
    share = limit / len(rows)
    return [row for row in rows if text_fraction("\n".join((str(seed), *row.group))) < share]
