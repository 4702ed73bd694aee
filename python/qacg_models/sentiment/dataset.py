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
    Columns,
    column,
    column_names,
    discover,
    index_of,
    natural_key,
    no_training_rows,
    rows_of_table,
    text_table,
    training_rows,
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
from qacg_models.sentiment.formats import (
    OWN_TABLES,
    SPLITS,
    Format,
    find_format,
)
from qacg_models.sentiment.options import DataOptions
from qacg_models.utils.text import counted, lone_surrogate, normalized

if TYPE_CHECKING:
    from pandas import DataFrame

Sources = Path | str | Sequence[Path | str]

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
    """The splits of a folder, file or list of files.

    Attributes:
        task: labels and aspects.
        splits: rows by split name, in the order of SPLITS; the rows of a split are in file order.
        files: the files of each split; empty for DataFrames.
        targets: the targets of the training files or, if no training file was read, of all files, in natural order (2
            before 10); ("",) for a task without targets.
        sources: the folder or files passed to `load_data`.
        options: the options with which the files were read.
        notes: log lines about how the files were read.
        skipped: the lines of `notes` about skipped rows, one for each file with such rows.
        dev_origin: where the dev rows come from, and in which case the dev metric estimates the metric on new texts;
            empty if the training file was not divided.
        indices: for DataFrames, the frame's index by split name; entry N - 1 of the index belongs to the row whose
            `line` is N. Empty for files.
    """

    task: Task
    splits: dict[str, Sequence[Example]]
    files: dict[str, tuple[Path, ...]]
    targets: tuple[str, ...]
    sources: tuple[Path, ...]
    options: DataOptions
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    dev_origin: str = ""
    indices: Mapping[str, Sequence[object]] = field(default_factory=dict)

    @property
    def contexts(self) -> tuple[str, ...]:
        """Context names, one for each target with each aspect; the position is the context id."""
        return self.task.contexts(self.targets)

    @cached_property
    def overlap(self) -> dict[tuple[str, str], int]:
        """For each pair of splits, the number of distinct sentences in both, ignoring case and repeated spaces."""
        return count_overlap(self.splits)

    @cached_property
    def warnings(self) -> tuple[DataWarning, ...]:
        """The warnings of `training_warnings` about the splits."""
        return training_warnings(self.splits, self.task, self.indices)


def sample_directory() -> Path:
    """Returns the folder of the sample data set of this package, in SentiHood's format."""
    return Path(__file__).parents[1] / "sample"


def sample_reviews() -> Path:
    """Returns the file of sample reviews of this package, a table with a column for each aspect.

    Example:
        >>> from qacg_models.sentiment.dataset import load_data, sample_reviews
        >>> from qacg_models.sentiment.options import DataOptions
        >>> load_data(sample_reviews(), options=DataOptions(wide=True)).task.labels
        ('none', 'negative', 'positive')
    """
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

    Without a dev file, the training file is divided by the column `split` (`split_by_column`). If this column does not
    exist or marks no dev rows, dev is a share of the training sentences (`split_dev`).

    Args:
        path: a folder, a file, or several files in one format. Ids are local to a file: the same id in two files
            means two sentences.
        splits: the splits to read.
        options: how to read the files; None: the defaults.
        optional: the members of `splits` that may be absent.
        task: expected labels and aspects. None: the fixed task of a published format or, for other data, the labels
            and aspects in `options`. Those that `options` does not name are read from the training rows (from the
            first split, if train is not read).

    Returns:
        The data set.

    Raises:
        DataError: a file is missing or unusable; its rows have a label, an aspect or a context that the task or the
            training split lacks; or two files, or a file and its column `split`, contradict each other. The message
            names the file and, if known, the line.
        InputError: `path` is empty, `options` do not fit the data, or openpyxl is not installed.
    """
    options = options or DataOptions()
    sources, data_format = _sources(path, options)
    found = _files(sources, data_format)
    divided = "dev" not in found and "train" in found and any(one == "train" or one not in found for one in splits)
    missing = [split for split in splits if split not in found and split not in optional]
    # Division always creates dev. For your own tables, the column `split` can create the other splits too.
    made = [] if not divided else ["dev"] if data_format.table is None else missing
    _refuse_missing([split for split in missing if split not in made], sources[0], data_format)
    files = {split: parts for split, parts in found.items() if split in splits or (divided and split == "train")}
    if not files:
        raise DataError(sources[0], None, f"expected at least one of the splits {', '.join(splits)}, got none")
    contents, left_out = {}, []
    for split, parts in files.items():
        contents[split], skipped = _contents(data_format, parts, options)
        left_out += skipped
    dataset = _dataset(data_format, contents, options, task, divided, test_file=found.get("test"))
    _refuse_missing([split for split in missing if split not in dataset.splits], sources[0], data_format)
    kept = [split for split in SPLITS if split in splits and split in dataset.splits]
    texts = {source.path: content for parts in contents.values() for source, content in parts}
    names = ", ".join(file.name for parts in files.values() for file in parts)
    notes = [f"read as {data_format.name}: {names}", *_task_notes(dataset.task), *data_format.notes(texts)]
    if dataset.task.metrics == "semeval":
        notes.append("'conflict' is a separate label, which 3- and 2-class accuracy leave out")
    return replace(
        dataset,
        splits={split: dataset.splits[split] for split in kept},
        files={split: files.get(split, files.get("train")) for split in kept},
        sources=sources,
        notes=(*notes, *left_out, *dataset.notes),
        skipped=tuple(left_out),
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

    Args:
        path: the file or files.
        task: labels and aspects of the rows.
        options: how to read the files; None: the defaults.
        contexts: the contexts that rows may have; None: any.
        notes: list to which a line for each file with skipped rows is appended; None: skipped rows are not
            reported.

    Returns:
        The rows.

    Raises:
        DataError: a file is missing or unusable, or its rows do not fit `task` or `contexts`; the message names the
            file and, if known, the line.
        InputError: `path` is empty, the format does not support an option, or openpyxl is not installed.
    """
    options = options or DataOptions()
    sources, data_format = _sources(path, options)
    if data_format.task not in (None, task):
        got = f"the format {data_format.name!r}, which is for the task {data_format.task.name!r}"
        raise DataError(sources[0], None, f"expected data of the task {task.name!r}, got {got}")
    contents, left_out = _contents(data_format, sources, options)
    if notes is not None:
        notes += [*data_format.notes({source.path: content for source, content in contents}), *left_out]
    return _examples(data_format, contents, task, options.columns(), contexts)


