"""Doubtful labels by the model: it is trained once for each fold, on the rows of the other folds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from qacg_models.data import Dataset
from qacg_models.metrics.doubts import Doubt, find_doubts
from qacg_models.metrics.tfidf import fold_numbers
from qacg_models.runs.options import TrainingOptions
from qacg_models.training import train

FOLDS = 3


def model_doubts(dataset: Dataset, options: TrainingOptions, say: Callable[[str], None]) -> list[Doubt]:
    """Doubtful labels of the training rows by the probabilities of trained models.

    Dev selects the checkpoint of every training.

    Args:
        dataset: with the splits train and dev.
        options: of the trainings.
        say: receives a line for each training, and its log lines.

    Raises:
        InputError: as for `qacg_models.training.train`.
    """
    rows = list(dataset.splits["train"])
    folds = fold_numbers(rows, FOLDS)
    found = np.zeros((len(rows), len(dataset.task.labels)))
    for fold in range(FOLDS):
        say(f"training {fold + 1} of {FOLDS}, for the doubts")
        kept = [row for row, one in zip(rows, folds) if one != fold]
        held = [row for row, one in zip(rows, folds) if one == fold]
        splits = {"train": kept, "dev": dataset.splits["dev"]}
        files = {name: dataset.files[name] for name in splits}
        part = replace(dataset, splits=splits, files=files, overlap={})
        with TemporaryDirectory() as folder:
            trained = train(part, Path(folder) / "model", options, say=say)
            found[folds == fold] = trained.probabilities(held)
    return find_doubts([row.label or 0 for row in rows], found)
