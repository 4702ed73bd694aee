"""Data sets: functions that read the splits of a folder or of files, check the rows, and describe the data set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qacg_models.errors import InputError
from qacg_models.sentiment.columns import (
    ON_EMPTY,
    check_lengths,
    column,
    discover,
    index_of,
    natural_key,
    rows_of_table,
    text_table,
    wide_aspects,
    without_empty_cells,
)
from qacg_models.sentiment.data_warnings import DataWarning, training_warnings
from qacg_models.sentiment.example import (
    DataError,
    Example,
    ExampleTable,
    RowProblems,
    Source,
    Task,
    counts,
    distinct,
    frame_of,
)
from qacg_models.sentiment.formats import OWN_TABLES, SPLITS, Format, find_format
from qacg_models.sentiment.options import DataOptions
from qacg_models.utils.text import counted, lone_surrogate, normalized

if TYPE_CHECKING:
    from pandas import DataFrame

Sources = Path | str | Sequence[Path | str]
Content = tuple[Source, Any]  # a file or DataFrame, and rows of a table or what `Format.read` returned

# Descriptions of where the dev rows come from, and of what the dev metric estimates.
RESERVED = (
    "rows that the column 'split' marks as dev; if they are a random sample, as in a sheet of qacg suggest, the dev"
    " metric estimates the metric on new texts"
)
CUT = (
    "split off the training file; the dev metric estimates the metric on new texts only if the file is a random sample"
    " of them"
)


@dataclass(frozen=True)
class Dataset:
    """The splits of a folder, file, list of files, or of DataFrames."""

    task: Task
    splits: dict[str, Sequence[Example]]  # rows by split name, in the order of SPLITS; rows are in file order
    files: dict[str, tuple[Path, ...]]  # the files of each split; empty for DataFrames
    targets: tuple[str, ...]  # of train or, without it, of all files, in natural order; ("",) if there are none
    sources: tuple[Path, ...]  # the folder or files passed to `load_data`
    options: DataOptions  # with which the files were read
    notes: tuple[str, ...] = ()  # log lines about how the files were read
    skipped: tuple[str, ...] = ()  # the lines of `notes` about skipped rows, one for each file with such rows
    dev_origin: str = ""  # RESERVED or CUT, if the training file was divided
    # For DataFrames, the index by split; its entry N - 1 belongs to the row whose `line` is N.
    indices: Mapping[str, Sequence[object]] = field(default_factory=dict)

    @property
    def contexts(self) -> tuple[str, ...]:
        """Context names, one for each target with each aspect; the position is the context id."""
        return self.task.contexts(self.targets)

    @cached_property
    def overlap(self) -> dict[tuple[str, str], int]:
        """For each pair of splits, the number of distinct sentences in both, ignoring case and repeated spaces."""
        found = {
            name: {normalized(text) for (text,) in distinct(rows, "sentence")} for name, rows in self.splits.items()
        }
        return {(a, b): len(found[a] & found[b]) for a, b in combinations(found, 2)}

    @cached_property
    def warnings(self) -> tuple[DataWarning, ...]:
        """The warnings of `training_warnings` about the splits."""
        return training_warnings(self.splits, self.task, self.indices)


def sample_directory() -> Path:
    """Returns the folder of the sample data set of this package, in SentiHood's format."""
    return Path(__file__).parents[1] / "sample"


def sample_reviews() -> Path:
    """Returns the file of sample reviews of this package, a table with a column for each aspect."""
    return sample_directory() / "reviews.csv"


