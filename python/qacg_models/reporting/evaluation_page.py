"""The page of `qacg evaluate --report`: metrics and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qacg_models.metrics import Metrics
from qacg_models.reporting.confidence import DEFINITION, Confidence
from qacg_models.reporting.html_report import Report, Section
from qacg_models.reporting.tables import metric_cells, undefined_notes
from qacg_models.runs.calibration import VALIDITY

READING = (
    "A bar is the accuracy of the predictions in its range of confidence; a dot marks their mean confidence. A bar that"
    " ends at the dashed line is well calibrated; below the line the model is overconfident."
)


def begin_page(folder: Path) -> Report:
    """An empty page.

    Raises:
        InputError: the folder has other files.
    """
    lead = "Written by qacg evaluate. This page loads nothing from elsewhere."
    return Report(folder, "Evaluation: metrics and calibration", lead)


def write_page(
    page: Report,
    described: str,
    results: Mapping[str, Metrics],
    bounds: Mapping[str, Mapping[str, tuple[float, float]]],
    notes: Sequence[str],
    confidence: Confidence,
) -> Path:
    """Fills and writes the page; returns its path.

    Args:
        page: an empty page.
        described: one line about the rows.
        results: metrics by row of the table.
        bounds: intervals of the metrics by row of the table.
        notes: lines below the table.
        confidence: calibration of the model.
    """
    section = page.section("Metrics")
    section.text(described)
    section.table("metrics", metric_cells(results, bounds))
    for note in (*undefined_notes(results), *notes):
        section.text(note, "note")
    add_confidence(page, page.section("Confidence"), confidence)
    return page.write()


def add_confidence(page: Report, section: Section, confidence: Confidence) -> None:
    """Adds calibration error, reliability diagram, and accuracy by coverage."""
    section.text(confidence.note())
    page.figure(section, "reliability", confidence.figure(), confidence.caption(), READING)
    section.text("Coverage and accuracy of the predictions whose confidence reaches a threshold:")
    section.table("coverage", confidence.cells())
    section.text(DEFINITION, "note")
    section.text(VALIDITY, "note")
    section.data["calibration"] = confidence.to_json()