def load_frames(frames: Mapping[str, Any], options: DataOptions, on_empty: str, say: Callable[[str], None]) -> Dataset:
    """Returns the data set of DataFrames; its errors name index labels.

    Args:
        frames: DataFrames, or mappings of columns, by split. Without dev rows, a part of train becomes dev.
        options: options for reading the data, with the names of the columns.
        on_empty: for rows with an empty cell: "raise" InputError, or "skip" the rows. In a wide frame, an empty label
            skips only its aspect, not the row.
        say: called with a line for each split of which rows are skipped.

    Raises:
        TypeError: a frame is neither a DataFrame nor a mapping, or a cell is no text, number or boolean.
        InputError: a column is missing, `on_empty` has another value, a cell is empty and `on_empty` is "raise", no row
            is left, or the data cannot be used.
    """
    contents = {split: [_frame_rows(frame, options, on_empty, split, say)] for split, frame in frames.items()}
    dataset = _dataset(OWN_TABLES, contents, options, None, "dev" not in frames)
    indices = {split: contents.get(split, contents["train"])[0][0].index for split in dataset.splits}
    notes = (*_task_notes(dataset.task), *dataset.notes)
    return replace(dataset, notes=notes, indices=indices)


def load_frame(
    frame: Any, task: Task, options: DataOptions, on_empty: str, *, contexts: Sequence[str] | None = None
) -> ExampleTable:
    """Returns the rows of a DataFrame, or a mapping of columns, for a known task.

    Args:
        frame: the DataFrame, or a mapping of column names to sequences.
        task: labels and aspects of the rows.
        options, on_empty: as for `load_frames`.
        contexts: the contexts that rows may have; None: any.

    Raises:
        TypeError, InputError: as for `load_frames`; or the rows do not fit `task` or `contexts`.
    """
    content = _frame_rows(frame, options, on_empty, "frame", lambda line: None)
    return _examples(OWN_TABLES, [content], task, options.columns(), contexts)


