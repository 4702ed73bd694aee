"""The metrics of an evaluation during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qacg_models.data import Example
from qacg_models.data.task import Task
from qacg_models.inference.trained_model import probabilities_of
from qacg_models.metrics import judge
from qacg_models.training.callbacks import PREDICTED_CLASSES

if TYPE_CHECKING:
    from transformers import EvalPrediction


class EvaluatedRows:
    """Judges logits given for `rows`: the task's metrics, and what shows a collapse."""

    def __init__(self, task: Task, rows: Sequence[Example]):
        self.task, self.rows = task, rows

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        if prediction.label_ids.tolist() != [row.label for row in self.rows]:
            raise RuntimeError("the Trainer evaluated the rows in another order than they were given")
        probabilities = probabilities_of(prediction.predictions)
        metrics = judge(self.task, self.rows, probabilities)
        counts = np.bincount(probabilities.argmax(axis=1))
        return {name: getattr(metrics, name) for name in metrics.TITLES} | {
            PREDICTED_CLASSES: int((counts > 0).sum()),
            "most_predicted": int(counts.argmax()),
        }
