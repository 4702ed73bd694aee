"""Rows of learning curves: a training each, in a file that grows, and the table that is made of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from qacg_models.utils.atomic_files import atomic_write

FILE = "learning-curves.jsonl"
STARTS = ("scratch", "minilm")
NOT_YET = "not yet measured"
Key = tuple[str, int, str, int]


def key_of(row: dict) -> Key:
    """What tells trainings apart: the kind of text, sentences, what was begun from, and the seed."""
    return row["text"], row["sentences"], row["begun_from"], row["seed"]


def read(folder: Path) -> list[dict]:
    """The rows of a folder, none where it has no file."""
    path = folder / FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def append(folder: Path, row: dict) -> None:
    """Adds a row to the folder's file."""
    with (folder / FILE).open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(row, allow_nan=False) + "\n")


def replace_all(folder: Path, rows: Iterable[dict]) -> None:
    """Replaces the folder's file, whole or not at all."""
    with atomic_write(folder / FILE) as handle:
        handle.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def table(rows: Sequence[dict], kinds: Iterable[str], sizes: Sequence[int]) -> str:
    """Macro-F1 on the test split in per cent, mean and deviation over seeds, as Markdown.

    Minutes are of processors, which other work on the machine does not lengthen; a row that does not know them, of a
    training that was gone on with or an early one, has those of the clock.
    """
    header = ["text", "sentences", "TF-IDF", *(f"{start}{unit}" for start in STARTS for unit in ("", ", minutes"))]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for kind in kinds:
        for size in sizes:
            here = [row for row in rows if row["text"] == kind and row["sentences"] == size]
            by_seed = {row["seed"]: row["tfidf"]["test"]["macro_f1"] for row in here}
            cells = [kind, f"{size:,}", _spread(list(by_seed.values()), 100)]
            for start in STARTS:
                found = [row for row in here if row["begun_from"] == start]
                cells.append(_spread([row["metrics"]["test"]["macro_f1"] for row in found], 100))
                seconds = [row.get("processor_seconds") or row["seconds"] for row in found]
                cells.append(_spread(seconds, 1 / 60) if found else "")
            lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _spread(values: Sequence[float], scale: float) -> str:
    if not values:
        return NOT_YET
    mean = f"{scale * statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {scale * statistics.stdev(values):.1f} ({len(values)} seeds)"
