"""Predictions as lines of CSV or JSONL."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass

from qacg_models.data.requests import Request
from qacg_models.data.task import Task
from qacg_models.inference.aspect_sentiment import AspectPrediction

FORMATS = ("csv", "jsonl")
DIGITS = 6  # of a probability, behind the point


@dataclass(frozen=True)
class PredictionLines:
    """How predictions are written: line of the input, id, text, target, aspect, label, probabilities.

    Attributes:
        data_format: one of FORMATS.
        task: of the model; without targets there is no field for them.
        has_id: whether the input has ids.
    """

    data_format: str
    task: Task
    has_id: bool

    def header(self) -> str:
        """The first line of a file; JSONL has none."""
        if self.data_format == "jsonl":
            return ""
        fields = ["line", *self._optional("id", "target"), "text", "aspect", "label"]
        return _csv_line([*fields, *(f"p({label})" for label in self.task.labels)])

    def line(self, request: Request, prediction: AspectPrediction) -> str:
        """One prediction, with its line end."""
        shares = {label: round(share, DIGITS) for label, share in prediction.probabilities.items()}
        optional = {"id": request.id, "target": prediction.target}
        fields: dict[str, object] = {"line": request.line}
        fields |= {name: optional[name] for name in self._optional(*optional)}
        fields |= {"text": prediction.text, "aspect": prediction.aspect, "label": prediction.label}
        if self.data_format == "jsonl":
            return json.dumps(fields | {"probabilities": shares}, ensure_ascii=False) + "\n"
        return _csv_line([*fields.values(), *(f"{share:.{DIGITS}f}" for share in shares.values())])

    def _optional(self, *names: str) -> list[str]:
        there = {"id": self.has_id, "target": self.task.has_targets}
        return [name for name in names if there[name]]


def _csv_line(cells: list) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()
