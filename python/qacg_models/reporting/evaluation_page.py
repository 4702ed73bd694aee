"""The page of `qacg evaluate --report`: metrics, and how far the probabilities may be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qacg_models.metrics import Metrics
from qacg_models.reporting.confidence import DEFINITION, Confidence
from qacg_models.reporting.html_report import Report, Section
from qacg_models.reporting.tables import metric_cells, undefined_notes
from qacg_models.runs.calibration import VALIDITY

READING = (
    "A bar shows how many of the answers of about that confidence are right. Where it ends at the dashed line a"
    " probability means what it says; below the line the model is surer than it should be. The dot stands at the mean"
    " confidence of its rows."
)


def begin_page(folder: Path) -> Report:
    """The page, before there is anything on it.

    Raises:
        InputError: the folder holds something else.
    """
    lead = "Written by qacg evaluate. Nothing on this page is loaded from elsewhere."
    return Report(folder, "How good the model is, and how far it can be believed", lead)


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
        described: the rows, in a line.
        results, bounds: metrics and their intervals by row of the table.
        notes: lines under the table.
    """
    section = page.section("Metrics")
    section.text(described)
    section.table("metrics", metric_cells(results, bounds))
    for note in (*undefined_notes(results), *notes):
        section.text(note, "note")
    add_confidence(page, page.section("Confidence"), confidence)
    return page.write()


def add_confidence(page: Report, section: Section, confidence: Confidence) -> None:
    """Calibration error, picture, and accuracy by coverage."""
    section.text(confidence.note())
    page.figure(section, "reliability", confidence.figure(), confidence.tells(), READING)
    section.text("What is left, and how right it is, where answers of less confidence are put aside:")
    section.table("coverage", confidence.cells())
    section.text(DEFINITION, "note")
    section.text(VALIDITY, "note")
    section.data["calibration"] = confidence.to_json()
