"""What watches a training: when it ends, and whether the model predicts one label for every row."""

from __future__ import annotations

from collections.abc import Callable

from transformers import TrainerCallback, TrainerState

from qacg_models.errors import InputError
from qacg_models.utils.distributed import on_main, world_size
from qacg_models.utils.progress import beside_bars

CLASSES_SEEN = "predicted_classes"


# Steps between looks at the clock, on which several processes have to agree.
STEPS_BETWEEN_LOOKS = 10


def as_good_and_surer(metrics: dict[str, float], name: str, state: TrainerState) -> bool:
    """Whether an evaluation has the metric of the best one and a lower loss: dev of small data is soon without fault.

    Args:
        name: of the metric by which evaluations are compared.
        state: before it counts this evaluation as the best.
    """
    if state.best_metric is None or metrics[f"eval_{name}"] != state.best_metric:
        return False
    before = [entry["eval_loss"] for entry in _evaluations(state) if entry["step"] == state.best_global_step]
    return bool(before) and metrics["eval_loss"] < before[0]


def _evaluations(state: TrainerState) -> list[dict]:
    """The evaluations in the log, which checkpoints keep."""
    return [entry for entry in state.log_history if f"eval_{CLASSES_SEEN}" in entry]


class EarlyStopping(TrainerCallback):
    """Stops after `patience` evaluations since the first that was as good as the best.

    One that is as good and surer does not count as a rise: where dev is without fault, its loss may fall for hours. It
    counts in the log of evaluations, so that a run that goes on counts on.
    """

    def __init__(self, patience: int):
        self.patience = patience

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        name = f"eval_{args.metric_for_best_model}"
        found = {entry["step"]: entry[name] for entry in _evaluations(state)}
        # best_global_step is set after this call; the evaluation that may be the best one is not counted yet.
        if state.best_metric is None or metrics[name] > state.best_metric:
            return
        first = min(step for step, value in found.items() if value == state.best_metric)
        if sum(step > first for step in found) >= self.patience:
            control.should_training_stop = True


class Budget(TrainerCallback):
    """Ends training when its minutes are over, after an evaluation of the last step.

    Args:
        minutes: of training, those before a checkpoint from which it goes on included.
        seconds: how long training has taken.

    Attributes:
        over: whether they are.
    """

    def __init__(self, minutes: float, seconds: Callable[[], float]):
        self.minutes, self.seconds, self.over = minutes, seconds, False

    def on_step_end(self, args, state, control, **kwargs):
        if world_size() > 1 and state.global_step % STEPS_BETWEEN_LOOKS:
            return
        if on_main(lambda: self.seconds() >= 60 * self.minutes):
            self.over = control.should_evaluate = control.should_training_stop = True


class CollapseWarning(TrainerCallback):
    """Says when the model predicts one class for every row: the fault that looks like an accuracy of 84 %.

    Args:
        labels: names of the classes.
        say: receives the warning, once for every time that the model falls into it.
    """

    def __init__(self, labels: tuple[str, ...], split: str, say: Callable[[str], None]):
        self.labels, self.split, self.say = labels, split, say
        self.collapsed = False

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        collapsed = metrics[f"eval_{CLASSES_SEEN}"] == 1
        if collapsed and not self.collapsed and state.is_world_process_zero:
            label = self.labels[int(metrics["eval_most_predicted"])]
            with beside_bars():
                self.say(
                    f"collapse at step {state.global_step}: {label!r} is predicted for every row of {self.split}. Early"
                    " in training that may pass; if it stays, the learning rate is too high, or balance too low"
                )
        self.collapsed = collapsed


def collapsed_steps(history: list[dict]) -> list[int]:
    """The steps of a log at which the model predicted one class only."""
    return [entry["step"] for entry in history if entry.get(f"eval_{CLASSES_SEEN}") == 1]


class FinalEvaluation(TrainerCallback):
    """Evaluates after the last step, wherever the regular evaluations fall."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            control.should_evaluate = True


def tensorboard(folder: str) -> TrainerCallback:
    """Writes the log as TensorBoard reads it.

    Raises:
        InputError: as for `summary_writer`.
    """
    from transformers.integrations import TensorBoardCallback

    return TensorBoardCallback(summary_writer()(folder))


def summary_writer() -> type:
    """The class that writes TensorBoard's files.

    Raises:
        InputError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            f"tensorboard: cannot be used ({error}); pip install tensorboard, the extra of that name, or leave it out"
        ) from None
    return SummaryWriter
