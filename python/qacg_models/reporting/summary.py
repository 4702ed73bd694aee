"""A summary of a file of predictions, and its page: shares by aspect and label, and example sentences."""

from __future__ import annotations

import csv
import heapq
import html
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qacg_models.inference.prediction_format import PredictionFormat
from qacg_models.inference.predictor import UNCERTAIN
from qacg_models.metrics.metrics import wilson_interval
from qacg_models.reporting.html_report import Section, framed, page_file, page_html
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.cells import counted

TELLING = 3  # maximum number of example sentences for each aspect and label
_LONGEST = 400  # maximum number of characters of an example sentence
READING = (
    "The 95 % intervals (Wilson's) account for the random choice of the texts, but not for wrong predictions of the"
    " model, which qacg evaluate measures."
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
    """

    text: str
    context: str
    label: str
    probability: float
    uncertain: bool


@dataclass
class Summary:
    """Counts of predictions.

    Attributes:
        labels: labels of the model, in their order.
        has_absent: whether the first label means "no opinion".
        counts: number of predictions by context and label.
        skipped: number of texts without a prediction.
        uncertain: number of predictions marked as uncertain.
    """

    labels: tuple[str, ...]
    has_absent: bool = False
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    skipped: int = 0
    uncertain: int = 0
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
        best = self._telling.setdefault((one.context, one.label), [])
        entry = (one.probability, one.text[:_LONGEST])
        if not any(text == entry[1] for _, text in best):
            (heapq.heappush if len(best) < TELLING else heapq.heappushpop)(best, entry)

    @property
    def total(self) -> int:
        """Number of predictions."""
        return sum(counts.total() for counts in self.counts.values())

    def telling(self, context: str, label: str) -> list[tuple[float, str]]:
        """Returns (probability, sentence) for the most probable predictions of a label, highest probability first.

        There are at most TELLING sentences. They are distinct, and truncated to 400 characters.

        Args:
            context: name of the context.
            label: the predicted label.
        """
        return sorted(self._telling.get((context, label), ()), reverse=True)


def summarize(path: Path, form: PredictionFormat) -> Summary:
    """Reads a file of predictions, line by line, and returns its summary.

    Args:
        path: the file.
        form: format of the file.
    """
    summary = Summary(form.task.labels, form.task.has_absent)
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
            label = found["label"] or ""
            yield Prediction(
                found["text"] or "",
                form.task.context(found.get("target") or "", found["aspect"] or ""),
                label,
                (found["probabilities"] or {}).get(label, 0.0),
                found.get("certainty") == UNCERTAIN,
            )
        return
    for row in csv.DictReader(handle):
        yield Prediction(
            row["text"],
            form.task.context(row.get("target", ""), row["aspect"]),
            row["label"],
            float(row.get(f"p({row['label']})") or 0.0) if row["label"] else 0.0,
            row.get("certainty") == UNCERTAIN,
        )


def write_summary(path: Path, summary: Summary, source: str, unit: str = "text") -> None:
    """Writes the page as one HTML file that loads no other file.

    Args:
        path: path of the file.
        summary: the counts.
        source: name of the input, which the introduction of the page contains.
        unit: unit of a prediction: "text", "sentence" or "document".

    Raises:
        InputError: the file cannot be written.
    """
    lead = f"Predictions for {source}, written by qacg predict. This page loads nothing from elsewhere."
    sections = [_overview(summary, unit), _sentences(summary)]
    with atomic_write(path) as handle:
        handle.write(page_html("Summary of predictions", lead, sections, style=page_file("summary.css")))


def _overview(summary: Summary, unit: str) -> Section:
    section = Section("Aspects and labels")
    facts = [f"{counted(summary.total, 'prediction')}, one for each {unit} and aspect"]
    if summary.skipped:
        facts.append(f"{counted(summary.skipped, 'text was', 'texts were')} skipped, since a required cell was empty")
    if summary.uncertain:
        facts.append(counted(summary.uncertain, "of the predictions is uncertain", "of the predictions are uncertain"))
    section.text(f"{'; '.join(facts)}.")
    for context, counts in summary.counts.items():
        section.heading(context)
        if summary.has_absent:
            mentioned = counts.total() - counts[summary.labels[0]]
            verb = "has" if mentioned == 1 else "have"
            section.text(f"{mentioned:,} of {counted(counts.total(), unit)} {verb} an opinion on {context}.")
        section.markup(framed(_share_table(summary.labels, counts), f"shares of {context}"))
    section.text(READING, "note")
    return section


def _share_table(labels: Iterable[str], counts: Counter[str]) -> str:
    total, rows = counts.total(), []
    for label in labels:
        lower, upper = wilson_interval(counts[label], total)
        share, low, high = (f"{100 * value:.1f}" for value in (counts[label] / total, lower, upper))
        whisker = f"left:{low}%;width:{100 * (upper - lower):.1f}%"
        bar = (
            f'<span class="bar" aria-hidden="true"><span style="width:{share}%"></span><i style="{whisker}"></i></span>'
        )
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in (f"{counts[label]:,}", share, f"{low}–{high}"))
        rows.append(f'<tr><th scope="row">{html.escape(label)}</th>{numbers}<td>{bar}</td></tr>')
    columns = ("count", "share in %", "interval in %")
    titles = "".join(f'<th scope="col" class="number">{title}</th>' for title in columns)
    head = f'<th scope="col">label</th>{titles}<th scope="col"><span class="hidden">bar</span></th>'
    body = "\n".join(rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _sentences(summary: Summary) -> Section:
    section = Section("Example sentences")
    labels = summary.labels[1:] if summary.has_absent else summary.labels
    without = f" except {summary.labels[0]}" if summary.has_absent else ""
    section.text(f"Sentences with the highest probabilities of each label{without}.")
    for context in summary.counts:
        found = {label: sentences for label in labels if (sentences := summary.telling(context, label))}
        if found:
            section.heading(context)
        for label, sentences in found.items():
            section.markup(f"<h4>{html.escape(label)}</h4>")
            for probability, text in sentences:
                section.quote(f"{text} ({probability:.2f})")
    return section
