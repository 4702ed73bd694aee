"""The splits of a data set: read, checked against one another, and described."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from qacg_models.data.data_warnings import DataWarning, training_warnings
from qacg_models.data.description import count_overlap, describe_examples, describe_overlap
from qacg_models.data.example import DataError, Example
from qacg_models.data.example_table import ExampleTable, distinct
from qacg_models.data.formats import SPLITS, Format, find_format
from qacg_models.data.options import DataOptions
from qacg_models.data.records import discover, natural_key
from qacg_models.data.splitting import split_dev
from qacg_models.data.task import Task


@dataclass(frozen=True)
class Dataset:
    """The splits of one folder or file.

    Attributes:
        task: labels and aspects.
        splits: split name to rows, in the order of the file; tables, as they are read, of rows that may be millions.
        files: split name to the file it was read from.
        contexts: every context of the training split (of all splits if there is none), targets in natural
            order and aspects in the task's order; the index is the context id.
        overlap: pairs of splits to the number of distinct sentences that stand in both.
        source: the folder or file that was read, and `options` how.
        notes: what was decided while reading, one line each.
    """

    task: Task
    splits: dict[str, Sequence[Example]]
    files: dict[str, Path]
    contexts: tuple[str, ...]
    overlap: dict[tuple[str, str], int]
    source: Path
    options: DataOptions
    notes: tuple[str, ...] = ()

    @cached_property
    def warnings(self) -> tuple[DataWarning, ...]:
        """What makes a model trained on this data, or its metrics, worse than they look."""
        return training_warnings(self.splits, self.task)


def sample_directory() -> Path:
    """Folder of the sample that comes with the package."""
    return Path(__file__).parents[1] / "sample"


def load_data(
    path: Path | str,
    splits: Sequence[str] = SPLITS,
    options: DataOptions | None = None,
    *,
    optional: Sequence[str] = (),
    task: Task | None = None,
) -> Dataset:
    """Read the splits of a folder, or of one file, which is then the training split.

    Where there is no file for dev, some of the training sentences become dev (`split_dev`), whichever of the two
    is asked for.

    Args:
        splits: the splits to read.
        options: how; None for the defaults.
        optional: those of `splits` that may be absent.
        task: labels and aspects to check against; None takes those of the format, or discovers them.

    Raises:
        DataError: no such folder, no file for a split that is not optional, a file that is not as its format
            wants it, or a context that the training split does not have.
    """
    path, options = Path(path), options or DataOptions()
    data_format = find_format(path, options.format)
    found = _files(path, data_format)
    divided = "dev" not in found and "train" in found and bool({"train", "dev"} & set(splits))
    for split in splits:
        if split not in found and split not in optional and not (divided and split == "dev"):
            if path.is_file():
                raise DataError(path, None, f"is one file, which gives train and dev; {split} wants one of its own")
            raise DataError(path, None, f"has no {' or '.join(data_format.names(split))}")
    files = {split: file for split, file in found.items() if split in splits or (divided and split == "train")}
    if not files:
        raise DataError(path, None, f"has none of the splits {', '.join(splits)}")
    names = options.columns()
    if task is None:
        task = data_format.task or _discovered(data_format, next(iter(files.values())), options)
    rows: dict[str, Sequence[Example]] = {split: data_format.rows(file, task, names) for split, file in files.items()}
    contexts = context_names([rows["train"]] if "train" in rows else rows.values(), task)
    for split, file in files.items():
        check_contexts(rows[split], contexts, file)
    notes = _notes(data_format, task, files)
    if divided:
        rows["train"], rows["dev"] = split_dev(rows["train"], options.dev_fraction, options.dev_seed)
        files["dev"] = files["train"]
        notes.append(
            f"no dev is shipped: {options.dev_fraction:.0%} of the training sentences became dev, by sentence,"
            f" with seed {options.dev_seed}"
        )
    kept = [split for split in SPLITS if split in splits and split in rows]
    rows = {split: rows[split] for split in kept}
    return Dataset(
        task,
        rows,
        {split: files[split] for split in kept},
        contexts,
        count_overlap(rows),
        path,
        options,
        tuple(notes),
    )


def load_file(path: Path | str, task: Task, options: DataOptions | None = None) -> ExampleTable:
    """All rows of one file, for a task that is known.

    Raises:
        DataError: as for `load_data`, or the file's format belongs to another task.
    """
    path, options = Path(path), options or DataOptions()
    data_format = find_format(path, options.format)
    if data_format.task not in (None, task):
        raise DataError(path, None, f"is {data_format.name}, and the task here is {task.name!r}")
    return data_format.rows(path, task, options.columns())


def context_names(splits: Iterable[Sequence[Example]], task: Task) -> tuple[str, ...]:
    """Every context of some splits: targets in natural order (2 before 10), aspects in the task's order."""
    targets = sorted({target for rows in splits for (target,) in distinct(rows, "target")}, key=natural_key)
    return tuple(task.context(target, aspect) for target in targets for aspect in task.aspects)


def check_contexts(rows: Sequence[Example], contexts: Sequence[str], path: Path | str) -> None:
    """Refuse rows under a context that is not among `contexts`.

    Raises:
        DataError: with the line of the first such row.
    """
    known = set(contexts)
    if all(context in known for (context,) in distinct(rows, "context")):
        return
    row = next(row for row in rows if row.context not in known)
    raise DataError(path, row.line, f"unknown context {row.context!r}; known from training: {', '.join(contexts)}")


def describe(dataset: Dataset) -> list[str]:
    """Lines that say what was read: what was decided, a line per split, and the sentences they share."""
    lines = [*dataset.notes]
    lines += [describe_examples(split, rows, dataset.task) for split, rows in dataset.splits.items()]
    if len(dataset.splits) > 1:
        lines.append(describe_overlap(dataset.overlap))
    return lines


def file_digest(path: Path) -> str:
    """SHA-256 of a file, by which a later evaluation knows that it sees the same data."""
    digest = hashlib.sha256()  # hashlib.file_digest came with Python 3.11
    with path.open("rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _files(path: Path, data_format: Format) -> dict[str, Path]:
    """The file of every split that there is, in the order of SPLITS."""
    if path.is_file():
        return {"train": path}
    return {split: file for split in SPLITS if (file := data_format.file(path, split)) is not None}


def _discovered(data_format: Format, path: Path, options: DataOptions) -> Task:
    assert data_format.records is not None, "a format without a task of its own"
    names = options.columns()
    return discover(
        data_format.records(path, names),
        path,
        names,
        aspects=options.aspects,
        labels=options.labels,
        absent_label=options.absent_label,
    )


def _notes(data_format: Format, task: Task, files: dict[str, Path]) -> list[str]:
    notes = [f"read as {data_format.name}: {', '.join(file.name for file in files.values())}"]
    if data_format.task is None:
        notes.append(f"aspects: {', '.join(task.aspects)}; labels: {', '.join(task.labels)}")
        if task.has_absent:
            notes.append(f"the label {task.labels[0]!r} says that there is no opinion")
    if data_format.note:
        notes.append(data_format.note)
    if "conflict" in task.labels and data_format.task is not None:
        notes.append("'conflict' is a label of its own, which 3- and 2-class accuracy leave out")
    return notes
