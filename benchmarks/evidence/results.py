"""Stored results: a file with the metrics of a training run, and one with its scores for every test example."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from qacg_models.utils.atomic_files import atomic_write, atomic_write_bytes

from benchmarks.evidence.study import Trial

METRICS, SCORES = ".json", ".npy"


@dataclass(frozen=True)
class Result:
    """A finished training run.

    Attributes:
        trial: the training run.
        record: its metrics, as `qacg train --rows` writes them.
        scores: logarithms of probabilities, float16 (test examples, classes); None for a search.
        processor_seconds: CPU time in seconds; None if the run was interrupted and resumed.
        gates: statistics of its quasi-attention map on dev, from `gate_statistics`; None for a search and for a model
            without that map.
    """

    trial: Trial
    record: dict
    scores: np.ndarray | None = None
    processor_seconds: float | None = None
    gates: list[dict] | None = None

    @property
    def dev(self) -> float:
        """The metric on dev by which the run selected its weights."""
        return self.record["selected"]["value"]

    @property
    def processor(self) -> str:
        """The name of the CPU that the run was trained on."""
        return self.record["machine"]["cpu"]["model"]


def as_scores(probabilities: np.ndarray) -> np.ndarray:
    """Converts probabilities to float16 logarithms, which keep the order of values that float16 would round to 0."""
    return np.log(np.maximum(probabilities, 1e-20)).astype(np.float16)


def store(folder: Path, result: Result) -> None:
    """Writes the files of a training run. The metrics come last, because their file marks the run as complete."""
    folder.mkdir(parents=True, exist_ok=True)
    if result.scores is not None:
        with atomic_write_bytes(folder / f"{result.trial.name}{SCORES}") as handle:
            np.save(handle, result.scores)
    with atomic_write(folder / f"{result.trial.name}{METRICS}") as handle:
        plain = {name: getattr(result, name) for name in ("record", "processor_seconds", "gates")}
        json.dump({"trial": asdict(result.trial), **plain}, handle, allow_nan=False)
        handle.write("\n")


def load(folder: Path) -> dict[str, Result]:
    """Reads the results of all finished training runs in a folder, by name."""
    found = {}
    for path in sorted(folder.glob(f"*{METRICS}")):
        content = json.loads(path.read_text(encoding="utf-8"))
        scores = path.with_suffix(SCORES)
        trial = Trial(**content["trial"])
        stored = np.load(scores) if scores.exists() else None
        found[trial.name] = Result(trial, content["record"], stored, content["processor_seconds"], content.get("gates"))
    return found
