"""Figures of real runs as rows: one line of JSON per seed, with all that is needed to judge it but paths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qacg_models.models.auto import BACKBONES
from qacg_models.runs.record import TrainingRecord


def row_of(record: TrainingRecord) -> dict:
    """The row of a training record."""
    plain = record.to_json()
    options = plain["options"]
    begun, paths = options["from_checkpoint"], ("from_checkpoint", "tokenizer", "tensorboard")
    kept = ("metrics", "tfidf", "majority", "selected", "collapsed_steps", "overlap", "padding", "steps", "seconds")
    return {
        "task": record.task.name,
        "backbone": BACKBONES[record.options.model].title,
        "pretrained": None if begun is None else "/".join(Path(begun).parts[-2:]),
        "protocol": options["protocol"],
        "seed": options["seed"],
        **{name: plain[name] for name in kept},
        "data": {split: part.sha256 for split, part in record.data.items()},
        "options": {name: value for name, value in options.items() if name not in paths},
        **{name: plain[name] for name in ("versions", "machine", "commit", "written")},
    }


def append_rows(folder: Path, records: Sequence[TrainingRecord]) -> Path:
    """Appends the rows of several seeds of one run to the folder's file for their task, backbone and protocol.

    A row that is there already, as after a run that was gone on with, is not written again.
    """
    rows = [row_of(record) for record in records]
    folder.mkdir(parents=True, exist_ok=True)
    first = rows[0]
    path = folder / f"{first['task']}-{records[0].options.model}-{first['protocol']}.jsonl"
    lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows]
    there = set(path.read_text(encoding="utf-8").splitlines(keepends=True)) if path.exists() else set()
    with path.open("a", encoding="utf-8") as handle:
        handle.writelines(line for line in lines if line not in there)
    return path
