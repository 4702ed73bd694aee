"""What test_distributed.py starts under torchrun: `two_processes.py DATA OUTPUT {ddp,fsdp}`."""

import sys

from qacg_models.data import load_data
from qacg_models.options import TrainingOptions
from qacg_models.training import train

OPTIONS = TrainingOptions(
    max_steps=8,
    batch_size=16,
    learning_rate=3e-3,
    dropout=0.0,
    hidden_size=16,
    layers=1,
    heads=2,
    intermediate_size=32,
    eval_every=4,
    checkpoint_every=6,
)

if __name__ == "__main__":
    from dataclasses import replace

    data, output, kind = sys.argv[1:]
    train(load_data(data), output, replace(OPTIONS, batch_size=OPTIONS.batch_size // 2, fsdp=kind == "fsdp"))
