"""A summary of a file of predictions: shares by aspect and label, by group and by month, in constant memory."""

from __future__ import annotations

import csv
import heapq
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from qacg_models.inference.prediction_format import PredictionFormat
from qacg_models.inference.predictor import UNCERTAIN
from qacg_models.metrics.wilson import wilson_interval
from qacg_models.utils.plain_text import unescape_formula

MOST_GROUPS = 1_000  # maximum number of distinct values of a column that are counted separately
OTHER, NO_DATE, EMPTY = "(other values)", "(no readable date)", "(empty)"
TELLING = 3  # maximum number of example sentences for each aspect and label
_LONGEST = 400  # maximum number of characters of an example sentence
_DATES = (
    re.compile(
        r"(?P<year>\d{4})(?P<separator>[-/])(?P<month>\d{1,2})(?:(?P=separator)(?P<day>\d{1,2})(?!\d)|(?![\d/-]))"
    ),
    re.compile(r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})(?!\d)"),
    re.compile(r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})(?!\d)"),
)


@dataclass(frozen=True)
class Prediction:
    """A prediction read from a file.

    Attributes:
        text: the text, or one of its sentences if each prediction is for a sentence.
        context: name of the context: "target - aspect" if the task has targets, else the aspect.
        label: the predicted label; empty for a skipped text.
        probability: probability of the label; 0 for a skipped text.
        uncertain: whether the prediction is marked as uncertain.
        others: cells of the other columns of the input, by name of the column.
    """

    text: str
    context: str
    label: str
    probability: float
    uncertain: bool
    others: dict[str, str]


@dataclass(frozen=True)
class Share:
    """A label's share of a set of predictions, such as those for an aspect, with Wilson's 95 % interval.

    Attributes:
        label: the label.
        count: number of predictions with the label.
        total: number of all predictions in the set, at least 1.
        lower, upper: bounds of the interval, in [0, 1].
    """

    label: str
    count: int
    total: int
    lower: float
    upper: float

    @property
    def share(self) -> float:
        """`count` divided by `total`, in [0, 1]."""
        return self.count / self.total


@dataclass
class Summary:
    """Counts of predictions.

    Attributes:
        labels: labels of the model, in their order.
        has_absent: whether the first label means "no opinion".
        group_column, date_column: columns of the input by which predictions are also counted; None: no such counts.
        counts: number of predictions by context and label.
        by_group: number of predictions by value of the group column, then by context and label.
        by_month: number of predictions by month, then by context and label. Both `by_group` and `by_month` have at most
            MOST_GROUPS keys; all further values or months are counted under the additional key OTHER.
        skipped: number of texts without a prediction.
        uncertain: number of predictions marked as uncertain.
        undated: number of predictions without a readable date.
        first_undated: the first cell of the date column that cannot be read; empty if there is none.
    """

    labels: tuple[str, ...]
    has_absent: bool = False
    group_column: str | None = None
    date_column: str | None = None
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    by_group: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    by_month: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    skipped: int = 0
    uncertain: int = 0
    undated: int = 0
    first_undated: str = ""
    _telling: dict[tuple[str, str], list[tuple[float, str]]] = field(default_factory=dict)

    def add(self, one: Prediction) -> None:
        """Counts a prediction or a skipped text.

        Also stores the texts of the most probable predictions of each context and label, which `telling` returns.
        """
        if not one.label:
            self.skipped += 1
            return
        self.uncertain += one.uncertain
        self.counts.setdefault(one.context, Counter())[one.label] += 1
        if self.group_column is not None:
            self._count(self.by_group, one.others[self.group_column].strip() or EMPTY, one)
        if self.date_column is not None:
            month = month_of(one.others[self.date_column])
            if month is None:
                self.undated += 1
                self.first_undated = self.first_undated or one.others[self.date_column].strip()
            self._count(self.by_month, month or NO_DATE, one)
        best = self._telling.setdefault((one.context, one.label), [])
        entry = (one.probability, one.text[:_LONGEST])
        if any(text == entry[1] for _, text in best):
            return
        (heapq.heappush if len(best) < TELLING else heapq.heappushpop)(best, entry)

    @staticmethod
    def _count(table: dict[str, dict[str, Counter[str]]], value: str, one: Prediction) -> None:
        if value not in table and len(table) >= MOST_GROUPS:
            value = OTHER
        table.setdefault(value, {}).setdefault(one.context, Counter())[one.label] += 1

    @property
    def total(self) -> int:
        """Number of predictions."""
        return sum(counts.total() for counts in self.counts.values())

    def shares(self, counts: Counter[str]) -> list[Share]:
        """Returns the share of every label.

        Args:
            counts: number of predictions by label; their sum is at least 1.
        """
        total = counts.total()
        return [Share(name, counts[name], total, *wilson_interval(counts[name], total)) for name in self.labels]

    def telling(self, context: str, label: str) -> list[tuple[float, str]]:
        """Returns (probability, sentence) for the most probable predictions of a label, highest probability first.

        There are at most TELLING sentences. They are distinct, and truncated to 400 characters.

        Args:
            context: name of the context.
            label: the predicted label.
        """
        return sorted(self._telling.get((context, label), ()), reverse=True)


