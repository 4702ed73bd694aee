"""Progress bars: of a whole training run, and of a file that is read."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from transformers import TrainerCallback

from qacg_models.data.requests import count_lines
from qacg_models.ranks import is_main


def _interval() -> float:
    """Seconds between updates: in a log file every one is a line of its own, and one every five is enough."""
    return 0.1 if sys.stderr.isatty() else 5.0


def beside_bars() -> AbstractContextManager:
    """Inside, lines may be printed: bars are off the terminal, and come back afterwards."""
    from tqdm import tqdm

    return tqdm.external_write_mode()


class LineBar:
    """Shows on stderr, in the main process alone, how far a file has been read.

    Args:
        path: the file, whose lines are counted first; None: what is read has no length that could be known.
    """

    def __init__(self, path: Path | None):
        self.path, self.bar = path, None

    def __enter__(self) -> LineBar:
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def reach(self, line: int) -> None:
        """Lines up to this one have been dealt with."""
        if self.bar is None:
            self._begin()
        self.bar.update(line - self.bar.n)

    def _begin(self) -> None:
        from tqdm import tqdm

        total = None if self.path is None or not is_main() else count_lines(self.path)
        self.bar = tqdm(total=total, desc="predicting", unit="line", mininterval=_interval(), disable=not is_main())


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

        self.bar = tqdm(
            total=state.max_steps, initial=state.global_step, desc="training", unit="step", mininterval=_interval()
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
