"""Doubtful labels found by cross-validation: for each fold, the model is trained on the rows of the other folds."""

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
    """Returns the doubtful labels of the training rows, most doubtful first.

    Each row is predicted by a model that was trained without it. All models are trained with the same dev rows. Each
    model is deleted after its predictions.

    Args:
        dataset: the data set; it has the splits train and dev.
        options: options of every training.
        say: called with a line at the start of each training, and with the log lines of the training.

    Raises:
        InputError: the options or the data cannot be used; the message has the reason.
    """
    rows = list(dataset.splits["train"])
    folds = fold_numbers(rows, FOLDS)
    found = np.zeros((len(rows), len(dataset.task.labels)))
    for fold in range(FOLDS):
        say(f"training {fold + 1} of {FOLDS}, to find doubtful labels")
        kept = [row for row, one in zip(rows, folds) if one != fold]
        held = [row for row, one in zip(rows, folds) if one == fold]
        splits = {"train": kept, "dev": dataset.splits["dev"]}
        files = {name: dataset.files[name] for name in splits}
        part = replace(dataset, splits=splits, files=files)
        with TemporaryDirectory() as folder:
            trained = train(part, Path(folder) / "model", options, say=say)
            found[folds == fold] = trained.probabilities(held)
    return find_doubts([row.label or 0 for row in rows], found)
