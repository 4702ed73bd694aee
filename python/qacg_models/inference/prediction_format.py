"""Predictions as lines of CSV or JSONL.

A spreadsheet takes a cell of a CSV that begins with `=`, `+`, `-` or `@` for a formula and runs it, quoted or not. What
is written is what was read all the same, so that other programs, and our own reader, get the texts as they are; for
people who open the file in a spreadsheet an apostrophe can be put before such cells, which shows them as text.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass

from qacg_models.data.requests import Request
from qacg_models.data.task import Task
from qacg_models.errors import InputError
from qacg_models.inference.aspect_sentiment import AspectPrediction

FORMATS = ("csv", "jsonl")
DIGITS = 6  # of a probability, behind the point
# Signs that begin a formula in a spreadsheet. A tab or a line end before them is passed over, and so are full-width
# forms, which spreadsheets in Chinese, Japanese and Korean take for the same.
_FORMULA = re.compile(r"[\s\0]*[=+\-@＝＋－＠]")


@dataclass(frozen=True)
class PredictionLines:
    """How predictions are written: line of the input, id, text, target, aspect, label, probabilities.

    Attributes:
        data_format: one of FORMATS.
        task: of the model; without targets there is no field for them.
        has_id: whether the input has ids.
        escape_formulas: put an apostrophe before cells of a CSV that a spreadsheet would run; it becomes part of them.

    Raises:
        InputError: `escape_formulas` with another form.
    """

    data_format: str
    task: Task
    has_id: bool
    escape_formulas: bool = False

    def __post_init__(self):
        if self.escape_formulas and self.data_format != "csv":
            raise InputError(f"escape_formulas: got it for {self.data_format}, wanted a .csv, which spreadsheets run")

    @property
    def written_as(self) -> str:
        """In words: lines that were written otherwise do not belong into the same file."""
        return f"{self.data_format}, formulas escaped" if self.escape_formulas else self.data_format

    def header(self) -> str:
        """The first line of a file; JSONL has none."""
        if self.data_format == "jsonl":
            return ""
        fields = ["line", *self._optional("id", "target"), "text", "aspect", "label"]
        return self._csv_line([*fields, *(f"p({label})" for label in self.task.labels)])

    def line(self, request: Request, prediction: AspectPrediction) -> str:
        """One prediction, with its line end."""
        shares = {label: round(share, DIGITS) for label, share in prediction.probabilities.items()}
        optional = {"id": request.id, "target": prediction.target}
        fields: dict[str, object] = {"line": request.line}
        fields |= {name: optional[name] for name in self._optional(*optional)}
        fields |= {"text": prediction.text, "aspect": prediction.aspect, "label": prediction.label}
        if self.data_format == "jsonl":
            return json.dumps(fields | {"probabilities": shares}, ensure_ascii=False) + "\n"
        return self._csv_line([*fields.values(), *(f"{share:.{DIGITS}f}" for share in shares.values())])

    def _optional(self, *names: str) -> list[str]:
        there = {"id": self.has_id, "target": self.task.has_targets}
        return [name for name in names if there[name]]

    def _csv_line(self, cells: list) -> str:
        if self.escape_formulas:
            cells = [f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell for cell in cells]
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerow(cells)
        return stream.getvalue()
