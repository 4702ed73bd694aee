"""Warnings about data: what makes a model or its metrics worse than they look, and what to do about it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qacg_models.data.example import Example
from qacg_models.data.example_table import column_values, counts, distinct
from qacg_models.data.sentences import normalized
from qacg_models.data.task import Task

if TYPE_CHECKING:
    import numpy as np

# Below these numbers: an accuracy of 50 rows has a standard error of up to 7 points, one of 30 sentences up to 9, since
# the rows of a sentence are right or wrong together. Of fewer than 10 rows of a label, dev has about one.
LEAST_ROWS, LEAST_DEV_SENTENCES, LEAST_CLASS_ROWS = 50, 30, 10
SHOWN = 3  # examples of a warning
_TEXT = 60  # characters of a text in an example


@dataclass(frozen=True)
class DataWarning:
    """One finding about a split.

    Attributes:
        code: `no_absent_rows`, `rare_class`, `contradictory_labels`, `duplicate_rows`, `few_dev_sentences` or
            `few_rows`; stable, for programs.
        split: name of the split, or of the file.
        message: what was found, what follows from it, and what to do.
        count: how many rows, labels, sentences, or pairs of text and aspect it concerns.
        examples: the first of them, with the numbers of their lines.
    """

    code: str
    split: str
    message: str
    count: int
    examples: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for a terminal or a page."""
        shown = f" ({'; '.join(self.examples)}{'; ...' if self.count > len(self.examples) else ''})"
        return f"warning: {self.split}: {self.message}{shown if self.examples else ''}"


def training_warnings(splits: Mapping[str, Sequence[Example]], task: Task) -> tuple[DataWarning, ...]:
    """Warnings about data for training.

    Rows are read in blocks; about 60 bytes for each row of a split are in memory meanwhile.

    Args:
        splits: rows by the name of their split; train, dev and test are looked at if they are there.
        task: labels and aspects of the rows.

    Returns:
        For train: no row without an opinion, labels with few rows, contradictory labels, duplicate rows. For dev and
        test: contradictory labels, and few sentences or rows.

    Example:
        >>> from qacg_models.data import load_data, sample_directory
        >>> dataset = load_data(sample_directory())
        >>> training_warnings(dataset.splits, dataset.task)
        ()
    """
    found: list[DataWarning | None] = []
    for split, rows in splits.items():
        if split == "train":
            found += [_no_absent_rows(split, rows, task), _rare_classes(split, rows, task)]
            found += _repeated_rows(split, rows, task, duplicates=True)
            continue
        few = _few_dev_sentences(split, rows) if split == "dev" else None
        found += [few or _few_rows(split, rows), *_repeated_rows(split, rows, task, duplicates=False)]
    return tuple(one for one in found if one is not None)


def evaluation_warnings(split: str, rows: Sequence[Example], task: Task) -> tuple[DataWarning, ...]:
    """Warnings about labelled rows on which a model is evaluated: few rows, contradictory labels.

    Args:
        split: name of the split or file, for the messages.
        rows: labelled.
        task: labels and aspects of the rows.
    """
    found = [_few_rows(split, rows), *_repeated_rows(split, rows, task, duplicates=False)]
    return tuple(one for one in found if one is not None)


def _no_absent_rows(split: str, rows: Sequence[Example], task: Task) -> DataWarning | None:
    if task.has_absent and 0 in counts(rows, "label"):
        return None
    name = repr(task.labels[0]) if task.has_absent else "'none' (or name your own label with --absent-label)"
    message = (
        "no row says that a text has no opinion on an aspect, so the model gives every text a sentiment on every"
        f" aspect; add rows with the label {name} for aspects that a text does not mention"
    )
    return DataWarning("no_absent_rows", split, message, len(rows))


def _rare_classes(split: str, rows: Sequence[Example], task: Task) -> DataWarning | None:
    found = counts(rows, "label")
    rare = {name: found.get(index, 0) for index, name in enumerate(task.labels)}
    rare = {name: count for name, count in rare.items() if count < LEAST_CLASS_ROWS}
    if task.has_absent and not rare.get(task.labels[0], 1):
        del rare[task.labels[0]]  # which `no_absent_rows` reports
    if not rare:
        return None
    message = (
        f"{_counted(len(rare), 'label has', 'labels have')} fewer than {LEAST_CLASS_ROWS} rows, too few to learn from;"
        " label more rows, or merge labels"
    )
    shown = [f"{name!r}: {_counted(count, 'row', 'rows')}" for name, count in list(rare.items())[:SHOWN]]
    return DataWarning("rare_class", split, message, len(rare), tuple(shown))