def load_data(
    path: Sources,
    splits: Sequence[str] = SPLITS,
    options: DataOptions | None = None,
    *,
    optional: Sequence[str] = (),
    task: Task | None = None,
) -> Dataset:
    """Reads the splits of a folder, or one or several files as the training split.

    Without a dev file, the training file is divided by the column `split`. If this column does not exist or marks no
    dev rows, dev is a share of the training sentences (`split_dev`).

    Args:
        path: a folder, a file, or several files in one format. The same id in two files means two sentences.
        splits: the splits to read.
        options: how to read the files; None: the defaults.
        optional: the members of `splits` that may be absent.
        task: expected labels and aspects. None: those of the format, of `options` or of the training rows (of the first
            split, if train is not read).
    """
    options = options or DataOptions()
    sources, data_format = _sources(path, options)
    if sources[0].is_file():
        found = {"train": sources}
    else:
        found = {split: (file,) for split in SPLITS if (file := data_format.file(sources[0], split)) is not None}
    divided = "dev" not in found and "train" in found and any(one == "train" or one not in found for one in splits)
    missing = [split for split in splits if split not in found and split not in optional]
    # Division always creates dev. For your own tables, the column `split` can create the other splits too.
    made = [] if not divided else ["dev"] if data_format.table is None else missing
    _refuse_missing([split for split in missing if split not in made], sources[0], data_format)
    files = {split: parts for split, parts in found.items() if split in splits or (divided and split == "train")}
    if not files:
        raise DataError(sources[0], None, f"expected at least one of the splits {', '.join(splits)}, got none")
    skipped: list[str] = []
    contents = {split: _contents(data_format, parts, options, skipped) for split, parts in files.items()}
    dataset = _dataset(data_format, contents, options, task, divided, test_file=found.get("test"))
    _refuse_missing([split for split in missing if split not in dataset.splits], sources[0], data_format)
    kept = [split for split in SPLITS if split in splits and split in dataset.splits]
    names = ", ".join(file.name for parts in files.values() for file in parts)
    by_path = {source.path: content for parts in contents.values() for source, content in parts}
    notes = [f"read as {data_format.name}: {names}", *_task_notes(dataset.task), *data_format.notes(by_path)]
    if dataset.task.metrics == "semeval":
        notes.append("'conflict' is a separate label, which 3- and 2-class accuracy leave out")
    return replace(
        dataset,
        splits={split: dataset.splits[split] for split in kept},
        files={split: files.get(split, files.get("train")) for split in kept},
        sources=sources,
        notes=(*notes, *skipped, *dataset.notes),
        skipped=tuple(skipped),
    )


def load_file(
    path: Sources,
    task: Task,
    options: DataOptions | None = None,
    *,
    contexts: Sequence[str] | None = None,
    notes: list[str] | None = None,
) -> ExampleTable:
    """Reads all rows of one or several files for a known task.

    `contexts` are those that rows may have; None: any. Lines about what is left out are appended to `notes`.
    """
    options = options or DataOptions()
    sources, data_format = _sources(path, options)
    if data_format.task not in (None, task):
        got = f"the format {data_format.name!r}, which is for the task {data_format.task.name!r}"
        raise DataError(sources[0], None, f"expected data of the task {task.name!r}, got {got}")
    left_out: list[str] = []
    contents = _contents(data_format, sources, options, left_out)
    if notes is not None:
        notes += [*data_format.notes({source.path: content for source, content in contents}), *left_out]
    return _examples(data_format, contents, task, options, contexts)


def load_frames(frames: Mapping[str, Any], options: DataOptions, on_empty: str, say: Callable[[str], None]) -> Dataset:
    """Returns the data set of DataFrames, or mappings of columns, by split; its errors name index labels.

    Without dev rows, a part of train becomes dev. `on_empty` is "raise" (InputError) or "skip", for rows with an empty
    cell; in a wide frame, an empty label skips only its aspect. `say` gets a line for each split with skipped rows.
    """
    contents = {split: [_frame_rows(frame, options, on_empty, split, say)] for split, frame in frames.items()}
    dataset = _dataset(OWN_TABLES, contents, options, None, "dev" not in frames)
    indices = {split: contents.get(split, contents["train"])[0][0].index for split in dataset.splits}
    notes = (*_task_notes(dataset.task), *dataset.notes)
    return replace(dataset, notes=notes, indices=indices)


def load_frame(
    frame: Any, task: Task, options: DataOptions, on_empty: str, *, contexts: Sequence[str] | None = None
) -> ExampleTable:
    """Returns the rows of a DataFrame or mapping for a known task; arguments and errors as for `load_frames`."""
    content = _frame_rows(frame, options, on_empty, "frame", lambda line: None)
    return _examples(OWN_TABLES, [content], task, options, contexts)


def _frame_rows(
    frame: Any, options: DataOptions, on_empty: str, split: str, say: Callable[[str], None]
) -> tuple[Source, DataFrame]:
    """Returns the source and the rows of a user's frame, without empty cells (`load_frames`)."""
    columns = options.columns()
    arguments = {"text": columns.text, "id_column": columns.id, "target_column": columns.target}
    if not columns.wide:
        arguments |= {"aspect": columns.aspect, "label": columns.label}
    cells = {name: column(frame, name, argument) for argument, name in arguments.items() if name is not None}
    names = {str(name): name for name in frame} if columns.wide else {}
    cells |= {name: column(frame, names.get(name, name), "aspect_columns") for name in wide_aspects(names, columns)}
    if columns.split in list(frame):
        cells[columns.split] = column(frame, columns.split, "frame")
    check_lengths(cells)
    if on_empty not in ON_EMPTY:
        raise InputError(f"on_empty: expected one of {', '.join(ON_EMPTY)}, got {on_empty!r}.")
    count = len(cells[columns.text])
    source = Source("frame", index_of(frame, count))
    for name, values in cells.items():
        for line, half in enumerate(map(lone_surrogate, values), 1):
            if half is not None:
                reason = f"expected text that UTF-8 can encode, got {half}, half of a character; remove it"
                raise source.error(line, f"{name!r}: {reason}")
    table = text_table(cells, range(1, count + 1))
    return source, _whole_rows(source, table, options, on_empty == "skip", split, say)


