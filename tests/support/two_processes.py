"""The program that test_distributed.py runs under torchrun: `two_processes.py DATA OUTPUT`.

The name of OUTPUT is seeds or resumed. The first run trains two seeds. The other one fails at its last step, and is
resumed.
"""

import sys
from dataclasses import replace
from pathlib import Path

from model_sizes import SMALL
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.training import train, train_seeds
from qacg_models.sentiment.training.trainer import AspectTrainer
from qacg_models.utils.machine import is_main

STEPS = {"max_steps": 8, "eval_every": 4, "checkpoint_every": 3}
OPTIONS = TrainingOptions(batch_size=16, learning_rate=3e-3, dropout=0.0, **SMALL, **STEPS)


def train_and_fail(dataset, output, options):
    """Trains a run that fails at its last step, and checks that its newest checkpoint has files of both processes."""
    plain = AspectTrainer._determine_best_metric

    def failing(trainer, metrics, trial):
        if trainer.state.global_step == OPTIONS.max_steps:
            raise RuntimeError("the disk is full")
        return plain(trainer, metrics, trial)

    AspectTrainer._determine_best_metric = failing
    try:
        train(dataset, output, options)
    except RuntimeError as error:
        assert "disk" in str(error)
    if is_main():
        checkpoint = output.with_name(f"{output.name}.unfinished") / "checkpoint-6"
        assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in checkpoint.iterdir()}
    AspectTrainer._determine_best_metric = plain


if __name__ == "__main__":
    dataset, output = load_data(sys.argv[1]), Path(sys.argv[2])
    options = replace(OPTIONS, batch_size=OPTIONS.batch_size // 2)
    if output.name == "seeds":
        train_seeds(dataset, output, options, [0, 1])
    else:
        train_and_fail(dataset, output, options)
        train(dataset, output, options, resume=True)
