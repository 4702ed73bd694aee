"""The progress bar of a training run."""

from __future__ import annotations

from transformers import TrainerCallback

from qacg_models.utils.progress import Bar, progress_bar

MANY_BATCHES = 100  # of an evaluation that shows how far it is


class StepBar(TrainerCallback):
    """Shows training on stderr.

    Args:
        limit: steps that training takes at most; None where patience or the minutes end it.
        metric: the name, without `eval_`, of the figure that is shown beside the loss.
        split: on which it is taken.
    """

    def __init__(self, limit: int | None, metric: str, split: str):
        self.limit, self.metric, self.split = limit, metric, split
        self.bar: Bar | None = None
        self.evaluation: Bar | None = None
        self.shown: dict[str, str] = {}

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
        """Ends the line of the bar, also where training failed, so that what is said of that has its own."""
        for bar in (self.evaluation, self.bar):
            if bar is not None:
                bar.close()

    def _show(self, name: str, value: str) -> None:
        self.shown[name] = value
        self.bar.set_postfix(self.shown, refresh=False)