def _whole_rows(
    source: Source, table: DataFrame, options: DataOptions, skip: bool, name: str, say: Callable[[str], object]
) -> DataFrame:
    """Returns the rows of a table without empty cells; `say` gets a line about those skipped of a file or split."""
    columns = options.columns()
    skipped = RowProblems(source) if skip else None
    rows = without_empty_cells(rows_of_table(table, columns), source, columns, skipped)
    if skipped is not None and skipped.total:
        say(f"left out of {name}: {counted(skipped.total, 'row')} ({skipped.summary()})")
    return rows


def target_names(splits: Iterable[Sequence[Example]], task: Task) -> tuple[str, ...]:
    """Returns the targets in the splits, in natural order (2 before 10); ("",) for a task without targets."""
    found = {target for rows in splits for (target,) in distinct(rows, "target")} if task.has_targets else {""}
    return tuple(sorted(found, key=natural_key))


def check_contexts(rows: Sequence[Example], contexts: Sequence[str], path: Path | str | Source) -> None:
    """Raises an error, with the row's line number, for the first row whose context is not among `contexts`."""
    source = path if isinstance(path, Source) else Source(path)
    unknown = ~frame_of(rows)["context"].isin(contexts).to_numpy()
    if unknown.any():
        row = rows[int(unknown.argmax())]
        reason = f"context: expected one of the training contexts ({', '.join(contexts)}), got {row.context!r}"
        raise source.error(row.line, f"{reason}; remove the row, or train on data with this context")


def describe(dataset: Dataset) -> list[str]:
    """Returns lines that describe a data set: notes, a line per split, and, for several splits, shared sentences."""
    lines = [*dataset.notes]
    lines += [describe_examples(split, rows, dataset.task) for split, rows in dataset.splits.items()]
    if len(dataset.splits) > 1:
        shared = [f"{count} in both {a} and {b}" for (a, b), count in dataset.overlap.items() if count]
        lines.append("sentences shared between splits: " + (", ".join(shared) or "none"))
    return lines


def label_shares(rows: Sequence[Example], task: Task) -> list[float]:
    """Returns the share of each label in the task's order; there must be rows, and each must have a label."""
    found = counts(rows, "label")
    return [found.get(index, 0) / len(rows) for index in range(len(task.labels))]


def describe_examples(split: str, rows: Sequence[Example], task: Task) -> str:
    """Returns one line with the size and the label shares of a split, which must have rows."""
    shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(task.labels, label_shares(rows, task)))
    sentences, groups = len(distinct(rows, "sentence")), len(distinct(rows, "id", "target"))
    sizes = ", ".join([counted(sentences, "sentence"), counted(groups, "group"), counted(len(rows), "row")])
    return f"{split}: {sizes} ({shares})"


