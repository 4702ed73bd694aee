"""The average of the weights over the last part of a training, however long that is going to be.

A learning rate that stays leaves the weights moving about; their average is as good as weights whose rate has fallen,
and it is there after every step, so that nobody has to know beforehand when training will end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

AVERAGE_NAME = "average.safetensors"
# The average reaches back over about one part in POWER + 1 of all steps.
POWER = 8


class WeightAverage:
    """Polynomial-decay average (Shamir and Zhang, 2013): step t counts (POWER + 1) / (t + POWER) of what it makes.

    Args:
        model: whose parameters begin the average; the first step replaces them.
    """

    def __init__(self, model: torch.nn.Module):
        self.weights = {name: value.detach().clone() for name, value in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: torch.nn.Module, step: int) -> None:
        """Takes in the weights after `step`, which counts from 1."""
        share = (POWER + 1) / (step + POWER)
        for name, value in model.named_parameters():
            self.weights[name].lerp_(value, share)

    @contextmanager
    def inside(self, model: torch.nn.Module) -> Iterator[None]:
        """Within, the model has the average for its weights; afterwards its own, bit for bit."""
        own = {name: value.detach().clone() for name, value in model.named_parameters()}
        _copy(self.weights, model)
        try:
            yield
        finally:
            _copy(own, model)

    def save(self, folder: Path) -> None:
        """Writes the average to a checkpoint."""
        save_file(self.weights, folder / AVERAGE_NAME)

    def load(self, folder: Path) -> None:
        """Takes the average of a checkpoint, bit for bit."""
        for name, value in load_file(folder / AVERAGE_NAME).items():
            self.weights[name].copy_(value)


@torch.no_grad()
def _copy(weights: dict[str, torch.Tensor], model: torch.nn.Module) -> None:
    for name, value in model.named_parameters():
        value.copy_(weights[name])
