"""Metrics and callbacks of the Trainer: early stopping, time limit, a warning, progress bar, TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from transformers import TrainerCallback, TrainerState

from qacg_models.data import Example
from qacg_models.data.task import Task
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import probabilities_of
from qacg_models.metrics import judge
from qacg_models.utils.distributed import run_on_main, world_size
from qacg_models.utils.progress import pause_bars, progress_bar

if TYPE_CHECKING:
    from tqdm import tqdm
    from transformers import EvalPrediction

PREDICTED_CLASSES = "predicted_classes"
STEPS_BETWEEN_CHECKS = 10  # steps between checks of the time limit with several processes, which have to agree
MANY_BATCHES = 100  # minimum number of batches of an evaluation that has its own progress bar


class EvaluationMetrics:
    """Computes the metrics of the task, the number of distinct predicted labels, and the most predicted label.

    Args:
        task: the task, which selects the metrics.
        rows: the evaluated rows, in the order of the evaluation.
    """

    def __init__(self, task: Task, rows: Sequence[Example]):
        self.task, self.rows = task, rows

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """Returns the metrics by name, with `predicted_classes` (a count) and `most_predicted` (a class index).

        Raises:
            RuntimeError: the labels of `prediction` are not those of the rows in their order.
        """
        if prediction.label_ids.tolist() != [row.label for row in self.rows]:
            raise RuntimeError("prediction: expected the labels of the rows in their order, got other labels")
        probabilities = probabilities_of(prediction.predictions)
        metrics = judge(self.task, self.rows, probabilities)
        counts = np.bincount(probabilities.argmax(axis=1))
        return {name: getattr(metrics, name) for name in metrics.TITLES} | {
            PREDICTED_CLASSES: int((counts > 0).sum()),
            "most_predicted": int(counts.argmax()),
        }


def is_tie_with_lower_loss(metrics: dict[str, float], name: str, state: TrainerState) -> bool:
    """Returns whether an evaluation equals the best one in the metric and has a lower loss.

    The loss decides between equal evaluations because small dev sets often reach a metric of 100 %.

    Args:
        metrics: metrics of the evaluation, with the prefix "eval_".
        name: name of the metric by which evaluations are compared, without the prefix.
        state: state of the Trainer, before it has recorded this evaluation.
    """
    if state.best_metric is None or metrics[f"eval_{name}"] != state.best_metric:
        return False
    before = [entry["eval_loss"] for entry in evaluations(state) if entry["step"] == state.best_global_step]
    return bool(before) and metrics["eval_loss"] < before[0]


def evaluations(state: TrainerState) -> list[dict]:
    """Returns the evaluations in the Trainer's log, which checkpoints store."""
    return [entry for entry in state.log_history if f"eval_{PREDICTED_CLASSES}" in entry]


class EarlyStopping(TrainerCallback):
    """Stops training after `patience` evaluations that are no better than the best one.

    A tie with a lower loss is not an improvement, because the loss can decrease for hours after the metric on dev has
    reached 100 %. The evaluations are counted in the Trainer's log, which a resumed run continues.

    Args:
        patience: number of evaluations since the first one with the best metric, at least 1.
    """

    def __init__(self, patience: int):
        self.patience = patience

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        name = f"eval_{args.metric_for_best_model}"
        found = {entry["step"]: entry[name] for entry in evaluations(state)}
        # best_metric is updated after this call: here a new best value is still above it.
        if state.best_metric is None or metrics[name] > state.best_metric:
            return
        first = min(step for step, value in found.items() if value == state.best_metric)
        if sum(step > first for step in found) >= self.patience:
            control.should_training_stop = True


