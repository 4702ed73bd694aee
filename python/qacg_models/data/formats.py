"""The data formats, and detection of the format of a folder or file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data import columns, germeval_tsv, semeval_csv, semeval_xml, sentihood_json, sentihood_tsv
from qacg_models.data.columns import Columns, Record
from qacg_models.data.example import DataError, Example, checked
from qacg_models.data.lines import check_uncompressed
from qacg_models.data.opinions import AnnotatedText, examples_of_texts, find_task, left_out_note
from qacg_models.data.records import examples_of, filled
from qacg_models.data.row_problems import RowProblems
from qacg_models.data.task import SEMEVAL, SENTIHOOD, Task

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Format:
    """A data format: its file names and its reader.

    A format has `task` and `published`, or `texts`, or `records`.

    Attributes:
        name: value of `--format`.
        names: function that returns the possible file names of a split.
        task: labels and aspects that the format fixes; None if they are read from the training files.
        published: function that yields the rows of a file for a task; None for other formats.
        texts: function that yields the texts of a published file with their opinions, which `opinions.py` converts to
            rows; None for other formats.
        records: function that yields the records of a table of your own, which `records.py` converts to rows; None for
            published formats.
        suffixes: suffixes that identify the format of a single file whose name is not in the `names` of any format.
        recognises: function that returns whether the content of a file has this format; called for files whose name or
            suffix fits.
        note: a line to print when the format is read, such as the opinions that are left out.

    Raises:
        ValueError: another combination of `task`, `published`, `texts` and `records` is given.
    """

    name: str
    names: Callable[[str], tuple[str, ...]]
    task: Task | None = None
    published: Callable[[Path, Task], Iterator[Example]] | None = None
    texts: Callable[[Path], Iterator[AnnotatedText]] | None = None
    records: Callable[[Path, Columns], Iterator[Record]] | None = None
    suffixes: tuple[str, ...] = ()
    recognises: Callable[[Path], bool] = lambda path: True
    note: str = ""

    def __post_init__(self):
        readers = [one for one in (self.published, self.texts, self.records) if one is not None]
        if len(readers) != 1 or (self.published is None) != (self.task is None):
            expected = "expected task and published, or texts, or records"
            raise ValueError(f"{self.name}: {expected}, got another combination")

    def file(self, folder: Path, split: str) -> Path | None:
        """Returns the file of a split; None if the folder has none.

        Raises:
            DataError: the folder has several files for the split.
        """
        found = [folder / name for name in self.names(split) if (folder / name).is_file()]
        if self.records is not None:  # a published format can use the same name (train.tsv)
            found = [path for path in found if self.recognises(path)]
        if len(found) > 1:
            raise DataError(
                folder,
                None,
                f"expected one file for {split}, got {found[0].name} and {found[1].name}; keep one of them",
            )
        return found[0] if found else None

    def examples(self, path: Path, task: Task, names: Columns, skipped: RowProblems | None = None) -> Iterator[Example]:
        """Yields the checked rows of a file.

        Args:
            path: the file.
            task: labels and aspects.
            names: columns of a table of your own; not used for published formats.
            skipped: counter of the rows of your own tables that are skipped because they have an empty cell; None:
                such rows raise DataError. Not used for published formats, where they always raise DataError.

        Raises:
            DataError: the file cannot be read, a line or group violates the format, or a row has an empty cell and is
                not skipped.
            InputError: the file is an Excel workbook, and openpyxl is not installed.
        """
        if self.records is not None:
            whole = filled(self.records(path, names), path, names, skipped)
            found = examples_of(whole, path, task, names)
        elif self.texts is not None:
            found = examples_of_texts(self.texts(path), path, task)
        else:
            assert self.published is not None, "checked in __post_init__"
            found = self.published(path, task)
        return checked(found, path, task)

    def fixed_task(self, file: Path) -> Task | None:
        """Returns the task of a published file; None for your own tables, whose options select the task.

        Raises:
            DataError: the file violates its format.
        """
        if self.texts is None:
            return self.task
        return find_task(self.texts, (file,), aspects=None, labels=None, absent_label=None)

    def notes(self, files: Sequence[Path]) -> list[str]:
        """Returns lines to print about files that were read: `note`, and the texts that are left out of each file.

        Raises:
            DataError: a file violates its format.
        """
        left_out = [] if self.texts is None else [left_out_note(self.texts(file), file) for file in files]
        return [line for line in (self.note, *left_out) if line]


def _xml_names(split: str) -> tuple[str, ...]:
    published = {"train": "Restaurants_Train.xml", "dev": "val.xml", "test": "Restaurants_Test_Gold.xml"}
    return f"{split}.xml", published[split]


# A folder can contain one data set in two published formats, which give the same rows. The format listed first is read.
FORMATS = (
    Format(
        "sentihood-tsv",
        lambda split: (f"{split}.tsv", f"{split}_NLI_M.tsv"),
        SENTIHOOD,
        sentihood_tsv.read,
        suffixes=(".tsv",),
        recognises=sentihood_tsv.recognised,
    ),
    Format(
        "sentihood-json",
        lambda split: (f"sentihood-{split}.json",),
        SENTIHOOD,
        sentihood_json.read,
        note=f"opinions on other aspects are left out: {', '.join(sentihood_json.OTHER_ASPECTS)}",
    ),
    Format("semeval-csv", lambda split: (f"{split}_NLI_M.csv",), SEMEVAL, semeval_csv.read),
    Format("semeval-xml", _xml_names, texts=semeval_xml.texts, suffixes=(".xml", ".gold")),
    Format(
        "germeval-tsv",
        lambda split: (f"{split}.tsv",),
        texts=germeval_tsv.texts,
        suffixes=(".tsv",),
        recognises=germeval_tsv.recognised,
    ),
    Format(
        "columns",
        lambda split: tuple(split + suffix for suffix in columns.SUFFIXES),
        records=columns.records,
        suffixes=columns.SUFFIXES,
        recognises=lambda path: (
            path.suffix.lower() != ".tsv" or not (sentihood_tsv.recognised(path) or germeval_tsv.recognised(path))
        ),
    ),
)
NAMES = tuple(one.name for one in FORMATS)
_UNREADABLE = (".xls", ".ods", ".numbers")


def find_format(path: Path, name: str = "auto") -> Format:
    """Returns the format of a folder or of a single file; detects it if `name` is "auto".

    Args:
        path: the folder or file.
        name: one of NAMES; or "auto" for detection by file names and suffixes and, for .tsv, by the header.

    Raises:
        ValueError: `name` is neither "auto" nor one of NAMES.
        DataError: `path` does not exist; it is compressed; no format fits its files; its files have several formats,
            which do not all have the same task; or two files are for the same split.
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
    if len(found) > 1 and len({one.fixed_task(file) or one.name for one, file in found}) > 1:
        names = " and ".join(one.name for one, _ in found)
        raise DataError(path, None, f"has data in the formats {names}; select one with --format")
    return found[0][0]


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
