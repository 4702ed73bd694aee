"""Stored results: a file with metric and machine of a training run, and one with its scores for every test row."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from qacg_models.utils.atomic_files import atomic_write, atomic_write_bytes

from benchmarks.many_aspects.arms import Trial

FACTS, SCORES = ".json", ".npy"


@dataclass(frozen=True)
class Result:
    """A finished training run.

    Attributes:
        trial: the training run.
        dev: the selection metric on dev, after the last step.
        seconds: CPU time of the run.
        machine: versions, commit and machine.
        scores: logarithms of probabilities, float16 (test rows, classes); None for a search.
    """

    trial: Trial
    dev: float
    seconds: float
    machine: dict
    scores: np.ndarray | None = None


def store(folder: Path, result: Result) -> None:
    """Writes the files of a training run; last the JSON file, because it marks the run as complete."""
    folder.mkdir(parents=True, exist_ok=True)
    if result.scores is not None:
        with atomic_write_bytes(folder / f"{result.trial.name}{SCORES}") as handle:
            np.save(handle, result.scores)
    with atomic_write(folder / f"{result.trial.name}{FACTS}") as handle:
        facts = {name: getattr(result, name) for name in ("dev", "seconds", "machine")}
        json.dump({"trial": asdict(result.trial), **facts}, handle, allow_nan=False)
        handle.write("\n")


def load(folder: Path) -> dict[str, Result]:
    """Reads the results of all finished training runs in a folder, by name."""
    found = {}
    for path in sorted(folder.glob(f"*_*_*_*{FACTS}")):
        content = json.loads(path.read_text(encoding="utf-8"))
        trial, scores = Trial(**content.pop("trial")), path.with_suffix(SCORES)
        found[trial.name] = Result(trial, **content, scores=np.load(scores) if scores.exists() else None)
    return found