def file_digest(*paths: Path) -> str:
    """Returns the SHA-256 of the concatenated files, in hexadecimal, to recognise the same data later."""
    digest = hashlib.sha256()  # hashlib.file_digest needs Python 3.11
    for path in paths:
        with path.open("rb") as handle:
            for block in iter(lambda: handle.read(1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()


def file_digests(dataset: Dataset) -> dict[str, str]:
    """Returns the SHA-256 of the files of each split; of the rows, for DataFrames."""
    from pandas.util import hash_pandas_object

    if dataset.files:
        return {split: file_digest(*files) for split, files in dataset.files.items()}
    hashes = {split: hash_pandas_object(frame_of(rows), index=False) for split, rows in dataset.splits.items()}
    return {split: hashlib.sha256(found.to_numpy().tobytes()).hexdigest() for split, found in hashes.items()}


def _sources(path: Sources, options: DataOptions) -> tuple[tuple[Path, ...], Format]:
    """Returns the folder or files as paths, and their common format."""
    given = [path] if isinstance(path, str | Path) else path
    sources = tuple(Path(one) for one in given)
    if not sources:
        raise InputError("data: expected a folder or at least one file, got none")
    if len(sources) > 1 and (folder := next((source for source in sources if source.is_dir()), None)) is not None:
        raise DataError(folder, None, "expected files, got a folder; pass one folder alone, or files")
    formats = [find_format(source, options.format) for source in sources]
    for number, (source, found) in enumerate(zip(sources, formats)):
        if any(source.samefile(earlier) for earlier in sources[:number]):
            raise DataError(source, None, "expected each file once, got this file twice")
        if found != formats[0]:
            reason = f"expected the format of {sources[0]}, {formats[0].name}, got {found.name}"
            raise DataError(source, None, f"{reason}; pass files in one format, or select the format with --format")
    if formats[0].table is None:
        refused = ["encoding", "quoting", "wide", "aspect_columns", "target_column", "skip_empty"]
        refused += ["aspects", "labels", "absent_label"] if formats[0].task is not None else []
        for name in (one for one in refused if getattr(options, one) != getattr(DataOptions, one)):
            reason = f"{sources[0]} is read as {formats[0].name}, which does not support this option"
            raise InputError(f"{name}: {reason}; omit {name}, or pass --format columns for a table of your own")
    return sources, formats[0]


def _contents(data_format: Format, files: Sequence[Path], options: DataOptions, notes: list[str]) -> list[Content]:
    """Reads files once, and returns their contents; appends a line for each file with skipped rows to `notes`."""
    contents: list[Content] = []
    for file in files:
        source, content = Source(file), data_format.read(file, options.columns())
        if data_format.table is not None:
            content = _whole_rows(source, content, options, options.skip_empty, file.name, notes.append)
        contents.append((source, content))
    return contents


def _dataset(
    data_format: Format,
    contents: Mapping[str, Sequence[Content]],
    options: DataOptions,
    task: Task | None,
    divided: bool,
    test_file: Sequence[Path] | None = None,
) -> Dataset:
    """Returns the data set of contents by split; `divided`: train is divided into splits."""
    import pandas as pd

    columns, first = options.columns(), next(iter(contents.values()))
    given = {name: getattr(options, name) for name in ("aspects", "labels", "absent_label")}
    if task is None and data_format.table is None:
        task = data_format.published_task({source.path: content for source, content in first}, given)
    elif task is None:
        source, rows = first[0][0], pd.concat([content.drop(columns="sentence") for _, content in first])
        task = discover(_unmarked(rows) if divided else rows, source, columns, **given)
    tables = {split: _examples(data_format, parts, task, options) for split, parts in contents.items()}
    joined = {  # the source of the rows of several files, for errors
        split: Source(", ".join(str(source.path) for source, _ in parts)) if parts[1:] else parts[0][0]
        for split, parts in contents.items()
    }
    train = tables.get("train")
    if train is not None and divided:
        train = ExampleTable(_unmarked(train.frame))
    named = tables.values() if train is None else [train]
    targets = target_names(named, task)
    for split, parts in contents.items():
        check_contexts(tables[split], task.contexts(targets), joined[split])
        others = sorted(counts(tables[split], "split").keys() & set(SPLITS) - {split})
        if others and not (divided and split == "train"):
            reason = f"expected rows of the split {split}, got rows marked as {others[0]} in the column 'split'"
            raise parts[0][0].error(None, f"{reason}; correct the column, or remove it")
    splits: dict[str, Sequence[Example]] = {**tables}
    notes, origin = [], ""
    if divided:
        divisions, note, origin = _divide(tables["train"], joined["train"], test_file, options)
        splits, notes = splits | divisions, [note]
    splits = {split: splits[split] for split in SPLITS if split in splits}
    return Dataset(task, splits, {}, targets, (), options, tuple(notes), dev_origin=origin)


def _unmarked(rows: DataFrame) -> DataFrame:
    """Returns the rows that are not marked as dev or test; all rows if there are none, so that `_divide` raises."""
    kept = rows[~rows["split"].isin(["dev", "test"])] if "split" in rows else rows
    return rows if kept.empty else kept


def _examples(
    data_format: Format,
    contents: Sequence[Content],
    task: Task,
    options: DataOptions,
    contexts: Sequence[str] | None = None,
) -> ExampleTable:
    """Returns the examples of files; with several files, each id begins with the number of its file."""
    import pandas as pd

    tables = []
    for number, (source, content) in enumerate(contents, 1):
        prefix = f"{number}/" if len(contents) > 1 else ""
        tables.append(data_format.examples(content, source, task, options.columns(), prefix))
        if contexts is not None:
            check_contexts(tables[-1], contexts, source)
    return tables[0] if len(tables) == 1 else ExampleTable(pd.concat([one.frame for one in tables], ignore_index=True))


def _refuse_missing(splits: Sequence[str], path: Path, data_format: Format) -> None:
    """Raises DataError for the first of the missing splits."""
    for split in splits[:1]:
        if path.is_file():
            reason = f"expected a folder with a file for {split}, got a file, which provides train and dev only"
            advice = f"pass a folder, or mark rows of your own table as {split} in a column 'split'"
            raise DataError(path, None, f"{reason}; {advice}")
        raise DataError(path, None, f"has no {' or '.join(data_format.names(split))}")


def _divide(
    rows: ExampleTable, source: Source, test_file: Sequence[Path] | None, options: DataOptions
) -> tuple[dict[str, Sequence[Example]], str, str]:
    """Returns the splits of the training files, a log line about them, and where dev is from (RESERVED or CUT).

    Rows with an empty cell in the column `split` are training rows. Training rows whose text is also in dev or test are
    left out.
    """
    marks = rows.frame["split"].replace("", "train")
    unknown = ~marks.isin(SPLITS)
    if unknown.any():
        row = rows.frame.iloc[int(unknown.to_numpy().argmax())]
        reason = f"split: expected train, dev or test, got {row['split']!r}"
        raise source.error(int(row["line"]), f"{reason}; rename the column 'split' if it has another meaning")
    parts = {name: rows.where(marks == name) for name in SPLITS} if marks.ne("train").any() else {"train": rows}
    held_out = {normalized(text) for name in [*parts][1:] for (text,) in distinct(parts[name], "sentence")}
    if held_out:
        parts["train"] = parts["train"].where(~parts["train"].frame["sentence"].map(normalized).isin(held_out))
    if not parts["train"]:
        reason = "split: expected training rows with texts that are not in dev or test, got none"
        raise source.error(None, f"{reason}; mark rows with other texts as train")
    parts = {name: part for name, part in parts.items() if part}
    if "test" in parts and test_file is not None:
        reason = f"expected one source of test rows, got the column 'split' and the file {test_file[0].name}"
        raise source.error(None, f"{reason}; keep one of them")
    share, seed = options.dev_fraction, options.dev_seed
    if "dev" not in parts:
        train, dev = split_dev(parts["train"], share, seed)
        used = f"{share:.0%} of the training sentences are used as dev (split by sentence, seed {seed})"
        return parts | {"train": train, "dev": dev}, f"no dev file: {used}", CUT
    if (share, seed) != (DataOptions.dev_fraction, DataOptions.dev_seed):
        expected = f"dev_fraction, dev_seed: expected the defaults, got {share}, {seed}"
        raise InputError(f"{expected}; omit both, because the column 'split' marks the dev rows")
    note = f"the column 'split' divides the rows: {', '.join(f'{len(part)} {name}' for name, part in parts.items())}"
    left_out = len(rows) - sum(map(len, parts.values()))
    if left_out:
        note += f"; {left_out} training rows left out, because their text is also in dev or test"
    return parts, note, RESERVED


def split_dev(rows: Sequence[Example], fraction: float, seed: int) -> tuple[ExampleTable, ExampleTable]:
    """Returns the training rows and the dev rows, each in the original order.

    The first `fraction` of the distinct sentences, ordered by a hash of seed and text, become dev. Sentences that
    differ only in case and repeated spaces count as equal.
    """
    import numpy as np

    table = rows if isinstance(rows, ExampleTable) else ExampleTable(frame_of(rows))
    codes, texts = table.frame["sentence"].factorize()
    hashes = (hashlib.sha256(f"{seed}\n{normalized(text)}".encode()).digest() for text in texts)
    ranks, places = np.unique(np.fromiter(hashes, "S32", len(texts)), return_inverse=True)
    count = round(fraction * len(ranks))
    if not 0 < count < len(ranks):
        advice = "Add sentences" if len(ranks) < 2 else f"Set dev_fraction={1 / len(ranks):.1g}"
        raise InputError(
            f"dev_fraction: expected a share that leaves sentences for training and for dev, got {fraction} of "
            f"{counted(len(ranks), 'distinct sentence')}. {advice}, or use a data folder with a dev file."
        )
    is_dev = places.reshape(-1)[codes] < count
    return table.where(~is_dev), table.where(is_dev)


def _task_notes(task: Task) -> list[str]:
    if task.metrics != "classification":
        return []
    notes = [f"aspects: {', '.join(task.aspects)}; labels: {', '.join(task.labels)}"]
    return notes + [f"the label {task.labels[0]!r} means that there is no opinion"] * task.has_absent
