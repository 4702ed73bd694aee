"""The formats of data, and which of them a folder or file is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data import columns, semeval_csv, semeval_xml, sentihood_json, sentihood_tsv
from qacg_models.data.columns import Columns, Record
from qacg_models.data.example import DataError, Example, checked
from qacg_models.data.records import examples_of
from qacg_models.data.row_problems import RowProblems, filled
from qacg_models.data.task import SEMEVAL, SENTIHOOD, Task

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Format:
    """How the splits of a data set lie in a folder.

    It has a task and `published`, or neither and `records`.

    Attributes:
        names: file names of a split, any of which may be there.
        task: labels and aspects that the format fixes; None for data of one's own, whose task is discovered or given.
        published: rows of a file of that task.
        records: of a file of one's own. They become rows in `records.py`.
        suffixes: of files of another name, by which a single one is known.
        recognises: whether a file of such a name or suffix is in this format, by its content.
        note: what a reader of the data should know, such as what is left out.
    """

    name: str
    names: Callable[[str], tuple[str, ...]]
    task: Task | None = None
    published: Callable[[Path, Task], Iterator[Example]] | None = None
    records: Callable[[Path, Columns], Iterator[Record]] | None = None
    suffixes: tuple[str, ...] = ()
    recognises: Callable[[Path], bool] = lambda path: True
    note: str = ""

    def __post_init__(self):
        if (self.published is None) != (self.task is None) or (self.records is None) == (self.task is None):
            raise ValueError(f"{self.name}: wanted a task and published, or neither and records")

    def file(self, folder: Path, split: str) -> Path | None:
        """The file of a split, None if the folder has none.

        Raises:
            DataError: it has two.
        """
        found = [folder / name for name in self.names(split) if (folder / name).is_file()]
        if self.records is not None:  # where a file of a published format has such a name, it is not one of them
            found = [path for path in found if self.recognises(path)]
        if len(found) > 1:
            raise DataError(folder, None, f"holds both {found[0].name} and {found[1].name}; keep one of them")
        return found[0] if found else None

    def examples(self, path: Path, task: Task, names: Columns, skipped: RowProblems | None = None) -> Iterator[Example]:
        """The checked rows of a file, one in memory at a time.

        Args:
            skipped: receives the rows of a table of your own that have an empty cell, which are left out.

        Raises:
            DataError: at the first line, or group, that is not as the format requires; rows with an empty cell, which
                are listed, where `skipped` is None.
        """
        if self.records is not None:
            whole = filled(self.records(path, names), path, names, skipped)
            found = examples_of(whole, path, task, names)
        else:
            assert self.published is not None, "a format that fixes its task"
            found = self.published(path, task)
        return checked(found, path, task)


def _xml_names(split: str) -> tuple[str, ...]:
    published = {"train": "Restaurants_Train.xml", "test": "Restaurants_Test_Gold.xml"}
    return (f"{split}.xml", *(published[name] for name in (split,) if name in published))


# Of two published formats of one data set in one folder, which give the same rows, the first is read.
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
    Format("semeval-xml", _xml_names, SEMEVAL, semeval_xml.read, suffixes=(".xml",)),
    Format(
        "columns",
        lambda split: tuple(split + suffix for suffix in columns.SUFFIXES),
        records=columns.records,
        suffixes=columns.SUFFIXES,
        recognises=lambda path: path.suffix.lower() != ".tsv" or not sentihood_tsv.recognised(path),
    ),
)
NAMES = tuple(one.name for one in FORMATS)
_UNREADABLE = (".xls", ".ods", ".numbers")


def find_format(path: Path, name: str = "auto") -> Format:
    """The format of a folder or of a single file.

    Args:
        name: one of NAMES, or "auto" to go by the names of the files.

    Raises:
        DataError: no such folder or file, no file of a known name, or files of two different data sets.
    """
    if not path.exists():
        raise DataError(path, None, "no such folder or file")
    if name != "auto":
        return next(one for one in FORMATS if one.name == name)
    if path.is_file():
        return _format_of_file(path)
    found = [
        one
        for one in FORMATS
        if any((file := one.file(path, split)) is not None and one.recognises(file) for split in SPLITS)
    ]
    if not found:
        wanted = "; ".join(f"{one.name}: {' or '.join(one.names('train'))}" for one in FORMATS)
        raise DataError(path, None, f"has no data in any known format ({wanted}, and so on)")
    if len({one.task or one.name for one in found}) > 1:
        raise DataError(path, None, f"holds {' and '.join(one.name for one in found)}; say which by --format")
    return found[0]


def _format_of_file(path: Path) -> Format:
    if path.suffix.lower() in _UNREADABLE:
        raise DataError(path, None, "cannot be read; save it as .xlsx or .csv")
    named = (one for one in FORMATS if any(path.name in one.names(split) for split in SPLITS) and one.recognises(path))
    suffixed = (one for one in FORMATS if path.suffix.lower() in one.suffixes and one.recognises(path))
    one = next(named, None) or next(suffixed, None)
    if one is None:
        known = ",".join(NAMES)
        raise DataError(path, None, f"has no name or suffix of a known format; say which by --format {{{known}}}")
    return one
