"""Division of one file into splits, by its column `split` or by hashes of its sentences."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from qacg_models.data.columns import SPLIT_COLUMN, Columns, Record
from qacg_models.data.example import DataError, Example
from qacg_models.data.example_table import ExampleTable, counts, distinct
from qacg_models.data.sentences import normalized
from qacg_models.errors import InputError


def split_dev(rows: Sequence[Example], fraction: float, seed: int) -> tuple[ExampleTable, ExampleTable]:
    """Returns the training rows and the dev rows, each in the original order.

    The distinct sentences are ordered by a hash of seed and text, and the first `fraction` of them become dev. All rows
    of sentences with the same text, ignoring case and repeated spaces, are in the same part.

    Args:
        rows: the rows to split.
        fraction: share of the distinct sentences that become dev.
        seed: seed of the hash.

    Raises:
        InputError: `fraction` of the distinct sentences, rounded, is none or all of them.
    """
    table = rows if isinstance(rows, ExampleTable) else ExampleTable(rows)
    ranks = sorted({_rank(text, seed) for (text,) in distinct(table, "sentence")})
    count = round(fraction * len(ranks))
    if not 0 < count < len(ranks):
        raise InputError(
            f"dev_fraction: expected a share that leaves sentences for training and for dev, got {fraction} of "
            f"{len(ranks)} distinct sentences. Set another share, or use a data folder with a dev file."
        )
    last = ranks[count - 1]
    return (
        table.where(lambda texts: [_rank(text, seed) > last for text in texts], "sentence"),
        table.where(lambda texts: [_rank(text, seed) <= last for text in texts], "sentence"),
    )


def split_by_column(rows: ExampleTable, paths: Sequence[Path]) -> tuple[dict[str, ExampleTable], int]:
    """Splits rows by their column `split`.

    Rows with an empty cell in this column are training rows. Training rows whose text is also in dev or test are left
    out.

    Args:
        rows: the rows of the training files.
        paths: paths of these files, for errors.

    Returns:
        The non-empty splits by name (an empty dictionary if no row is marked as dev or test), and the number of rows
        left out.

    Raises:
        DataError: the column has an unknown value, or no training row is left.
    """
    names = {"train": ("", "train"), "dev": ("dev",), "test": ("test",)}
    marks = counts(rows, "split")
    if unknown := marks.keys() - {mark for group in names.values() for mark in group}:
        row = next(row for row in rows if row.split in unknown)
        reason = (
            f"{SPLIT_COLUMN}: expected train, dev or test, got {row.split!r}; rename the column {SPLIT_COLUMN!r} if it"
            " has another meaning"
        )
        raise DataError(paths[0], None if paths[1:] else row.line, reason)
    if not marks.keys() & {"dev", "test"}:
        return {}, 0
    splits = {name: _with_marks(rows, own) for name, own in names.items()}
    held_out = {normalized(text) for name in ("dev", "test") for (text,) in distinct(splits[name], "sentence")}
    marked = splits["train"]
    splits["train"] = marked.where(lambda texts: [normalized(text) not in held_out for text in texts], "sentence")
    if not splits["train"]:
        raise _no_training_rows(paths[0])
    return {name: part for name, part in splits.items() if part}, len(marked) - len(splits["train"])


def training_records(records: Iterable[Record], path: Path, columns: Columns) -> Iterator[Record]:
    """Yields the records that the column `split` does not mark as dev or test.

    Args:
        records: the records of the training files.
        path: path of the first file, for the error.
        columns: names of the records' fields.

    Raises:
        DataError: all records are marked as dev or test.
    """
    left_out, kept = False, False
    for line, record in records:
        if columns.split and record.get(columns.split) in ("dev", "test"):
            left_out = True
        else:
            kept = True
            yield line, record
    if left_out and not kept:
        raise _no_training_rows(path)


def _no_training_rows(path: Path) -> DataError:
    reason = f"{SPLIT_COLUMN}: expected training rows with texts that are not in dev or test, got none"
    return DataError(path, None, f"{reason}; mark rows with other texts as train")


def _with_marks(rows: ExampleTable, marks: tuple[str, ...]) -> ExampleTable:
    return rows.where(lambda found: [mark in marks for mark in found], "split")


def _rank(text: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\n{normalized(text)}".encode()).digest()
