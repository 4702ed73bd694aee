"""Data sets: functions that read the splits of a folder or of files, check the rows, and describe the data set."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path

from qacg_models.data.columns import Columns, file_aspects
from qacg_models.data.data_warnings import DataWarning, training_warnings
from qacg_models.data.delimiters import AUTO
from qacg_models.data.encodings import UTF_8
from qacg_models.data.example import DataError, Example, text_digest
from qacg_models.data.example_table import ExampleTable, counts, distinct
from qacg_models.data.formats import SPLITS, Format, find_format
from qacg_models.data.opinions import find_task
from qacg_models.data.options import DataOptions
from qacg_models.data.records import discover, filled, natural_key
from qacg_models.data.row_problems import RowProblems
from qacg_models.data.sentences import normalized
from qacg_models.data.splitting import split_by_column, split_dev, training_records
from qacg_models.data.task import Task
from qacg_models.errors import InputError
from qacg_models.utils.cells import counted

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
        files: the files of each split.
        targets: the targets of the training files or, if no training file was read, of all files, in natural order (2
            before 10); ("",) for a task without targets.
        overlap: for each pair of splits, the number of distinct sentences that both contain, ignoring case and repeated
            spaces.
        sources: the folder or files passed to `load_data`.
        options: the options with which the files were read.
        notes: log lines about how the files were read, such as the format, the skipped rows and the division of the
            training file.
        skipped: the lines of `notes` about skipped rows, one for each file with such rows.
        dev_origin: a note for users: where the dev rows come from, and in which case the dev metric estimates the
            metric on new texts. Empty if the training file was not divided.
        indices: for DataFrames, the frame's index by split name; entry N - 1 of the index belongs to the row whose
            `line` is N. Empty for files.
    """

    task: Task
    splits: dict[str, Sequence[Example]]
    files: dict[str, tuple[Path, ...]]
    targets: tuple[str, ...]
    overlap: dict[tuple[str, str], int]
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
    def warnings(self) -> tuple[DataWarning, ...]:
        """The warnings of `training_warnings` about the splits."""
        return training_warnings(self.splits, self.task, self.indices)


def sample_directory() -> Path:
    """Returns the folder of the sample data set of this package, in SentiHood's format."""
    return Path(__file__).parents[1] / "sample"


