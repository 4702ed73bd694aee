"""The page of `qacg evaluate --report`: metrics, scores by label and aspect, errors, and calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qacg_models.metrics import Metrics
from qacg_models.reporting.breakdown import Breakdown
from qacg_models.reporting.confidence import DEFINITION, Confidence
from qacg_models.reporting.html_report import Report, Section
from qacg_models.reporting.tables import metric_cells, undefined_notes
from qacg_models.runs.calibration import VALIDITY

READING = (
    "The height of an upper bar is the accuracy of the predictions in a range of confidence; the dot marks their mean"
    " confidence. On the dashed line accuracy equals confidence; a dot below the line means that the model is"
    " overconfident. The lower bars are shares of the rows."
)


def begin_page(folder: Path) -> Report:
    """Returns an empty page, which `write_page` fills and writes to `folder`.

    Raises:
        InputError: `folder` is a file, or has files that are not part of a report.
    """
    lead = "Written by qacg evaluate. This page loads nothing from elsewhere."
    return Report(folder, "Evaluation: metrics and calibration", lead)


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation.

    Attributes:
        described: one line with the numbers of sentences, groups and rows, and the share of each label.
        results: metrics of the model and its baselines, by title of the model or baseline.
        bounds: lower and upper bounds of confidence intervals, by title and name of the metric.
        notes: lines below the table of metrics.
        breakdown: scores by label and aspect, and errors.
        confidence: calibration of the model.
    """

    described: str
    results: Mapping[str, Metrics]
    bounds: Mapping[str, Mapping[str, tuple[float, float]]]
    notes: tuple[str, ...]
    breakdown: Breakdown
    confidence: Confidence


def write_page(page: Report, evaluation: Evaluation) -> Path:
    """Fills the page that `begin_page` returned, writes it, and returns its path.

    Raises:
        InputError: a file cannot be written, or the folder now has files that are not part of a report.
        OSError: the folder cannot be created or moved into place; an earlier report is unchanged.
    """
    section = page.section("Metrics")
    section.text(evaluation.described)
    section.table("metrics", metric_cells(evaluation.results, evaluation.bounds))
    for note in (*undefined_notes(evaluation.results), *evaluation.notes):
        section.text(note, "note")
    _add_breakdown(page.section("Labels, aspects and errors"), evaluation.breakdown)
    add_confidence(page, page.section("Confidence"), evaluation.confidence)
    return page.write()


def _add_breakdown(section: Section, breakdown: Breakdown) -> None:
    section.heading("Scores by label")
    section.table("labels", breakdown.label_cells())
    section.heading("Scores by aspect")
    section.table("aspects", breakdown.aspect_cells())
    section.heading("Confusion matrix")
    section.text("Rows: true label. Columns: predicted label.", "note")
    section.table("confusion", breakdown.confusion_cells())
    section.heading("Most confident errors")
    section.text(f"{len(breakdown.errors)} of {breakdown.error_count} errors, most confident first.")
    if breakdown.errors:
        section.table("errors", breakdown.error_cells())


def add_confidence(page: Report, section: Section, confidence: Confidence) -> None:
    """Adds calibration error, reliability diagram, and accuracy by coverage to `section` of `page`."""
    section.text(confidence.note())
    page.figure(section, "reliability", confidence.figure(), confidence.caption(), READING)
    section.text("Coverage and accuracy of the predictions whose confidence is at least a threshold:")
    section.table("coverage", confidence.cells())
    section.text(DEFINITION, "note")
    section.text(VALIDITY, "note")
    section.data["calibration"] = confidence.to_json()
