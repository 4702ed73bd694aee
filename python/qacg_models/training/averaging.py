"""The running average of the weights, for trainings whose number of steps is unknown.

With a constant learning rate the weights vary from step to step. Their average is about as accurate as weights after a
decayed learning rate, and is available after every step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

AVERAGE_NAME = "average.safetensors"
# The larger POWER, the more the average depends on the last steps: mainly on the last 1 / (POWER + 1) of all steps.
POWER = 8


class WeightAverage:
    """Polynomial-decay average of the weights (Shamir and Zhang, 2013).

    After step t the average moves towards the model's weights by the share (POWER + 1) / (t + POWER) of the difference.

    Args:
        model: model whose parameters initialize the average; the first step replaces these values.
    """

    def __init__(self, model: torch.nn.Module):
        self.weights = {name: value.detach().clone() for name, value in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: torch.nn.Module, step: int) -> None:
        """Adds the model's weights after a step to the average; `step` counts from 1."""
        share = (POWER + 1) / (step + POWER)
        for name, value in model.named_parameters():
            self.weights[name].lerp_(value, share)

    @contextmanager
    def applied_to(self, model: torch.nn.Module) -> Iterator[None]:
        """Sets the model's weights to the average inside the block, and restores the weights bit for bit at its end."""
        own = {name: value.detach().clone() for name, value in model.named_parameters()}
        _copy(self.weights, model)
        try:
            yield
        finally:
            _copy(own, model)

    def save(self, folder: Path) -> None:
        """Writes the average to the file AVERAGE_NAME in the folder of a checkpoint."""
        save_file(self.weights, folder / AVERAGE_NAME)

    def load(self, folder: Path) -> None:
        """Replaces the average by that in the folder of a checkpoint, bit for bit."""
        for name, value in load_file(folder / AVERAGE_NAME).items():
            self.weights[name].copy_(value)


@torch.no_grad()
def _copy(weights: dict[str, torch.Tensor], model: torch.nn.Module) -> None:
    for name, value in model.named_parameters():
        value.copy_(weights[name])