def sample_reviews() -> Path:
    """Returns the file of sample reviews of this package, a table with a column for each aspect.

    Example:
        >>> from qacg_models.data import DataOptions, load_data, sample_reviews
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
        InputError: `path` is empty, `options` do not fit the data, openpyxl is not installed, or a temporary file
            cannot be written.
    """
    options = options or DataOptions()
    sources, data_format = _sources(path, options)
    found = _files(sources, data_format)
    divided = "dev" not in found and "train" in found and any(one == "train" or one not in found for one in splits)
    missing = [split for split in splits if split not in found and split not in optional]
    # Division always creates dev. For your own tables, the column `split` can create the other splits too.
    made = [] if not divided else ["dev"] if data_format.records is None else missing
    _refuse_missing([split for split in missing if split not in made], sources[0], data_format)
    files = {split: parts for split, parts in found.items() if split in splits or (divided and split == "train")}
    if not files:
        raise DataError(sources[0], None, f"expected at least one of the splits {', '.join(splits)}, got none")
    if task is None:
        task = data_format.task or _discovered(data_format, next(iter(files.values())), options, divided)
    tables, targets, left_out = _read_tables(data_format, files, task, options, divided)
    _check_marks({split: table for split, table in tables.items() if not (divided and split == "train")}, files)
    rows: dict[str, Sequence[Example]] = {**tables}
    notes, dev_origin = [*_notes(data_format, task, files), *left_out], ""
    if divided:
        divisions, note, dev_origin = _divide(tables["train"], found, options)
        _refuse_missing([split for split in missing if split not in divisions], sources[0], data_format)
        rows, files = rows | divisions, files | dict.fromkeys(divisions, files["train"])
        notes.append(note)
    kept = [split for split in SPLITS if split in splits and split in rows]
    rows = {split: rows[split] for split in kept}
    return Dataset(
        task,
        rows,
        {split: files[split] for split in kept},
        targets,
        count_overlap(rows),
        sources,
        options,
        tuple(notes),
        left_out,
        dev_origin,
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
        InputError: `path` is empty, the format does not support an option, openpyxl is not installed, or a temporary
            file cannot be written.
    """
    options = options or DataOptions()
    sources, data_format = _sources(path, options)
    if data_format.task not in (None, task):
        got = f"the format {data_format.name!r}, which is for the task {data_format.task.name!r}"
        raise DataError(sources[0], None, f"expected data of the task {task.name!r}, got {got}")
    skipped = {file: RowProblems(file) for file in sources} if options.skip_empty else {}
    rows = ExampleTable(_examples(data_format, sources, task, options.columns(), skipped, contexts))
    if notes is not None:
        notes += [*data_format.notes(sources), *skipped_notes(skipped.values())]
    return rows


def skipped_notes(skipped: Iterable[RowProblems]) -> list[str]:
    """Returns a line for each file with skipped rows."""
    return [
        f"left out of {one.path.name}: {counted(one.total, 'row')} ({one.summary()})" for one in skipped if one.total
    ]


def target_names(splits: Iterable[Sequence[Example]], task: Task) -> tuple[str, ...]:
    """Returns the targets in the splits, in natural order (2 before 10); ("",) for a task without targets."""
    found = {target for rows in splits for (target,) in distinct(rows, "target")} if task.has_targets else {""}
    return tuple(sorted(found, key=natural_key))


def check_contexts(rows: Sequence[Example], contexts: Sequence[str], path: Path | str) -> None:
    """Raises DataError, with the row's line number, for the first row whose context is not among `contexts`."""
    known = set(contexts)
    if all(context in known for (context,) in distinct(rows, "context")):
        return
    row = next(row for row in rows if row.context not in known)
    raise _unknown_context(path, row, contexts)


def describe(dataset: Dataset) -> list[str]:
    """Returns lines that describe a data set: notes, a line per split, and, for several splits, shared sentences."""
    lines = [*dataset.notes]
    lines += [describe_examples(split, rows, dataset.task) for split, rows in dataset.splits.items()]
    if len(dataset.splits) > 1:
        lines.append(describe_overlap(dataset.overlap))
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
    found = {
        name: {text_digest(normalized(text)) for (text,) in distinct(rows, "sentence")} for name, rows in splits.items()
    }
    return {(a, b): len(found[a] & found[b]) for a, b in combinations(found, 2)}


def describe_overlap(overlap: Mapping[tuple[str, str], int]) -> str:
    """Returns one line with the number of sentences shared by each pair of splits."""
    shared = [f"{count} in both {a} and {b}" for (a, b), count in overlap.items() if count]
    return "sentences shared between splits: " + (", ".join(shared) or "none")


def file_digest(*paths: Path) -> str:
    """Returns the SHA-256 of the concatenated files, in hexadecimal, to recognise the same data later."""
    digest = hashlib.sha256()  # hashlib.file_digest needs Python 3.11
    for path in paths:
        with path.open("rb") as handle:
            for block in iter(lambda: handle.read(1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()


def file_digests(dataset: Dataset) -> dict[str, str]:
    """Returns the SHA-256 of the files of each split."""
    return {split: file_digest(*files) for split, files in dataset.files.items()}


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
    if formats[0].records is None:
        given = {
            "encoding": options.encoding != UTF_8,
            "quoting": options.quoting != AUTO,
            "wide": options.wide,
            "aspect_columns": options.aspect_columns is not None,
            "target_column": options.target_column is not None,
            "skip_empty": options.skip_empty,
        }
        if formats[0].task is not None:
            given |= {name: getattr(options, name) is not None for name in ("aspects", "labels", "absent_label")}
        for name in (name for name, value in given.items() if value):
            reason = f"{sources[0]} is read as {formats[0].name}, which does not support this option"
            raise InputError(f"{name}: {reason}; omit {name}, or pass --format columns for a table of your own")
    return sources, formats[0]


def _files(sources: tuple[Path, ...], data_format: Format) -> dict[str, tuple[Path, ...]]:
    """Returns the files of each existing split, in the order of SPLITS."""
    if sources[0].is_file():
        return {"train": sources}
    return {split: (file,) for split in SPLITS if (file := data_format.file(sources[0], split)) is not None}


def _read_tables(
    data_format: Format, files: dict[str, tuple[Path, ...]], task: Task, options: DataOptions, divided: bool
) -> tuple[dict[str, ExampleTable], tuple[str, ...], tuple[str, ...]]:
    """Returns the rows of each split, the targets, and a line for each file with skipped rows.

    The targets are those of the training files. If `divided`, rows that the column `split` marks as dev or test are
    left out.
    """
    names = options.columns()
    skipped = {file: RowProblems(file) for parts in files.values() for file in parts} if options.skip_empty else {}
    tables = {
        split: ExampleTable(_examples(data_format, parts, task, names, skipped)) for split, parts in files.items()
    }
    targets = target_names(_training_tables(tables, divided), task)
    for split, parts in files.items():
        check_contexts(tables[split], task.contexts(targets), ", ".join(map(str, parts)))
    return tables, targets, tuple(skipped_notes(skipped.values()))


def _training_tables(tables: dict[str, ExampleTable], divided: bool) -> list[ExampleTable]:
    """Returns the tables that define the targets (`_read_tables`); all tables if none has training rows."""
    if "train" not in tables:
        return [*tables.values()]
    rows = tables["train"]
    marked = rows.where(lambda marks: [mark not in ("dev", "test") for mark in marks], "split") if divided else rows
    return [marked if marked else rows]  # without training rows, `split_by_column` raises an error


def _examples(
    data_format: Format,
    files: tuple[Path, ...],
    task: Task,
    names: Columns,
    skipped: Mapping[Path, RowProblems],
    contexts: Sequence[str] | None = None,
) -> Iterator[Example]:
    """Yields the rows of files; with several files, each id begins with the number of its file.

    Args:
        skipped: counts skipped rows by file; empty: rows with an empty cell are an error.
        contexts: the contexts that rows may have; None: any.
    """
    known = None if contexts is None else set(contexts)
    for number, file in enumerate(files, 1):
        for row in data_format.examples(file, task, names, skipped.get(file)):
            if known is not None and row.context not in known:
                raise _unknown_context(file, row, contexts)
            yield row if len(files) == 1 else replace(row, id=f"{number}/{row.id}")


def _unknown_context(path: Path | str, row: Example, contexts: Sequence[str]) -> DataError:
    reason = f"context: expected one of the training contexts ({', '.join(contexts)}), got {row.context!r}"
    return DataError(path, row.line, f"{reason}; remove the row, or train on data with this context")


def _refuse_missing(splits: Sequence[str], path: Path, data_format: Format) -> None:
    for split in splits:
        if path.is_file():
            reason = f"expected a folder with a file for {split}, got a file, which provides train and dev only"
            advice = f"pass a folder, or mark rows of your own table as {split} in a column 'split'"
            raise DataError(path, None, f"{reason}; {advice}")
        raise DataError(path, None, f"has no {' or '.join(data_format.names(split))}")


def _check_marks(tables: Mapping[str, ExampleTable], files: Mapping[str, Sequence[Path]]) -> None:
    """Raises DataError if the column `split` contradicts the split of its file."""
    for split, rows in tables.items():
        if others := sorted(counts(rows, "split").keys() & set(SPLITS) - {split}):
            reason = f"expected rows of the split {split}, got rows marked as {others[0]} in the column 'split'"
            raise DataError(files[split][0], None, f"{reason}; correct the column, or remove it")


def _divide(
    rows: ExampleTable, files: dict[str, tuple[Path, ...]], options: DataOptions
) -> tuple[dict[str, Sequence[Example]], str, str]:
    """Divides the rows of the training files into splits.

    Returns:
        The splits by name, a log line about the division, and the origin of the dev rows (RESERVED or CUT).
    """
    reserved, left_out = split_by_column(rows, files["train"])
    parts: dict[str, Sequence[Example]] = {**reserved}
    if "test" in parts and "test" in files:
        reason = f"expected one source of test rows, got the column 'split' and the file {files['test'][0].name}"
        raise DataError(files["train"][0], None, f"{reason}; keep one of them")
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


def _discovered(data_format: Format, files: tuple[Path, ...], options: DataOptions, divided: bool) -> Task:
    """Returns the task of files; if `divided`, rows that the column `split` marks as dev or test are left out."""
    given = {"aspects": options.aspects, "labels": options.labels, "absent_label": options.absent_label}
    if data_format.texts is not None:
        return find_task(data_format.texts, files, **given)
    assert data_format.records is not None, "the labels and aspects of this format are fixed, and not read from files"
    names = options.columns()
    if names.wide and names.aspect_columns is None:
        _check_same_aspects(files, names)
    skip = [RowProblems(file) if options.skip_empty else None for file in files]
    found = chain.from_iterable(
        filled(data_format.records(file, names), file, names, skipped) for file, skipped in zip(files, skip)
    )
    return discover(
        training_records(found, files[0], names) if divided else found,
        files[0],
        names,
        **given,
    )


def _check_same_aspects(files: tuple[Path, ...], names: Columns) -> None:
    """Raises DataError if the aspect columns of a file differ from the aspect columns of the first file."""
    first: list[str] | None = None
    for file in files:
        aspects = file_aspects(file, names)
        first = aspects if first is None else first
        if set(aspects) != set(first):
            reason = f"aspect columns: expected {', '.join(first)} as in {files[0]}, got {', '.join(aspects)}"
            raise DataError(file, None, f"{reason}; name the aspect columns with --aspect-columns")


def _notes(data_format: Format, task: Task, files: dict[str, tuple[Path, ...]]) -> list[str]:
    notes = [f"read as {data_format.name}: {', '.join(file.name for parts in files.values() for file in parts)}"]
    if task.metrics == "classification":
        notes.append(f"aspects: {', '.join(task.aspects)}; labels: {', '.join(task.labels)}")
        if task.has_absent:
            notes.append(f"the label {task.labels[0]!r} means that there is no opinion")
    notes += data_format.notes([file for parts in files.values() for file in parts])
    if task.metrics == "semeval":
        notes.append("'conflict' is a separate label, which 3- and 2-class accuracy leave out")
    return notes
