"""Predictions that are committed, one file a chip, and how measured rows compare. Imports no Triton.

A file's first line says where its predictions come from; then comes what `python -m benchmarks.static --json` prints.
They are no measurements and are never rows of `benchmarks.rows`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import rows
from benchmarks.cases.case import FULL, Shape

FOLDER = Path(__file__).resolve().parents[1] / "results" / "static"
_BACKEND, _DTYPE = "triton", "bfloat16"


def load(architecture: str) -> list[dict[str, object]]:
    """The records of a chip, that of their origin first; none for a chip without a file."""
    path = FOLDER / f"{architecture}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def beside(measured: Sequence[rows.Row], architecture: str) -> list[str]:
    """A line for each measured time of a call that has a prediction, the furthest off last."""
    calls = {
        (Shape(*record["shape"]), record["pass"]): record["predicted_ms"]
        for record in load(architecture)
        if "shape" in record
    }
    found = []
    for row in measured:
        if not isinstance(row, rows.TimeRow) or (row.provider, row.dtype) != (_BACKEND, _DTYPE):
            continue
        predicted = calls.get((row.case.shape, row.mode))
        if predicted is None or row.dropout or row.lengths != FULL:
            continue
        ratio = row.median_ms / predicted
        found.append(
            (max(ratio, 1 / ratio), f"{row.case}: measured {row.median_ms:.4g} ms, predicted {predicted:.4g} ms")
        )
    if not found:
        return [f"no prediction for {architecture} to put beside these rows"]
    worst = max(off for off, _ in found)
    return [*(line for _, line in sorted(found)), f"predicted without a GPU, off by a factor of at most {worst:.2f}"]
