"""Predictions as lines of CSV or JSONL.

A spreadsheet program runs a CSV cell that begins with `=`, `+`, `-` or `@` as a formula, even if the cell is quoted. By
default, texts are written unchanged, for other programs. With `escape_formulas`, an apostrophe is written before such
cells, and before cells that begin with a tab, a carriage return or a full-width form of these signs. White space or
apostrophes before the sign make no difference (`utils.plain_text.escape_formula`).
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from qacg_models.data.requests import Request
from qacg_models.data.task import Task
from qacg_models.errors import InputError
from qacg_models.inference.aspect_predictor import AspectPrediction
from qacg_models.utils.plain_text import escape_formula

FORMATS = ("csv", "jsonl")
CERTAIN, UNCERTAIN = "certain", "uncertain"
DIGITS = 6  # decimals of a probability


def certainty(probability: float, min_confidence: float | None) -> str:
    """Returns UNCERTAIN for a probability below `min_confidence` (None: no threshold), else CERTAIN."""
    return CERTAIN if min_confidence is None or probability >= min_confidence else UNCERTAIN


def check_min_confidence(value: float | None) -> None:
    """Raises InputError unless `value` is None or in (0, 1]."""
    if value is not None and not 0 < value <= 1:
        raise InputError(f"min-confidence: expected a number above 0 and at most 1, got {value}")


@dataclass(frozen=True)
class PredictionLines:
    """Formats predictions as output lines.

    The fields of a line: input line, sentence number, id, target, text, aspect, label, certainty, probabilities, and
    the other columns of the input (in JSONL the object `columns`).

    Attributes:
        data_format: "csv" or "jsonl".
        task: task of the model; lines have the field `target` only if the task has targets.
        has_id: whether the input has ids.
        by_sentence: whether each line is for one sentence. Lines then have the number of the sentence as the field
            `sentence`, and the sentence as the field `text`.
        escape_formulas: put an apostrophe before CSV cells that a spreadsheet would run as formulas.
        others: names of the input's other columns, which are copied; in a CSV, a column with the name of an output
            field becomes `NAME (input)`.
        min_confidence: predictions with a lower probability are marked as uncertain in the field `certainty`; None: no
            such field.

    Raises:
        InputError: `escape_formulas` is set for a format other than CSV, or `min_confidence` is outside (0, 1].
    """

    data_format: str
    task: Task
    has_id: bool
    by_sentence: bool = False
    escape_formulas: bool = False
    others: tuple[str, ...] = ()
    min_confidence: float | None = None

    def __post_init__(self):
        if self.escape_formulas and self.data_format != "csv":
            raise InputError(f"escape_formulas: expected the format csv, got {self.data_format}")
        check_min_confidence(self.min_confidence)

    def certainty(self, prediction: AspectPrediction) -> str:
        """Returns CERTAIN or UNCERTAIN, by the probability of the predicted label."""
        return certainty(prediction.probabilities[prediction.label], self.min_confidence)

    def header(self) -> str:
        """Returns the first line of a file; an empty string for JSONL."""
        if self.data_format == "jsonl":
            return ""
        names = self._own_names()
        for name in self.others:
            while name in names:
                name = f"{name} (input)"
            names.append(name)
        return self._csv_line(names)

    def line(self, request: Request, prediction: AspectPrediction, sentence: int = 1) -> str:
        """Returns the line of a prediction, with its line end.

        Args:
            request: the input.
            prediction: a prediction for the input.
            sentence: number of the sentence in its text, from 1.
        """
        shares = {label: round(share, DIGITS) for label, share in prediction.probabilities.items()}
        return self._line(
            request,
            {
                "sentence": sentence,
                "id": request.id,
                "target": prediction.target,
                "text": prediction.text,
                "aspect": prediction.aspect,
                "label": prediction.label,
                "certainty": self.certainty(prediction),
            },
            shares,
        )

    def skipped_line(self, request: Request) -> str:
        """Returns the line of a skipped text, with an empty label and without probabilities."""
        fields = {"id": request.id, "target": request.target, "text": request.text, "aspect": request.aspect}
        return self._line(request, {name: value or None for name, value in fields.items()}, None)

    def _line(self, request: Request, values: dict[str, object], shares: dict[str, float] | None) -> str:
        names = [*self._optional("sentence", "id", "target"), "text", "aspect", "label", *self._optional("certainty")]
        fields: dict[str, object] = {"line": request.line} | {name: values.get(name) for name in names}
        others = {name: (request.others or {}).get(name, "") for name in self.others}
        if self.data_format == "jsonl":
            fields |= {"probabilities": shares} | ({"columns": others} if self.others else {})
            return json.dumps(fields, ensure_ascii=False) + "\n"
        cells = [""] * len(self.task.labels) if shares is None else [f"{share:.{DIGITS}f}" for share in shares.values()]
        return self._csv_line([*fields.values(), *cells, *others.values()])

    def count_uncertain(self, lines: Iterable[str]) -> tuple[int, int]:
        """Counts the predictions in a file of this format; returns (uncertain predictions, all predictions).

        Skipped texts are not counted. `min_confidence` must be set, since lines have no certainty without it.

        Args:
            lines: the lines of the file, with the header of a CSV.
        """
        counts: Counter[str] = Counter()
        if self.data_format == "jsonl":
            counts.update(json.loads(line)["certainty"] for line in lines)
        else:
            place = self._own_names().index("certainty")
            counts.update(row[place] for number, row in enumerate(csv.reader(lines)) if number)
        return counts[UNCERTAIN], counts[UNCERTAIN] + counts[CERTAIN]

    def _own_names(self) -> list[str]:
        names = [
            "line",
            *self._optional("sentence", "id", "target"),
            "text",
            "aspect",
            "label",
            *self._optional("certainty"),
        ]
        return [*names, *(f"p({label})" for label in self.task.labels)]

    def _optional(self, *names: str) -> list[str]:
        there = {
            "sentence": self.by_sentence,
            "id": self.has_id,
            "target": self.task.has_targets,
            "certainty": self.min_confidence is not None,
        }
        return [name for name in names if there[name]]

    def _csv_line(self, cells: list) -> str:
        if self.escape_formulas:
            cells = [escape_formula(cell) if isinstance(cell, str) else cell for cell in cells]
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerow(cells)
        return stream.getvalue()
