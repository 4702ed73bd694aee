"""Figures of real runs as rows: one line of JSON per seed, with all that is needed to judge it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qacg_models.backbones import TITLES


def row_of(record: dict) -> dict:
    """The row of a training record."""
    options = record["options"]
    begun = options["from_checkpoint"]
    kept = ("metrics", "majority", "selected", "collapsed_steps", "overlap", "padding", "steps", "seconds")
    return {
        "task": record["task"]["name"],
        "backbone": TITLES[options["model"]],
        "pretrained": None if begun is None else "/".join(Path(begun).parts[-2:]),
        "protocol": options["protocol"],
        "seed": options["seed"],
        **{name: record[name] for name in kept},
        "data": {split: part["sha256"] for split, part in record["data"].items()},
        "options": {name: value for name, value in options.items() if name not in ("from_checkpoint", "tokenizer")},
        **{name: record[name] for name in ("versions", "machine", "commit", "written")},
    }


def append_rows(folder: Path, records: Sequence[dict]) -> Path:
    """Appends the rows of several seeds of one run to the folder's file for their task, backbone and protocol."""
    rows = [row_of(record) for record in records]
    folder.mkdir(parents=True, exist_ok=True)
    first = rows[0]
    path = folder / f"{first['task']}-{records[0]['options']['model']}-{first['protocol']}.jsonl"
    with path.open("a", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    return path
