"""One progress bar for a whole training run: steps, loss, and the figure of the latest evaluation."""

from __future__ import annotations

import sys

from transformers import TrainerCallback


class StepBar(TrainerCallback):
    """Shows training on stderr.

    Args:
        metric: the name, without `eval_`, of the figure that is shown beside the loss.
        split: on which it is taken.
    """

    def __init__(self, metric: str, split: str):
        self.metric, self.split = metric, split
        self.bar = None
        self.shown: dict[str, str] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        from tqdm import tqdm

        # In a log file every update is a line of its own: one every five seconds is enough there.
        interval = 0.1 if sys.stderr.isatty() else 5.0
        self.bar = tqdm(
            total=state.max_steps, initial=state.global_step, desc="training", unit="step", mininterval=interval
        )

    def on_step_end(self, args, state, control, **kwargs):
        self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self._show("loss", f"{logs['loss']:.3f}")

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        value = (metrics or {}).get(f"eval_{self.metric}")
        if value is not None:
            self._show(f"{self.split} {self.metric.replace('_', ' ')}", f"{value:.1%}")

    def on_train_end(self, args, state, control, **kwargs):
        self.bar.close()

    def _show(self, name: str, value: str) -> None:
        self.shown[name] = value
        self.bar.set_postfix(self.shown, refresh=False)