def _few_dev_sentences(split: str, rows: Sequence[Example]) -> DataWarning | None:
    count = len(distinct(rows, "sentence"))
    if count >= LEAST_DEV_SENTENCES:
        return None
    message = (
        f"{_counted(count, 'sentence', 'sentences')} only, so the choice of the checkpoint and the metrics on {split}"
        f" are partly chance; label more, or make {split} larger (--dev-fraction, or a file of its own), so that it has"
        f" at least {LEAST_DEV_SENTENCES}"
    )
    return DataWarning("few_dev_sentences", split, message, count)


def _few_rows(split: str, rows: Sequence[Example]) -> DataWarning | None:
    if len(rows) >= LEAST_ROWS:
        return None
    error = 50 / max(len(rows), 1) ** 0.5  # of a share of one half, in points
    message = (
        f"metrics on {_counted(len(rows), 'row', 'rows')} say little: the standard error of an accuracy is up to"
        f" {error:.0f} points; evaluate on at least {LEAST_ROWS} rows, better on hundreds"
    )
    return DataWarning("few_rows", split, message, len(rows))


def _repeated_rows(split: str, rows: Sequence[Example], task: Task, *, duplicates: bool) -> Iterator[DataWarning]:
    """Warnings about rows with the same text (but for case and spaces) and context."""
    import numpy as np

    keys, labels = _keys(rows), np.fromiter((label for (label,) in column_values(rows, "label")), np.int32, len(rows))
    order = np.lexsort((labels, keys))  # stable, so that equal ones stay in the order of the rows
    same_key = keys[order][1:] == keys[order][:-1]
    same_label = labels[order][1:] == labels[order][:-1]
    contradicted = np.unique(keys[order[1:][same_key & ~same_label]])
    if len(contradicted):
        shown = []
        for first in _first_rows(np.flatnonzero(np.isin(keys, contradicted)), keys):
            group = np.flatnonzero(keys == keys[first])
            shown.append(_shown(rows, group[np.unique(labels[group], return_index=True)[1]], task))
        message = (
            f"{_counted(len(contradicted), 'pair of text and aspect has', 'pairs of text and aspect have')} different"
            " labels in different rows, of which at most one can be right; keep the right rows and delete the others"
        )
        yield DataWarning("contradictory_labels", split, message, len(contradicted), tuple(shown))
    repeats = np.sort(order[1:][same_key & same_label])
    if duplicates and len(repeats):
        shown = []
        for first in _first_rows(repeats, keys):
            shown.append(_shown(rows, np.flatnonzero((keys == keys[first]) & (labels == labels[first])), task))
        message = (
            f"{_counted(len(repeats), 'row repeats', 'rows repeat')} the text, aspect and label of an earlier row and"
            " so count twice; delete copies, unless different people wrote the same words"
        )
        yield DataWarning("duplicate_rows", split, message, len(repeats), tuple(shown))


def _first_rows(found: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The first of the rows `found` (ascending indices) under each of the first SHOWN different keys."""
    import numpy as np

    return found[np.sort(np.unique(keys[found], return_index=True)[1])[:SHOWN]]


def _shown(rows: Sequence[Example], indices: np.ndarray, task: Task) -> str:
    """The text and context that some rows share, with the line and label of the first of them."""
    group = [rows[int(index)] for index in sorted(indices)[:SHOWN]]
    text = " ".join(group[0].sentence.split())
    text = text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."
    lines = ", ".join(f"line {row.line} {task.labels[row.label]!r}" for row in group if row.label is not None)
    return f"{group[0].context!r} of {text!r}: {lines}"


def _keys(rows: Sequence[Example]) -> np.ndarray:
    """(N) uint64: a hash of the text, without case and spaces, and the context of each row."""
    import numpy as np

    def hashes() -> Iterator[int]:
        text, of_text = None, hashlib.blake2b(digest_size=8)
        for sentence, context in column_values(rows, "sentence", "context"):
            if sentence != text:  # the rows of a sentence mostly stand together
                text, of_text = sentence, hashlib.blake2b(normalized(sentence).encode() + b"\n", digest_size=8)
            of_row = of_text.copy()
            of_row.update(context.encode())
            yield int.from_bytes(of_row.digest(), "little")

    return np.fromiter(hashes(), np.uint64, len(rows))


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
