"""Pages about results: an evaluation, and a summary of predictions."""

from __future__ import annotations

import csv
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qacg_models.sentiment.calibration import BINS, VALIDITY, Covered, Reliability, accuracy_by_coverage, reliability
from qacg_models.sentiment.example import Example, Task
from qacg_models.sentiment.metrics import ClassScores, Metrics, class_scores, confusion_matrix, plain, wilson_interval
from qacg_models.sentiment.predictor import UNCERTAIN, PredictionFormat
from qacg_models.sentiment.report import (
    Cells,
    Markup,
    Report,
    Section,
    element,
    framed,
    html_table,
    page_file,
    page_html,
    reliability_plot,
    write_text,
)
from qacg_models.sentiment.report.tables import Bounds, metric_cells, show, text_table, undefined_notes
from qacg_models.sentiment.trained_model import TrainedModel, probabilities_of
from qacg_models.utils.text import counted, percent

ERRORS = 20  # maximum number of listed errors
DEFINITION = (
    f"Confidence is the probability of the most probable label. The expected calibration error is the mean absolute"
    f" difference between accuracy and confidence over {BINS} bins of equal width, weighted by the number of rows in"
    " each bin."
)
READING = (
    "The height of an upper bar is the accuracy of the predictions in a range of confidence; the dot marks their mean"
    " confidence. On the dashed line accuracy equals confidence; a dot below the line means that the model is"
    " overconfident. The lower bars are shares of the rows."
)
_TITLES = ("precision in %", "recall in %", "F1 in %", "rows")


@dataclass(frozen=True)
class Breakdown:
    """Scores of a model on labelled rows: of each label, and of each label for each aspect that occurs in the rows.

    `confusion` has the (labels, labels) numbers of rows by true and predicted label. `errors` has the most confident
    errors, at most ERRORS, with the keys line, text, target (empty if the task has no targets), aspect, label,
    predicted, and confidence (the probability of `predicted`); `error_count` counts all errors.
    """

    confusion: np.ndarray
    by_label: dict[str, ClassScores]
    by_aspect: dict[str, dict[str, ClassScores]]
    errors: tuple[dict, ...]
    error_count: int

    @classmethod
    def of(cls, task: Task, rows: Sequence[Example], probabilities: np.ndarray) -> Breakdown:
        """Returns the breakdown of N labelled rows with (N, labels) predicted probabilities."""
        predicted = probabilities.argmax(axis=1)
        gold = np.array([row.label for row in rows])
        aspect = np.array([row.aspect for row in rows])

        def scores(chosen: np.ndarray) -> dict[str, ClassScores]:
            found = class_scores(confusion_matrix(gold[chosen], predicted[chosen], len(task.labels)))
            return dict(zip(task.labels, found))

        places = {name: np.flatnonzero(aspect == name) for name in task.aspects}
        confidence = probabilities.max(axis=1)
        wrong = np.flatnonzero(gold != predicted)
        errors = []
        for index in wrong[np.argsort(-confidence[wrong], kind="stable")][:ERRORS]:
            row = rows[int(index)]
            names = {"label": task.labels[gold[index]], "predicted": task.labels[predicted[index]]}
            found = {"line": row.line, "text": row.sentence, "target": row.target, "aspect": row.aspect, **names}
            errors.append(found | {"confidence": float(confidence[index])})
        return cls(
            confusion_matrix(gold, predicted, len(task.labels)),
            scores(np.arange(len(gold))),
            {name: scores(chosen) for name, chosen in places.items() if len(chosen)},
            tuple(errors),
            len(wrong),
        )

    def label_cells(self) -> Cells:
        """Returns the table of scores by label."""
        return ["label", *_TITLES], [[name, *_scores(one)] for name, one in self.by_label.items()]

    def aspect_cells(self) -> Cells:
        """Returns the table of scores by aspect and label; labels without rows are left out."""
        rows = [
            [aspect, name, *_scores(one)]
            for aspect, scores in self.by_aspect.items()
            for name, one in scores.items()
            if one.support
        ]
        return ["aspect", "label", *_TITLES], rows

    def confusion_cells(self) -> Cells:
        """Returns the confusion matrix."""
        rows = [[name, *map(str, counts)] for name, counts in zip(self.by_label, self.confusion.tolist())]
        return ["label", *(f"predicted {name}" for name in self.by_label)], rows

    def error_cells(self) -> Cells:
        """Returns the table of errors."""
        target = ["target"] if any(one["target"] for one in self.errors) else []
        names = ["text", *target, "aspect", "label", "predicted"]
        rows = [[str(one["line"]), *(one[name] for name in names), f"{one['confidence']:.2f}"] for one in self.errors]
        return ["line", *names, "confidence"], rows

    def to_json(self) -> dict:
        """Returns the breakdown as JSON types, with NaN as None."""

        def by_name(scores: Mapping[str, ClassScores]) -> dict:
            return {name: plain(one) for name, one in scores.items()}

        return {
            "labels": by_name(self.by_label),
            "aspects": {aspect: by_name(scores) for aspect, scores in self.by_aspect.items()},
            "confusion": self.confusion.tolist(),
            "error_count": self.error_count,
            "errors": list(self.errors),
        }


