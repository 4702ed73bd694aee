"""SentiHood-form TSV files: reading, checking, and counting what leaks between splits.

A file has the header `id sentence1 sentence2 label` (any column order), tab separated, one row per sentence
and context. The rows of one id and one target form a group: one row per aspect. Lines are split at tabs and
nothing else: quotes are ordinary characters, and the label `None` stays the text `None`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from .errors import InputError
from .tasks import SENTIHOOD, Task

COLUMNS = ("id", "sentence1", "sentence2", "label")
SPLITS = ("train", "dev", "test")
FILE_NAMES = ("{split}.tsv", "{split}_NLI_M.tsv")


class DataError(InputError):
    """A data file or folder that cannot be used; the text begins with the file and the line."""

    def __init__(self, path: Path | str, line: int | None, reason: str):
        self.path, self.line, self.reason = Path(path), line, reason
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")


@dataclass(frozen=True, slots=True)
class Row:
    """One sentence seen under one context, with the line of the file it came from."""

    id: str
    sentence: str
    context: str
    target: str
    aspect: str
    label: int
    line: int

    @property
    def group(self) -> tuple[str, str]:
        """Rows with the same group are judged together: one sentence, one target, every aspect."""
        return self.id, self.target


@dataclass(frozen=True)
class Dataset:
    """The splits of one folder.

    Attributes:
        task: labels and aspects.
        splits: split name to rows, in the order of the file.
        files: split name to the file it was read from.
        contexts: every context of the training split (of all splits if there is none), targets in natural
            order and aspects in the task's order; the index is the context id.
        overlap: pairs of splits to the number of distinct sentences that stand in both.
    """

    task: Task
    splits: dict[str, list[Row]]
    files: dict[str, Path]
    contexts: tuple[str, ...]
    overlap: dict[tuple[str, str], int]


def sample_directory() -> Path:
    """Folder of the sample that comes with the package."""
    return Path(__file__).parent / "sample"


def split_file(directory: Path | str, split: str) -> Path | None:
    """The file of a split (`train.tsv` or `train_NLI_M.tsv`), None if the folder has none.

    Raises:
        DataError: the folder holds both, so that either could be meant.
    """
    found = [path for name in FILE_NAMES if (path := Path(directory) / name.format(split=split)).is_file()]
    if len(found) > 1:
        raise DataError(directory, None, f"holds both {found[0].name} and {found[1].name}; keep one of them")
    return found[0] if found else None


def require_split(directory: Path | str, split: str) -> Path:
    """The file of a split.

    Raises:
        DataError: no such folder, no file for the split, or two.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise DataError(directory, None, "no such folder")
    path = split_file(directory, split)
    if path is None:
        raise DataError(
            directory, None, f"has no {' or '.join(name.format(split=split) for name in FILE_NAMES)}"
        )
    return path


def read_rows(path: Path | str, task: Task = SENTIHOOD) -> list[Row]:
    """Read and check one file.

    Raises:
        DataError: at the first line that is not as the format wants it, or at the first row of a group
            that lacks an aspect, repeats one, or holds two sentences.
    """
    path = Path(path)
    rows: list[Row] = []
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in _parse(path, task):
        group = groups.setdefault(row.group, {})
        if row.aspect in group:
            earlier = group[row.aspect].line
            raise DataError(
                path, row.line, f"id {row.id!r} already has a row for {row.context!r} on line {earlier}"
            )
        first = next(iter(group.values()), row)
        if first.sentence != row.sentence:
            raise DataError(path, row.line, f"id {row.id!r} stands for another sentence on line {first.line}")
        group[row.aspect] = row
        rows.append(row)
    if not rows:
        raise DataError(path, None, "has no rows")
    for (group_id, target), group in groups.items():
        missing = [aspect for aspect in task.aspects if aspect not in group]
        if missing:
            line = next(iter(group.values())).line
            raise DataError(
                path,
                line,
                f"the group of id {group_id!r} and {target!r} that starts here has {len(group)} of"
                f" {len(task.aspects)} rows; missing: {', '.join(missing)}",
            )
    return rows


def load_directory(
    directory: Path | str,
    splits: Sequence[str] = SPLITS,
    task: Task = SENTIHOOD,
    *,
    optional: Sequence[str] = (),
) -> Dataset:
    """Read the splits of a folder.

    Args:
        directory: folder with `{split}.tsv` or `{split}_NLI_M.tsv`.
        splits: the splits to read.
        task: labels and aspects to check against.
        optional: those of `splits` that may be absent.

    Raises:
        DataError: no such folder, no file for a split that is not optional, a file that does not pass
            `read_rows`, or a context that the training split does not have.
    """
    directory = Path(directory)
    files: dict[str, Path] = {}
    for split in splits:
        if split not in optional or split_file(directory, split) is not None:
            files[split] = require_split(directory, split)
    rows = {split: read_rows(path, task) for split, path in files.items()}
    contexts = context_names(rows.get("train") or [row for split in rows.values() for row in split], task)
    for split, path in files.items():
        check_contexts(rows[split], contexts, path)
    return Dataset(task, rows, files, contexts, count_overlap(rows))


