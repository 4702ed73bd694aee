"""Options for reading data, with defaults and help texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qacg_models.data.columns import AUTO, QUOTING, Columns
from qacg_models.data.text_files import UTF_8
from qacg_models.errors import InputError
from qacg_models.utils.option_fields import convert_options, option_group

_data = option_group("data")
_own = option_group("tables of your own (CSV, JSON, JSONL, Excel, Parquet)")


@dataclass(frozen=True)
class DataOptions:
    """Options for reading data. Each field has a help text in its metadata, for `qacg train`.

    Raises:
        InputError: a value is invalid, or contradicts another option.
    """

    format: str = _data(
        "auto", "format of the data; auto: by file names and, for .tsv, by the header", metavar="FORMAT"
    )
    dev_fraction: float = _data(
        0.1,
        "share of the training sentences used as dev if there is no dev file, and no row is marked dev in a column"
        " 'split'",
    )
    dev_seed: int = _data(0, "seed of the division into training and dev sentences")

    text_column: str = _own("text", "column or key of the text", metavar="NAME")
    aspect_column: str = _own("aspect", "column or key of the aspect", metavar="NAME")
    label_column: str = _own("label", "column or key of the label", metavar="NAME")
    id_column: str | None = _own(None, "column of the id; without it, equal texts share one", kind=str, metavar="NAME")
    target_column: str | None = _own(None, "column of the target, if a text has several", kind=str, metavar="NAME")
    delimiter: str = _own(AUTO, "delimiter of a CSV; \\t is a tab; auto: by the header", metavar="CHARACTER")
    quoting: str = _own(
        AUTO,
        "none: quotation marks are ordinary characters; minimal: they may enclose a field; auto: as minimal, but an"
        " error if most such fields join rows",
        *QUOTING,
    )
    encoding: str = _own(UTF_8, "encoding of text files, such as cp1252, latin-1 or utf-16", metavar="NAME")
    wide: bool = _own(
        False, "the table has a column of labels for each aspect: all columns except text, id, target and split"
    )
    aspect_columns: tuple[str, ...] | None = _own(None, "the aspect columns of a wide table; implies wide", kind=list)
    skip_empty: bool = _own(False, "leave out and count rows with an empty cell, which otherwise are an error")
    aspects: tuple[str, ...] | None = _own(None, "the aspects (default: those of the training split)", kind=list)
    labels: tuple[str, ...] | None = _own(None, "the labels (default: those of the training split)", kind=list)
    absent_label: str | None = _own(
        None,
        "label that means no opinion on the aspect (default: none, if a label has that name)",
        kind=str,
        metavar="NAME",
    )

    def __post_init__(self):
        from qacg_models.data.formats import NAMES

        convert_options(self)
        if self.format not in ("auto", *NAMES):
            raise InputError(f"format: expected auto or one of {', '.join(NAMES)}, got {self.format!r}")
        if not 0 < self.dev_fraction < 1:
            raise InputError(f"dev_fraction: expected a number above 0 and below 1, got {self.dev_fraction}")
        for name in ("aspects", "labels", "aspect_columns"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _names(name, value))
        if self.aspect_columns is not None and not self.aspect_columns:
            raise InputError("aspect_columns: expected at least one column, got none")
        for name in ("aspect_column", "label_column"):
            value = getattr(self, name)
            if self.is_wide and value != f"{name.removesuffix('_column')}":
                raise InputError(
                    f"{name}: expected none for a wide table, which has a column for each aspect, got {value!r}; omit"
                    f" {name}. For a table with a row for each aspect, set wide=false instead, and omit aspect_columns"
                )
        object.__setattr__(self, "encoding", self.columns().encoding)

    @property
    def is_wide(self) -> bool:
        """Whether the table has a column for each aspect."""
        return self.wide or self.aspect_columns is not None

    def overridden(self, given: Mapping[str, Any]) -> DataOptions:
        """Returns a copy of these options with the values in `given`.

        Args:
            given: values by field. `wide=False` also resets `aspect_columns`: a model that was trained on a wide table
                can then be evaluated on a table with a row for each aspect.

        Raises:
            InputError: a value is invalid, or contradicts another option.
        """
        reset = {"aspect_columns": None} if given.get("wide") is False else {}
        return replace(self, **reset | dict(given))

    def columns(self) -> Columns:
        """Returns the options that describe a table: column names, whether it is wide, and how its text is stored."""
        return Columns(
            text=self.text_column,
            aspect=self.aspect_column,
            label=self.label_column,
            id=self.id_column,
            target=self.target_column,
            delimiter=self.delimiter,
            encoding=self.encoding,
            quoting=self.quoting,
            wide=self.is_wide,
            aspect_columns=self.aspect_columns,
        )


def _names(option: str, value: Any) -> tuple[str, ...]:
    """Returns the names in a list or another iterable; raises InputError for other values, such as a single str."""
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise InputError(f"{option}: expected a list of str, got {value!r}.")
    return names