def _scores(one: ClassScores) -> list[str]:
    shares = (one.precision, one.recall, one.f1)
    return [*map(percent, shares), str(one.support)]


@dataclass(frozen=True)
class Confidence:
    """Calibration of a model on labelled rows: reliability without and with temperature scaling, accuracy by coverage.

    `temperatures` is None for a model without temperature scaling, for which `before` and `after` are equal.
    """

    temperatures: tuple[float, ...] | None
    before: Reliability
    after: Reliability
    covered: list[Covered]

    @classmethod
    def of(cls, trained: TrainedModel, rows: Sequence[Example], logits: np.ndarray) -> Confidence:
        """Returns the calibration of a model from N labelled rows, at least one, and their (N, classes) logits."""
        gold, temperatures = [row.label for row in rows], trained.calibration.temperatures
        probabilities = probabilities_of(logits, temperatures)
        return cls(
            temperatures if trained.calibration.skipped is None else None,
            reliability(gold, probabilities_of(logits)),
            reliability(gold, probabilities),
            accuracy_by_coverage(gold, probabilities),
        )

    def note(self) -> str:
        """Returns one line with the expected calibration error."""
        before, after = (f"{100 * one.error:.1f}" for one in (self.before, self.after))
        if self.temperatures is None:
            return f"expected calibration error: {after} points; this model has no temperature scaling"
        shown = ", ".join(f"{one:.3f}" for one in self.temperatures)
        return (
            f"expected calibration error: {before} points before temperature scaling, {after} after it"
            f" (temperatures {shown})"
        )

    def caption(self) -> str:
        """Returns one sentence that compares mean confidence with accuracy."""
        bins = [one for one in self.after.bins if one.rows]
        rows = [one.rows for one in bins]
        confidence = np.average([one.confidence for one in bins], weights=rows)
        accuracy = np.average([one.accuracy for one in bins], weights=rows)
        finding = "overconfident" if confidence > accuracy else "underconfident"
        if abs(confidence - accuracy) < 0.01:
            finding = "well calibrated on average"
        return (
            f"The model is {finding}: its mean confidence is {confidence:.0%}, and {accuracy:.0%} of its predictions"
            " are correct."
        )

    def cells(self) -> Cells:
        """Returns the table of accuracy by coverage."""
        return ["confidence at least", "rows", "coverage in %", "accuracy in %"], [
            [f"{one.threshold:.2f}", str(one.rows), percent(one.coverage), percent(one.accuracy)]
            for one in self.covered
        ]

    def to_json(self) -> dict:
        """Returns the calibration as JSON types, with NaN as None."""
        return {
            "temperatures": self.temperatures,
            "error_before": self.before.error,
            "error_after": self.after.error,
            "bins_before": [plain(one) for one in self.before.bins],
            "bins_after": [plain(one) for one in self.after.bins],
            "coverage": [plain(one) for one in self.covered],
        }

    def plots(self) -> Markup:
        """Returns reliability diagrams: before and after temperature scaling, or one for a model without it."""
        if self.temperatures is None:
            return reliability_plot("no temperature scaling", self.after)
        both = (("before temperature scaling", self.before), ("after temperature scaling", self.after))
        return Markup("\n".join(reliability_plot(*one) for one in both))


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation."""

    described: str  # numbers of sentences, groups and rows, and the share of each label
    results: Mapping[str, Metrics]  # of the model and its baselines, by title
    bounds: Bounds
    notes: tuple[str, ...]  # lines below the table of metrics
    breakdown: Breakdown
    confidence: Confidence

    def text(self) -> str:
        """Returns the tables for the terminal; JSON and the page also have scores by aspect and the worst errors."""
        tables = [
            show(self.results, self.bounds),
            *self.notes,
            "",
            text_table(*self.breakdown.label_cells()),
            "",
            text_table(*self.breakdown.confusion_cells()),
            "",
            self.confidence.note(),
            text_table(*self.confidence.cells()),
        ]
        return "\n".join([self.described, *tables, DEFINITION, VALIDITY])


def write_page(page: Report, evaluation: Evaluation) -> Path:
    """Fills the page, writes it, and returns its path."""
    section = page.section("Metrics")
    section.add("p", evaluation.described)
    section.table("metrics", metric_cells(evaluation.results, evaluation.bounds))
    for note in (*undefined_notes(evaluation.results), *evaluation.notes):
        section.add("p", note, "note")
    breakdown, section = evaluation.breakdown, page.section("Labels, aspects and errors")
    section.add("h3", "Scores by label")
    section.table("labels", breakdown.label_cells())
    section.add("h3", "Scores by aspect")
    section.table("aspects", breakdown.aspect_cells())
    section.add("h3", "Confusion matrix")
    section.add("p", "Rows: true label. Columns: predicted label.", "note")
    section.table("confusion", breakdown.confusion_cells())
    section.add("h3", "Most confident errors")
    section.add("p", f"{len(breakdown.errors)} of {breakdown.error_count} errors, most confident first.")
    if breakdown.errors:
        section.table("errors", breakdown.error_cells())
    add_confidence(page.section("Confidence"), evaluation.confidence)
    return page.write()


def add_confidence(section: Section, confidence: Confidence) -> None:
    """Adds calibration error, reliability diagram, and accuracy by coverage to a section."""
    caption = confidence.caption()
    section.add("p", confidence.note())
    section.picture(framed(confidence.plots(), caption, role="img"), caption, READING)
    section.add("p", "Coverage and accuracy of the predictions whose confidence is at least a threshold:")
    section.table("coverage", confidence.cells())
    section.add("p", DEFINITION, "note")
    section.add("p", VALIDITY, "note")


TELLING = 3  # maximum number of example sentences for each aspect and label
_LONGEST = 400  # maximum number of characters of an example sentence
SUMMARY_READING = (
    "The 95 % intervals (Wilson's) account for the random choice of the texts, but not for wrong predictions of the"
    " model, which qacg evaluate measures."
)


class Prediction(NamedTuple):
    """A prediction for a text and a context (aspect, or target and aspect); a skipped text has an empty label."""

    text: str
    context: str
    label: str
    probability: float
    uncertain: bool


@dataclass
class Summary:
    """Counts of predictions by context and label, of texts without a prediction, and of uncertain predictions.

    If `has_absent`, the first label means "no opinion".
    """

    labels: tuple[str, ...]
    has_absent: bool = False
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    skipped: int = 0
    uncertain: int = 0
    _telling: dict[tuple[str, str], list[tuple[float, str]]] = field(default_factory=dict)

    def add(self, one: Prediction) -> None:
        """Counts a prediction, or a skipped text, and keeps the most probable texts for `telling`."""
        if not one.label:
            self.skipped += 1
            return
        self.uncertain += one.uncertain
        self.counts.setdefault(one.context, Counter())[one.label] += 1
        best = self._telling.setdefault((one.context, one.label), [])
        entry = (one.probability, one.text[:_LONGEST])
        if not any(text == entry[1] for _, text in best):
            (heapq.heappush if len(best) < TELLING else heapq.heappushpop)(best, entry)

    @property
    def total(self) -> int:
        """Number of predictions."""
        return sum(counts.total() for counts in self.counts.values())

    def telling(self, context: str, label: str) -> list[tuple[float, str]]:
        """Returns at most TELLING pairs of probability and sentence of a label, highest probability first."""
        return sorted(self._telling.get((context, label), ()), reverse=True)


def summarize(path: Path, form: PredictionFormat) -> Summary:
    """Returns the summary of a file of predictions, which is read line by line."""
    summary = Summary(form.task.labels, form.task.has_absent)
    with path.open(encoding="utf-8", newline="") as handle:
        for one in read_predictions(handle, form):
            summary.add(one)
    return summary


def read_predictions(handle: Iterable[str], form: PredictionFormat) -> Iterator[Prediction]:
    """Yields a prediction, or a skipped text, for each line of a file, whose header is included for CSV."""
    for row in map(json.loads, handle) if form.data_format == "jsonl" else csv.DictReader(handle):
        label = row["label"] or ""
        shares = row["probabilities"] if form.data_format == "jsonl" else {label: row.get(f"p({label})")}
        context = form.task.context(row.get("target") or "", row["aspect"] or "")
        probability = float(shares[label]) if label else 0.0
        yield Prediction(row["text"] or "", context, label, probability, row.get("certainty") == UNCERTAIN)


def write_summary(path: Path, summary: Summary, source: str, unit: str = "text") -> None:
    """Writes the summary of predictions for the file `source`, one for each `unit`, as an HTML page."""
    lead = f"Predictions for {source}, written by qacg predict. This page loads nothing from elsewhere."
    sections = [_overview(summary, unit), _sentences(summary)]
    write_text(path, page_html("Summary of predictions", lead, sections, style=page_file("summary.css")))


def _overview(summary: Summary, unit: str) -> Section:
    section = Section("Aspects and labels")
    facts = [f"{counted(summary.total, 'prediction')}, one for each {unit} and aspect"]
    if summary.skipped:
        facts.append(f"{counted(summary.skipped, 'text was', 'texts were')} skipped, since a required cell was empty")
    if summary.uncertain:
        facts.append(counted(summary.uncertain, "of the predictions is uncertain", "of the predictions are uncertain"))
    section.add("p", f"{'; '.join(facts)}.")
    for context, counts in summary.counts.items():
        section.add("h3", context)
        if summary.has_absent:
            mentioned = counts.total() - counts[summary.labels[0]]
            verb = "has" if mentioned == 1 else "have"
            section.add("p", f"{mentioned:,} of {counted(counts.total(), unit)} {verb} an opinion on {context}.")
        section.parts.append(framed(_share_table(summary.labels, counts), f"shares of {context}"))
    section.add("p", SUMMARY_READING, "note")
    return section


def _share_table(labels: Iterable[str], counts: Counter[str]) -> Markup:
    total, rows = counts.total(), []
    for label in labels:
        lower, upper = wilson_interval(counts[label], total)
        share, low, high = (percent(value) for value in (counts[label] / total, lower, upper))
        length = element("span", style=f"width:{share}%")
        whisker = element("i", style=f"left:{low}%;width:{percent(upper - lower)}%")
        bar = element("td", element("span", length, whisker, kind="bar", aria_hidden="true"))
        rows.append([label, f"{counts[label]:,}", share, f"{low}–{high}", bar])
    last = element("th", element("span", "bar", kind="hidden"), scope="col")
    return html_table(["label", "count", "share in %", "interval in %", last], rows)


def _sentences(summary: Summary) -> Section:
    section = Section("Example sentences")
    labels = summary.labels[1:] if summary.has_absent else summary.labels
    without = f" except {summary.labels[0]}" if summary.has_absent else ""
    section.add("p", f"Sentences with the highest probabilities of each label{without}.")
    for context in summary.counts:
        found = {label: sentences for label in labels if (sentences := summary.telling(context, label))}
        if found:
            section.add("h3", context)
        for label, sentences in found.items():
            section.add("h4", label)
            for probability, text in sentences:
                section.add("blockquote", f"{text} ({probability:.2f})")
    return section
