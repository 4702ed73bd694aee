"""Stored results: a file with metric and machine of a training run, and one with its scores for every test row."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.evidence.results import METRICS, read_scores, write_files
from benchmarks.many_aspects.arms import Trial


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
    """Writes the files of a training run."""
    facts = {name: getattr(result, name) for name in ("dev", "seconds", "machine")}
    write_files(folder, result.trial.name, {"trial": asdict(result.trial), **facts}, result.scores)


def load(folder: Path) -> dict[str, Result]:
    """Reads the results of all finished training runs in a folder, by name."""
    found = {}
    for path in sorted(folder.glob(f"*_*_*_*{METRICS}")):
        content = json.loads(path.read_text(encoding="utf-8"))
        trial = Trial(**content.pop("trial"))
        found[trial.name] = Result(trial, **content, scores=read_scores(path))
    return found