class TimeLimit(TrainerCallback):
    """When the time limit is reached, evaluates the model and stops training.

    Args:
        minutes: time limit in minutes, including the time before the checkpoint of a resumed run.
        seconds: function that returns the duration of training up to now, in seconds.

    Attributes:
        reached: whether the time limit was reached.
    """

    def __init__(self, minutes: float, seconds: Callable[[], float]):
        self.minutes, self.seconds, self.reached = minutes, seconds, False

    def on_step_end(self, args, state, control, **kwargs):
        if world_size() > 1 and state.global_step % STEPS_BETWEEN_CHECKS:
            return
        if run_on_main(lambda: self.seconds() >= 60 * self.minutes):
            self.reached = control.should_evaluate = control.should_training_stop = True


class CollapseWarning(TrainerCallback):
    """Warns when the model predicts one label for every row.

    On SentiHood, the label `None` for every row still gives an accuracy of 84 %.

    Args:
        labels: names of the classes.
        split: name of the split on which the model is evaluated.
        say: called with the warning, in the main process only. Consecutive evaluations with one label give one warning.
    """

    def __init__(self, labels: tuple[str, ...], split: str, say: Callable[[str], None]):
        self.labels, self.split, self.say = labels, split, say
        self.collapsed = False

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        collapsed = metrics[f"eval_{PREDICTED_CLASSES}"] == 1
        if collapsed and not self.collapsed and state.is_world_process_zero:
            label = self.labels[int(metrics["eval_most_predicted"])]
            with pause_bars():
                self.say(
                    f"collapse at step {state.global_step}: {label!r} is predicted for every row of {self.split}. This"
                    " can be temporary; if it lasts, lower learning_rate or increase balance"
                )
        self.collapsed = collapsed


def collapsed_steps(history: list[dict]) -> list[int]:
    """Returns the steps in the Trainer's log at which the model predicted one label for every row."""
    return [entry["step"] for entry in history if entry.get(f"eval_{PREDICTED_CLASSES}") == 1]


class FinalEvaluation(TrainerCallback):
    """Evaluates after the last step, even if no regular evaluation is due."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            control.should_evaluate = True


class StepBar(TrainerCallback):
    """Shows the progress of training on stderr.

    Args:
        limit: maximum number of steps; None if only patience or the time limit ends training.
        metric: name of the metric that is shown beside the loss, without the prefix "eval_".
        split: split on which the metric is computed.
    """

    def __init__(self, limit: int | None, metric: str, split: str):
        self.limit, self.metric, self.split = limit, metric, split
        self.bar: tqdm | None = None
        self.evaluation: tqdm | None = None
        self.values: dict[str, str] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        self.bar = progress_bar(self.limit, "training", "step", done=state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self._show("loss", f"{logs['loss']:.3f}")

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if self.evaluation is not None:
            self.evaluation.close()
            self.evaluation = None
        value = (metrics or {}).get(f"eval_{self.metric}")
        if value is not None:
            self._show(f"{self.split} {self.metric.replace('_', ' ')}", f"{value:.1%}")

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        if self.evaluation is None and len(eval_dataloader) >= MANY_BATCHES:
            self.evaluation = progress_bar(len(eval_dataloader), f"evaluating on {self.split}", "batch")
        if self.evaluation is not None:
            self.evaluation.update()

    def on_train_end(self, args, state, control, **kwargs):
        self.close()

    def close(self) -> None:
        """Closes the bars, so that an error message begins on a new line; can be called repeatedly."""
        for bar in (self.evaluation, self.bar):
            if bar is not None:
                bar.close()

    def _show(self, name: str, value: str) -> None:
        self.values[name] = value
        self.bar.set_postfix(self.values, refresh=False)


def tensorboard(folder: str) -> TrainerCallback:
    """Returns a callback that writes the log for TensorBoard to `folder`.

    Raises:
        InputError: TensorBoard is not installed.
    """
    from transformers.integrations import TensorBoardCallback

    return TensorBoardCallback(summary_writer()(folder))


def summary_writer() -> type:
    """Returns the class that writes TensorBoard's files.

    Raises:
        InputError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            f"tensorboard: cannot be used ({error}). Install the extra `tensorboard` (pip install tensorboard), or"
            " omit the option."
        ) from None
    return SummaryWriter
