"""How data is read: every choice, with its default and its help text."""

from __future__ import annotations

from dataclasses import dataclass, field

from qacg_models.data.columns import Columns
from qacg_models.errors import InputError


def _choice(default, text: str, kind: type = str):
    return field(default=default, metadata={"help": text, "choices": None, "kind": kind})


@dataclass(frozen=True)
class DataOptions:
    """What the user says about the data. The fields are the arguments; the help text beside each explains it.

    Raises:
        InputError: a value outside its range.
    """

    format: str = _choice("auto", "form of the data; auto goes by the names of the files")
    text_column: str = _choice("text", "column or key of the sentence, in CSV, JSON and JSONL of your own")
    aspect_column: str = _choice("aspect", "column of the aspect")
    label_column: str = _choice("label", "column of the label")
    id_column: str | None = _choice(None, "column of the sentence's id; without it neighbouring equal texts are one")
    target_column: str | None = _choice(None, "column of the target, where aspects are of one target among several")
    delimiter: str = _choice(",", "between the fields of a CSV")
    aspects: tuple[str, ...] | None = _choice(None, "the aspects; without it those of the training split", list)
    labels: tuple[str, ...] | None = _choice(None, "the labels; without it those of the training split", list)
    absent_label: str | None = _choice(
        None, 'the label that means "no opinion"; without it one called none, if there is one'
    )
    dev_fraction: float = _choice(0.1, "share of the training sentences that become dev where no dev is shipped", float)
    dev_seed: int = _choice(0, "of that choice", int)

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
