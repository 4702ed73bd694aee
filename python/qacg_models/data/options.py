"""How data is read: every choice, with its default and its help text."""

from __future__ import annotations

from dataclasses import dataclass

from qacg_models.data.columns import Columns
from qacg_models.errors import InputError
from qacg_models.utils.option_fields import chooser

_data = chooser("data")
_own = chooser("CSV, JSON and JSONL of your own")


@dataclass(frozen=True)
class DataOptions:
    """What the user says about the data. The fields are the arguments; the help text beside each explains it.

    Raises:
        InputError: a value outside its range.
    """

    format: str = _data("auto", "format of the data; auto goes by the names of the files", metavar="FORMAT")
    dev_fraction: float = _data(0.1, "share of the training sentences that become dev where no dev is shipped")
    dev_seed: int = _data(0, "of that choice")

    text_column: str = _own("text", "column or key of the sentence", metavar="NAME")
    aspect_column: str = _own("aspect", "column or key of the aspect", metavar="NAME")
    label_column: str = _own("label", "column or key of the label", metavar="NAME")
    id_column: str | None = _own(
        None, "column of the sentence's id; without it neighbouring equal texts are one", kind=str, metavar="NAME"
    )
    target_column: str | None = _own(
        None, "column of the target, where aspects are of one target among several", kind=str, metavar="NAME"
    )
    delimiter: str = _own(",", "between the fields of a CSV; \\t is a tab", metavar="CHARACTER")
    aspects: tuple[str, ...] | None = _own(None, "the aspects; without it those of the training split", kind=list)
    labels: tuple[str, ...] | None = _own(None, "the labels; without it those of the training split", kind=list)
    absent_label: str | None = _own(
        None,
        'the label that means "no opinion"; without it one called none, if there is one',
        kind=str,
        metavar="NAME",
    )

    def __post_init__(self):
        from qacg_models.data.formats import NAMES

        if self.format not in ("auto", *NAMES):
            raise InputError(f"format: got {self.format!r}, wanted auto or one of {', '.join(NAMES)}")
        if not 0 < self.dev_fraction < 1:
            raise InputError(f"dev_fraction must be between 0 and 1; got {self.dev_fraction}")
        for name in ("aspects", "labels"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        self.columns()

    def columns(self) -> Columns:
        """The columns of one's own files."""
        return Columns(
            text=self.text_column,
            aspect=self.aspect_column,
            label=self.label_column,
            id=self.id_column,
            target=self.target_column,
            delimiter=self.delimiter,
        )
