"""The training run that test_resume.py kills: `kill_and_resume.py DATA OUTPUT`."""

import sys

from model_sizes import SMALL
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.training import train

OPTIONS = TrainingOptions(
    epochs=2,
    batch_size=16,
    learning_rate=3e-3,
    **SMALL,
    eval_every=20,
    checkpoint_every=7,
)

if __name__ == "__main__":
    data, output = sys.argv[1:]
    train(load_data(data), output, OPTIONS)
