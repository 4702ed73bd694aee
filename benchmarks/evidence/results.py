"""Stored results: a file with the metrics of a training run, and one with its scores for every test example."""

import json
from collections.abc import Collection, Iterable
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
    """Converts probabilities to their logarithms in float16.

    Probabilities that float16 would round to 0 keep their order as logarithms.
    """
    return np.log(np.maximum(probabilities, 1e-20)).astype(np.float16)


def store(folder: Path, result: Result) -> None:
    """Writes the files of a training run."""
    metrics = {name: getattr(result, name) for name in ("record", "processor_seconds", "gates")}
    write_files(folder, result.trial.name, {"trial": asdict(result.trial), **metrics}, result.scores)


def write_files(folder: Path, name: str, metrics: dict, scores: np.ndarray | None) -> None:
    """Writes the scores of a training run, if it has any, then its metrics.

    The metrics come last, because their file marks the run as complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if scores is not None:
        with atomic_write_bytes(folder / f"{name}{SCORES}") as handle:
            np.save(handle, scores)
    with atomic_write(folder / f"{name}{METRICS}") as handle:
        json.dump(metrics, handle, allow_nan=False)
        handle.write("\n")


def load(folder: Path) -> dict[str, Result]:
    """Reads the results of all finished training runs in a folder, by name."""
    found = {}
    for path in sorted(folder.glob(f"*{METRICS}")):
        content = json.loads(path.read_text(encoding="utf-8"))
        trial = Trial(**content.pop("trial"))
        found[trial.name] = Result(trial, **content, scores=read_scores(path))
    return found


def read_scores(path: Path) -> np.ndarray | None:
    """Reads the scores of a training run, given the path of its metrics; None for a search."""
    scores = path.with_suffix(SCORES)
    return np.load(scores) if scores.exists() else None


def require_known(only: Iterable[str] | None, known: Collection[str]) -> None:
    """Checks the names of `--only`.

    Raises:
        ValueError: a name is not in `known`.
    """
    for name in only or []:
        if name not in known:
            raise ValueError(f"--only: expected one of {', '.join(known)}, got {name!r}")