def _frame_rows(
    frame: Any, options: DataOptions, on_empty: str, split: str, say: Callable[[str], None]
) -> tuple[Source, DataFrame]:
    """Returns the source and the rows of a user's frame, without empty cells (`load_frames`)."""
    columns = options.columns()
    arguments = {"text": columns.text, "id_column": columns.id, "target_column": columns.target}
    if not columns.wide:
        arguments |= {"aspect": columns.aspect, "label": columns.label}
    cells = {name: column(frame, name, argument) for argument, name in arguments.items() if name is not None}
    names = {str(name): name for name in column_names(frame)} if columns.wide else {}
    cells |= {name: column(frame, names.get(name, name), "aspect_columns") for name in wide_aspects(names, columns)}
    if columns.split in column_names(frame):
        cells[columns.split] = column(frame, columns.split, "frame")
    lengths = {name: len(values) for name, values in cells.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{length} in {name!r}" for name, length in lengths.items())
        raise InputError(f"frame: expected columns of equal length, got {shown}.")
    if on_empty not in ON_EMPTY:
        raise InputError(f"on_empty: expected one of {', '.join(ON_EMPTY)}, got {on_empty!r}.")
    count = lengths[columns.text]
    source = Source("frame", index_of(frame, count))
    for name, values in cells.items():
        for line, half in enumerate(map(lone_surrogate, values), 1):
            if half is not None:
                reason = f"expected text that UTF-8 can encode, got {half}, half of a character; remove it"
                raise source.error(line, f"{name!r}: {reason}")
    rows = rows_of_table(text_table(cells, range(1, count + 1)), columns)
    skipped = RowProblems(source) if on_empty == "skip" else None
    rows = without_empty_cells(rows, source, columns, skipped)
    if skipped is not None and skipped.total:
        say(f"left out of {split}: {counted(skipped.total, 'row')} ({skipped.summary()})")
    return source, rows


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


def count_overlap(splits: Mapping[str, Sequence[Example]]) -> dict[tuple[str, str], int]:
    """Returns, for each pair of splits, the number of distinct sentences in both, ignoring case and repeated spaces."""
    found = {name: {normalized(text) for (text,) in distinct(rows, "sentence")} for name, rows in splits.items()}
    return {(a, b): len(found[a] & found[b]) for a, b in combinations(found, 2)}


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


def _files(sources: tuple[Path, ...], data_format: Format) -> dict[str, tuple[Path, ...]]:
    """Returns the files of each existing split, in the order of SPLITS."""
    if sources[0].is_file():
        return {"train": sources}
    return {split: (file,) for split in SPLITS if (file := data_format.file(sources[0], split)) is not None}


def _contents(
    data_format: Format, files: Sequence[Path], options: DataOptions
) -> tuple[list[tuple[Source, Any]], list[str]]:
    """Reads files once.

    Returns:
        The source and the content of each file: rows without empty cells for a table of your own, else what
        `Format.read` returns. And a line for each file with skipped rows.
    """
    columns = options.columns()
    contents = [(Source(file), data_format.read(file, columns)) for file in files]
    if data_format.table is None:
        return contents, []
    rows, left_out = [], []
    for source, table in contents:
        skipped = RowProblems(source) if options.skip_empty else None
        rows.append((source, without_empty_cells(rows_of_table(table, columns), source, columns, skipped)))
        if skipped is not None and skipped.total:
            counts_by_reason = f"{counted(skipped.total, 'row')} ({skipped.summary()})"
            left_out.append(f"left out of {source.path.name}: {counts_by_reason}")
    return rows, left_out


def _dataset(
    data_format: Format,
    contents: Mapping[str, Sequence[tuple[Source, Any]]],
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
        source, rows = first[0][0], pd.concat([content for _, content in first])
        task = discover(training_rows(rows, source, columns) if divided else rows, source, columns, **given)
    tables = {split: _examples(data_format, parts, task, columns) for split, parts in contents.items()}
    train = tables.get("train")
    if train is not None and divided:
        marked = train.where(~train.frame["split"].isin(["dev", "test"]))
        train = marked if marked else train  # without training rows, `split_by_column` raises an error
    targets = target_names(tables.values() if train is None else [train], task)
    for split, parts in contents.items():
        check_contexts(tables[split], task.contexts(targets), _joined(parts))
        if not (divided and split == "train"):
            _check_marks(split, tables[split], parts[0][0])
    splits: dict[str, Sequence[Example]] = {**tables}
    notes, origin = [], ""
    if divided:
        divisions, note, origin = _divide(tables["train"], _joined(contents["train"]), test_file, options)
        splits, notes = splits | divisions, [note]
    splits = {split: splits[split] for split in SPLITS if split in splits}
    return Dataset(task, splits, {}, targets, (), options, tuple(notes), (), origin)


def _joined(parts: Sequence[tuple[Source, Any]]) -> Source:
    """Returns the source of the rows of several files, for errors."""
    if len(parts) == 1:
        return parts[0][0]
    return Source(", ".join(str(source.path) for source, _ in parts))


def _examples(
    data_format: Format,
    contents: Sequence[tuple[Source, Any]],
    task: Task,
    columns: Columns,
    contexts: Sequence[str] | None = None,
) -> ExampleTable:
    """Returns the examples of files; with several files, each id begins with the number of its file.

    Args:
        contexts: the contexts that rows may have; None: any.
    """
    import pandas as pd

    tables = []
    for number, (source, content) in enumerate(contents, 1):
        prefix = f"{number}/" if len(contents) > 1 else ""
        tables.append(data_format.examples(content, source, task, columns, prefix))
        if contexts is not None:
            check_contexts(tables[-1], contexts, source)
    return tables[0] if len(tables) == 1 else ExampleTable(pd.concat([one.frame for one in tables], ignore_index=True))


def _refuse_missing(splits: Sequence[str], path: Path, data_format: Format) -> None:
    for split in splits:
        if path.is_file():
            reason = f"expected a folder with a file for {split}, got a file, which provides train and dev only"
            advice = f"pass a folder, or mark rows of your own table as {split} in a column 'split'"
            raise DataError(path, None, f"{reason}; {advice}")
        raise DataError(path, None, f"has no {' or '.join(data_format.names(split))}")


def _check_marks(split: str, rows: ExampleTable, source: Source) -> None:
    """Raises InputError if the column `split` contradicts the split of its file."""
    if others := sorted(counts(rows, "split").keys() & set(SPLITS) - {split}):
        reason = f"expected rows of the split {split}, got rows marked as {others[0]} in the column 'split'"
        raise source.error(None, f"{reason}; correct the column, or remove it")


def _divide(
    rows: ExampleTable, source: Source, test_file: Sequence[Path] | None, options: DataOptions
) -> tuple[dict[str, Sequence[Example]], str, str]:
    """Divides the rows of the training files into splits.

    Returns:
        The splits by name, a log line about the division, and the origin of the dev rows (RESERVED or CUT).
    """
    parts, left_out = split_by_column(rows, source)
    if "test" in parts and test_file is not None:
        reason = f"expected one source of test rows, got the column 'split' and the file {test_file[0].name}"
        raise source.error(None, f"{reason}; keep one of them")
    if "dev" in parts:
        if (options.dev_fraction, options.dev_seed) != (DataOptions.dev_fraction, DataOptions.dev_seed):
            reason = "omit both, because the column 'split' marks the dev rows"
            raise InputError(
                f"dev_fraction, dev_seed: expected the defaults, got {options.dev_fraction}, {options.dev_seed};"
                f" {reason}"
            )
        sizes = ", ".join(f"{len(part)} {name}" for name, part in parts.items())
        note = f"the column 'split' divides the rows: {sizes}"
        if left_out:
            note += f"; {left_out} training rows left out, because their text is also in dev or test"
        return parts, note, RESERVED
    parts["train"], parts["dev"] = split_dev(parts.get("train", rows), options.dev_fraction, options.dev_seed)
    note = (
        f"no dev file: {options.dev_fraction:.0%} of the training sentences are used as dev (split by sentence,"
        f" seed {options.dev_seed})"
    )
    return parts, note, CUT


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
    import numpy as np

    table = rows if isinstance(rows, ExampleTable) else ExampleTable(frame_of(rows))
    codes, texts = table.frame["sentence"].factorize()
    hashes = (hashlib.sha256(f"{seed}\n{normalized(text)}".encode()).digest() for text in texts)
    ranks, places = np.unique(np.fromiter(hashes, "S32", len(texts)), return_inverse=True)
    count = round(fraction * len(ranks))
    if not 0 < count < len(ranks):
        raise InputError(
            f"dev_fraction: expected a share that leaves sentences for training and for dev, got {fraction} of "
            f"{len(ranks)} distinct sentences. Set another share, or use a data folder with a dev file."
        )
    is_dev = places.reshape(-1)[codes] < count
    return table.where(~is_dev), table.where(is_dev)


def split_by_column(rows: ExampleTable, source: Source) -> tuple[dict[str, ExampleTable], int]:
    """Splits rows by their column `split`.

    Rows with an empty cell in this column are training rows. Training rows whose text is also in dev or test are left
    out.

    Args:
        rows: the rows of the training files.
        source: where they are from, for errors.

    Returns:
        The non-empty splits by name (an empty dictionary if no row is marked as dev or test), and the number of rows
        left out.

    Raises:
        InputError: the column has an unknown value, or no training row is left.
    """
    marks = rows.frame["split"].replace("", "train")
    unknown = ~marks.isin(SPLITS)
    if unknown.any():
        row = rows.frame.iloc[int(unknown.to_numpy().argmax())]
        reason = f"split: expected train, dev or test, got {row['split']!r}"
        raise source.error(int(row["line"]), f"{reason}; rename the column 'split' if it has another meaning")
    if marks.eq("train").all():
        return {}, 0
    splits = {name: rows.where(marks == name) for name in SPLITS}
    held_out = {normalized(text) for name in ("dev", "test") for (text,) in distinct(splits[name], "sentence")}
    marked = splits["train"]
    splits["train"] = marked.where(~marked.frame["sentence"].map(normalized).isin(held_out))
    if not splits["train"]:
        raise no_training_rows(source)
    return {name: part for name, part in splits.items() if part}, len(marked) - len(splits["train"])


def _task_notes(task: Task) -> list[str]:
    if task.metrics != "classification":
        return []
    notes = [f"aspects: {', '.join(task.aspects)}; labels: {', '.join(task.labels)}"]
    return notes + [f"the label {task.labels[0]!r} means that there is no opinion"] * task.has_absent
