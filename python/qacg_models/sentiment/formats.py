"""The data formats, and detection of the format of a folder or file.

All functions raise DataError for files that are missing, ambiguous, unreadable or in no known format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qacg_models.errors import InputError
from qacg_models.sentiment import published, tables
from qacg_models.sentiment.columns import (
    NOT_WIDE,
    Columns,
    discover,
    named_rows,
)
from qacg_models.sentiment.example import (
    SEMEVAL,
    SENTIHOOD,
    DataError,
    ExampleTable,
    Source,
    Task,
    labelled_examples,
)
from qacg_models.sentiment.published import (
    AnnotatedText,
    Row,
    left_out_note,
    opinion_pairs,
    rows_of_texts,
)
from qacg_models.sentiment.text_files import check_uncompressed

if TYPE_CHECKING:
    from pandas import DataFrame

SPLITS = ("train", "dev", "test")
_SUFFIXES = (".csv", ".tsv", ".xlsx", ".parquet", ".json", ".jsonl")  # of tables of your own


@dataclass(frozen=True)
class Format:
    """A data format: its file names and its reader.

    A format has `task` and `rows`, or `texts`, or `table`.

    Attributes:
        name: value of `--format`.
        names: function that returns the possible file names of a split.
        task: labels and aspects that the format fixes; None if they are read from the training files.
        rows: function that yields the rows of a published file for a task; None for other formats.
        texts: function that yields the texts of a published file with their opinions; None for other formats.
        table: function that returns a table of your own, as `tables.read_table` does; None for published formats.
        suffixes: suffixes that identify the format of a single file whose name is not in the `names` of any format.
        recognises: function that returns whether the content of a file has this format; called for files whose name or
            suffix fits.
        note: a line to print when the format is read, such as the opinions that are left out.
    """

    name: str
    names: Callable[[str], tuple[str, ...]]
    task: Task | None = None
    rows: Callable[[Path, Task], Iterator[Row]] | None = None
    texts: Callable[[Path], Iterator[AnnotatedText]] | None = None
    table: Callable[[Path, Columns], DataFrame] | None = None
    suffixes: tuple[str, ...] = ()
    recognises: Callable[[Path], bool] = lambda path: True
    note: str = ""

    def file(self, folder: Path, split: str) -> Path | None:
        """Returns the file of a split; None if the folder has none."""
        found = [folder / name for name in self.names(split) if (folder / name).is_file()]
        if self.table is not None:  # a published format can use the same name (train.tsv)
            found = [path for path in found if self.recognises(path)]
        if len(found) > 1:
            raise DataError(
                folder,
                None,
                f"expected one file for {split}, got {found[0].name} and {found[1].name}; keep one of them",
            )
        return found[0] if found else None

    def read(self, path: Path, columns: Columns) -> Any:
        """Returns the content of a file: its table, or a list of its rows or texts.

        Args:
            path: the file.
            columns: columns of a table of your own; not used for published formats.
        """
        if self.table is not None:
            return self.table(path, columns)
        return list(self.texts(path) if self.texts is not None else self.rows(path, self.task))

    def published_task(self, contents: Mapping[Path, Any], given: Mapping[str, Any]) -> Task:
        """Returns the task of the contents of published files.

        Args:
            contents: the content of each file, from `read`.
            given: the user's `aspects`, `labels` and `absent_label`; None where the user named none.
        """
        if self.task is not None:
            return self.task
        from pandas import DataFrame

        path = next(iter(contents))
        pairs = opinion_pairs(contents, given["aspects"] is not None)
        if pairs is not None:
            return discover(DataFrame(list(pairs), columns=["aspect", "label"]), Source(path), Columns(), **given)
        for name, value in given.items():
            if value is not None:
                reason = f"{path} has the fixed aspects and labels of SemEval-2014 restaurants"
                raise InputError(f"{name}: expected none, because {reason}; omit {name}")
        return SEMEVAL

    def examples(self, content: Any, source: Source, task: Task, columns: Columns, prefix: str = "") -> ExampleTable:
        """Returns the checked examples of a file.

        Args:
            content: rows of a table (`columns.rows_of_table`), or what `read` returned for a published file.
            source: the file.
            task: labels and aspects.
            columns: columns of a table of your own.
            prefix: beginning of each id.
        """
        import pandas as pd

        if self.table is not None:
            advice = f"; {NOT_WIDE}" if columns.wide else ""
            return labelled_examples(named_rows(content, columns, prefix), source, task, advice)
        rows = content if self.texts is None else list(rows_of_texts(content, source.path, task))
        found = pd.DataFrame(rows, columns=Row._fields)
        return labelled_examples(found.assign(id=prefix + found["id"]), source, task)

    def notes(self, contents: Mapping[Path, Any]) -> list[str]:
        """Returns lines to print about files that were read: `note`, and the texts that are left out of each file."""
        left_out = [] if self.texts is None else [left_out_note(texts, path) for path, texts in contents.items()]
        return [line for line in (self.note, *left_out) if line]


def _xml_names(split: str) -> tuple[str, ...]:
    published = {"train": "Restaurants_Train.xml", "dev": "val.xml", "test": "Restaurants_Test_Gold.xml"}
    return f"{split}.xml", published[split]


def _own_table(path: Path, columns: Columns) -> DataFrame:
    # Excel saves "Unicode text", a table with tabs, as .txt.
    return tables.read_table(path, columns, "csv" if path.suffix.lower() == ".txt" else None)


OWN_TABLES = Format(
    "columns",
    lambda split: tuple(split + suffix for suffix in _SUFFIXES),
    table=_own_table,
    suffixes=_SUFFIXES,
    recognises=lambda path: (
        path.suffix.lower() != ".tsv" or not (published.is_sentihood(path) or published.is_germeval(path))
    ),
)
# A folder can contain one data set in two published formats, which give the same rows. The format listed first is read.
FORMATS = (
    Format(
        "sentihood-tsv",
        lambda split: (f"{split}.tsv", f"{split}_NLI_M.tsv"),
        SENTIHOOD,
        published.sentihood_pairs,
        suffixes=(".tsv",),
        recognises=published.is_sentihood,
    ),
    Format(
        "sentihood-json",
        lambda split: (f"sentihood-{split}.json",),
        SENTIHOOD,
        published.sentihood_json,
        note=f"opinions on other aspects are left out: {', '.join(published.OTHER_ASPECTS)}",
    ),
    Format("semeval-csv", lambda split: (f"{split}_NLI_M.csv",), SEMEVAL, published.semeval_pairs),
    Format("semeval-xml", _xml_names, texts=published.xml_texts, suffixes=(".xml", ".gold")),
    Format(
        "germeval-tsv",
        lambda split: (f"{split}.tsv",),
        texts=published.germeval_texts,
        suffixes=(".tsv",),
        recognises=published.is_germeval,
    ),
    OWN_TABLES,
)
NAMES = tuple(one.name for one in FORMATS)
_UNREADABLE = (".xls", ".ods", ".numbers")


def find_format(path: Path, name: str = "auto") -> Format:
    """Returns the format of a folder or of a single file; detects it if `name` is "auto".

    Args:
        path: the folder or file.
        name: one of NAMES; or "auto" for detection by file names and suffixes and, for .tsv, by the header.
    """
    if name not in ("auto", *NAMES):
        raise ValueError(f"name: expected auto, {', '.join(NAMES[:-1])} or {NAMES[-1]}, got {name!r}")
    if not path.exists():
        raise DataError(path, None, "no such folder or file")
    if path.is_file():
        check_uncompressed(path)
    if name != "auto":
        return next(one for one in FORMATS if one.name == name)
    if path.is_file():
        return _format_of_file(path)
    found = [(one, file) for one in FORMATS if (file := _first_file(one, path)) is not None]
    if not found:
        names = {name for one in FORMATS for split in SPLITS for name in one.names(split)}
        for file in sorted(path.iterdir()):
            if file.stem in names:  # train.csv.gz, for example
                check_uncompressed(file)
        known = "; ".join(f"{' or '.join(one.names('train'))} ({one.name})" for one in FORMATS)
        reason = "expected data in a known format, got a folder without files in such a format"
        raise DataError(path, None, f"{reason}; rename the training file to one of: {known}")
    if len(found) > 1 and len({_fixed_task(one, file) or one.name for one, file in found}) > 1:
        names = " and ".join(one.name for one, _ in found)
        raise DataError(path, None, f"has data in the formats {names}; select one with --format")
    return found[0][0]


def _fixed_task(one: Format, file: Path) -> Task | None:
    """Returns the task of a published file; None for your own tables, whose options select the task."""
    if one.texts is None:
        return one.task
    return one.published_task({file: one.read(file, Columns())}, dict.fromkeys(("aspects", "labels", "absent_label")))


def _first_file(data_format: Format, folder: Path) -> Path | None:
    """Returns the first file of a folder that has a format; None if there is none."""
    files = (data_format.file(folder, split) for split in SPLITS)
    return next((file for file in files if file is not None and data_format.recognises(file)), None)


def _format_of_file(path: Path) -> Format:
    if path.suffix.lower() in _UNREADABLE:
        expected = "expected .xlsx, .csv or another supported format"
        raise DataError(path, None, f"{expected}, got {path.suffix}. Save it as .xlsx or .csv.")
    named = (one for one in FORMATS if any(path.name in one.names(split) for split in SPLITS) and one.recognises(path))
    suffixed = (one for one in FORMATS if path.suffix.lower() in one.suffixes and one.recognises(path))
    one = next(named, None) or next(suffixed, None)
    if one is None:
        known = ",".join(NAMES)
        reason = f"expected a name or suffix of a known format, got {path.name}"
        raise DataError(path, None, f"{reason}; select one with --format {{{known}}}")
    return one
