"""What is kept of a training: a file with its figures, and one with what it said of every row of the test split."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from qacg_models.utils.atomic_files import atomic_write, atomic_write_bytes

from benchmarks.evidence.plan import Trial

FIGURES, SCORES = ".json", ".npy"


@dataclass(frozen=True)
class Result:
    """A training that came to its end.

    Attributes:
        trial: which it was.
        row: its figures, as `qacg train --rows` writes them.
        scores: (rows of test, classes) float16 logarithms of probabilities; None for a search.
        processor_seconds: what its process took of one core, which other work on the machine does not lengthen; None
            for a training that was ended and gone on with.
        gates: what becomes of its second map on dev, see `gates.py`; None for a search and for a model without one.
    """

    trial: Trial
    row: dict
    scores: np.ndarray | None = None
    processor_seconds: float | None = None
    gates: list[dict] | None = None

    @property
    def dev(self) -> float:
        """The value on dev by which its weights were chosen."""
        return self.row["selected"]["value"]

    @property
    def processor(self) -> str:
        """What it was trained on."""
        return self.row["machine"]["cpu"]["model"]


def as_scores(probabilities: np.ndarray) -> np.ndarray:
    """Probabilities as they are kept: float16 logarithms rank as they do where float16 itself would round to 0 or 1."""
    return np.log(np.maximum(probabilities, 1e-20)).astype(np.float16)


def keep(folder: Path, result: Result) -> None:
    """Writes the files of a training, the one with the figures last, which says that all is there."""
    folder.mkdir(parents=True, exist_ok=True)
    if result.scores is not None:
        with atomic_write_bytes(folder / f"{result.trial.name}{SCORES}") as handle:
            np.save(handle, result.scores)
    with atomic_write(folder / f"{result.trial.name}{FIGURES}") as handle:
        plain = {name: getattr(result, name) for name in ("row", "processor_seconds", "gates")}
        json.dump({"trial": asdict(result.trial), **plain}, handle, allow_nan=False)
        handle.write("\n")


def kept(folder: Path) -> dict[str, Result]:
    """All trainings of a folder, by their name."""
    found = {}
    for path in sorted(folder.glob(f"*{FIGURES}")):
        content = json.loads(path.read_text(encoding="utf-8"))
        scores = path.with_suffix(SCORES)
        trial = Trial(**content["trial"])
        said = np.load(scores) if scores.exists() else None
        found[trial.name] = Result(trial, content["row"], said, content["processor_seconds"], content.get("gates"))
    return found
