"""Results of a model: shown beside the majority row, and compared with what training stored."""

from __future__ import annotations

from pathlib import Path

from .data import file_digest
from .metrics import SentiHoodMetrics
from .tables import metric_cells, text_table, undefined_notes

MODEL, MAJORITY = "QACG-BERT", "majority"


def stored_results(record: dict, split: str) -> dict[str, SentiHoodMetrics]:
    """What training stored for a split: the model and the majority row."""
    return {
        MODEL: SentiHoodMetrics.from_json(record["metrics"][split]),
        MAJORITY: SentiHoodMetrics.from_json(record["majority"][split]),
    }


def show(results: dict[str, SentiHoodMetrics]) -> str:
    """Results as a table for a terminal, with a note on every figure that could not be taken."""
    return "\n".join([text_table(*metric_cells(results)), *undefined_notes(results)])


def selection_note(record: dict) -> str:
    """Which checkpoint was kept, and by what."""
    selected = record["selected"]
    return (
        f"checkpoint of step {selected['step']} of {record['steps']}, chosen by"
        f" {selected['metric'].replace('_', ' ')} on {selected['split']} ({selected['value']:.1%})"
    )


def compare_with_stored(record: dict, split: str, path: Path, result: SentiHoodMetrics) -> str:
    """Whether a new evaluation gives the figures on record: a line that says so, or why it cannot be said."""
    if split not in record["metrics"]:
        return f"training stored no figures for {split}"
    if file_digest(path) != record["data"][split]["sha256"]:
        return f"{path} is not the file whose figures training stored"
    if result.to_json() == record["metrics"][split]:
        return "the same figures, to the last digit, as training stored"
    return (
        "not the figures that training stored; other versions, thread counts or attention round differently"
    )