def month_of(text: str) -> str | None:
    """Returns the month of a date, in the form "2024-05"; None if the date cannot be read.

    Readable are 2024-12-31, 2024/12/31, 20241231, 31.12.2024, 2024-12 and 2024/12, also with a time. 12/31/2024 is not
    readable, because the order of day and month in such dates is ambiguous: 1/2/2024 is in January or in February.

    Example:
        >>> month_of("2024-05-31T10:00:00"), month_of("31.5.2024"), month_of("2024/5"), month_of("05/31/2024")
        ('2024-05', '2024-05', '2024-05', None)
    """
    found = next(filter(None, (form.match(text.strip()) for form in _DATES)), None)
    if found is None:
        return None
    try:
        return date(int(found["year"]), int(found["month"]), int(found["day"] or 1)).strftime("%Y-%m")
    except ValueError:
        return None


def summarize(
    path: Path, form: PredictionFormat, *, group_column: str | None = None, date_column: str | None = None
) -> Summary:
    """Reads a file of predictions, line by line, and returns its summary.

    Args:
        path: the file.
        form: format of the file.
        group_column, date_column: names of columns among `form.others` by which predictions are also counted; None:
            no such counts.
    """
    task = form.task
    summary = Summary(task.labels, task.has_absent, group_column, date_column)
    with path.open(encoding="utf-8", newline="") as handle:
        for one in read_predictions(handle, form):
            summary.add(one)
    return summary


def read_predictions(handle: Iterable[str], form: PredictionFormat) -> Iterator[Prediction]:
    """Yields a prediction, or a skipped text, for each line of a file.

    Args:
        handle: the lines, including the header for CSV.
        form: format of the file.
    """
    if form.data_format == "jsonl":
        for line in handle:
            found = json.loads(line)
            context = form.task.context(found.get("target") or "", found["aspect"] or "")
            yield Prediction(
                found["text"] or "",
                context,
                found["label"] or "",
                (found["probabilities"] or {}).get(found["label"], 0.0),
                found.get("certainty") == UNCERTAIN,
                found.get("columns", {}),
            )
        return
    rows = csv.reader(handle)
    names = next(rows)
    places = {name: names.index(name) for name in names}
    own = len(names) - len(form.others)
    for cells in rows:
        if form.escape_formulas:
            cells = [unescape_formula(cell) for cell in cells]

        def cell(name: str, cells: list[str] = cells) -> str:
            return cells[places[name]] if name in places else ""

        label = cell("label")
        yield Prediction(
            cell("text"),
            form.task.context(cell("target"), cell("aspect")),
            label,
            float(cell(f"p({label})") or 0.0) if label else 0.0,
            cell("certainty") == UNCERTAIN,
            dict(zip(form.others, cells[own:])),
        )
