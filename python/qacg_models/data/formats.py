"""The formats of data, and which of them a folder or file is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data import columns, semeval_csv, semeval_xml, sentihood_json, sentihood_tsv
from qacg_models.data.columns import Columns
from qacg_models.data.example import DataError, Example, checked
from qacg_models.data.task import SEMEVAL, SENTIHOOD, Task

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Format:
    """How the splits of a data set lie in a folder.

    Attributes:
        task: fixed by the format; None for data of one's own, whose task is discovered or given.
        names: file names of a split, any of which may be there.
        reader: rows of a file.
    """

    name: str
    task: Task | None
    names: Callable[[str], tuple[str, ...]]
    reader: Callable[[Path, Task, Columns], Iterator[Example]]

    def file(self, folder: Path, split: str) -> Path | None:
        """The file of a split, None if the folder has none.

        Raises:
            DataError: it has two.
        """
        found = [folder / name for name in self.names(split) if (folder / name).is_file()]
        if len(found) > 1:
            raise DataError(folder, None, f"holds both {found[0].name} and {found[1].name}; keep one of them")
        return found[0] if found else None

    def rows(self, path: Path, task: Task, names: Columns) -> list[Example]:
        """The checked rows of a file.

        Raises:
            DataError: at the first line, or group, that is not as the format wants it.
        """
        return checked(self.reader(path, task, names), path, task)


def _xml_names(split: str) -> tuple[str, ...]:
    published = {"train": "Restaurants_Train.xml", "test": "Restaurants_Test_Gold.xml"}
    return (f"{split}.xml", *(published[name] for name in (split,) if name in published))


# Of two formats of one data set in one folder, which give the same rows, the first is read.
FORMATS = (
    Format(
        "sentihood-tsv",
        SENTIHOOD,
        lambda split: (f"{split}.tsv", f"{split}_NLI_M.tsv"),
        lambda path, task, _: sentihood_tsv.read(path, task),
    ),
    Format(
        "sentihood-json",
        SENTIHOOD,
        lambda split: (f"sentihood-{split}.json",),
        lambda path, task, _: sentihood_json.read(path, task),
    ),
    Format(
        "semeval-csv",
        SEMEVAL,
        lambda split: (f"{split}_NLI_M.csv",),
        lambda path, task, _: semeval_csv.read(path, task),
    ),
    Format("semeval-xml", SEMEVAL, _xml_names, lambda path, task, _: semeval_xml.read(path, task)),
    Format("columns", None, lambda split: tuple(split + suffix for suffix in columns.SUFFIXES), columns.read),
)
NAMES = tuple(one.name for one in FORMATS)


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
    found = [one for one in FORMATS if any(one.file(path, split) for split in SPLITS)]
    if not found:
        wanted = "; ".join(f"{one.name}: {' or '.join(one.names('train'))}" for one in FORMATS)
        raise DataError(path, None, f"has no data in any known format ({wanted}, and so on)")
    if len({one.task for one in found}) > 1:
        raise DataError(path, None, f"holds {' and '.join(one.name for one in found)}; say which by --format")
    return found[0]


def _format_of_file(path: Path) -> Format:
    for data_format in FORMATS:
        if any(path.name in data_format.names(split) for split in SPLITS) or _by_suffix(path) == data_format.name:
            return data_format
    raise DataError(path, None, f"has no name or suffix of a known format; say which by --format {{{','.join(NAMES)}}}")


def _by_suffix(path: Path) -> str | None:
    suffixes = {".tsv": "sentihood-tsv", ".xml": "semeval-xml"} | dict.fromkeys(columns.SUFFIXES, "columns")
    return suffixes.get(path.suffix.lower())