def context_names(rows: Sequence[Row], task: Task) -> tuple[str, ...]:
    """Every context of the rows: targets in natural order (2 before 10), aspects in the task's order."""
    targets = sorted({row.target for row in rows}, key=_natural_key)
    return tuple(f"{target} - {aspect}" for target in targets for aspect in task.aspects)


def check_contexts(rows: Sequence[Row], contexts: Sequence[str], path: Path | str) -> None:
    """Refuse rows under a context that is not among `contexts`.

    Raises:
        DataError: with the line of the first such row.
    """
    known = set(contexts)
    for row in rows:
        if row.context not in known:
            raise DataError(
                path, row.line, f"unknown context {row.context!r}; known from training: {', '.join(contexts)}"
            )


def count_overlap(splits: dict[str, list[Row]]) -> dict[tuple[str, str], int]:
    """Distinct sentences that two splits share, for every pair of splits."""
    sentences = {name: {row.sentence for row in rows} for name, rows in splits.items()}
    return {(a, b): len(sentences[a] & sentences[b]) for a, b in combinations(sentences, 2)}


def label_shares(rows: Sequence[Row], task: Task) -> list[float]:
    """Share of each label among the rows, in the task's order; sums to 1."""
    counts = Counter(row.label for row in rows)
    return [counts[index] / len(rows) for index in range(len(task.labels))]


def describe_rows(split: str, rows: Sequence[Row], task: Task) -> str:
    """One line with the size of a split and the shares of its labels."""
    shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(task.labels, label_shares(rows, task)))
    sentences = len({row.sentence for row in rows})
    groups = len({row.group for row in rows})
    return f"{split}: {sentences} sentences, {groups} groups, {len(rows)} rows ({shares})"


def describe(dataset: Dataset) -> list[str]:
    """Lines that say what was read: a line per split, and the sentences they share."""
    lines = [describe_rows(split, rows, dataset.task) for split, rows in dataset.splits.items()]
    if len(dataset.splits) > 1:
        shared = [f"{count} in both {a} and {b}" for (a, b), count in dataset.overlap.items() if count]
        lines.append("sentences shared between splits: " + (", ".join(shared) or "none"))
    return lines


def file_digest(path: Path) -> str:
    """SHA-256 of a file, by which a later evaluation knows that it sees the same data."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _parse(path: Path, task: Task) -> Iterator[Row]:
    try:
        handle = path.open("rb")
    except OSError as error:
        raise DataError(path, None, f"cannot be read ({error.strerror})") from None
    with handle:
        order: list[int] | None = None
        width = 0
        for line, raw in enumerate(handle, 1):
            try:
                # A file saved by a spreadsheet may begin with a byte order mark.
                text = raw.decode("utf-8-sig" if line == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(path, line, f"is not UTF-8 (byte {error.start + 1} of the line)") from None
            if not text.strip():
                continue
            fields = text.split("\t")
            if order is None:
                order, width = _column_order(path, line, fields), len(fields)
                continue
            if len(fields) != width:
                raise DataError(path, line, f"has {len(fields)} tab-separated fields, the header has {width}")
            row_id, sentence, context, label = (fields[index] for index in order)
            if not row_id or not sentence.strip():
                raise DataError(path, line, f"has an empty {'sentence1' if row_id else 'id'}")
            try:
                target, aspect = task.split_context(context)
                index = task.label_index(label)
            except ValueError as error:
                raise DataError(path, line, str(error)) from None
            yield Row(row_id, sentence, context, target, aspect, index, line)


def _column_order(path: Path, line: int, header: list[str]) -> list[int]:
    wanted = f"; wanted: {', '.join(COLUMNS)} (tab separated)"
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise DataError(path, line, f"the header lacks {', '.join(missing)}{wanted}")
    if len(header) != len(COLUMNS):
        extra = [name for name in header if name not in COLUMNS] or ["a column twice"]
        raise DataError(path, line, f"the header also has {', '.join(extra)}{wanted}")
    return [header.index(name) for name in COLUMNS]


def _natural_key(text: str) -> list[tuple[int, int, str]]:
    parts = [part for part in re.split(r"([0-9]+)", text) if part]
    return [(0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts]
