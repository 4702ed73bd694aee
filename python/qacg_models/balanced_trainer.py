"""The transformers Trainer with rows drawn so that rare classes come more often."""

from __future__ import annotations

import torch
from torch.utils.data import Sampler, WeightedRandomSampler
from transformers import Trainer


class BalancedTrainer(Trainer):
    """Draws a row of class c with a weight of count(c) ** -balance, with replacement.

    Args:
        balance: 0 keeps the Trainer's own order, each row once per epoch; 1 draws classes equally often.
        args, kwargs: those of the Trainer; the training set is a list of features with `labels`.
    """

    def __init__(self, *args, balance: float, **kwargs):
        super().__init__(*args, **kwargs)
        self.balance = balance

    def _get_train_sampler(self, train_dataset=None) -> Sampler | None:
        if self.balance == 0:
            return super()._get_train_sampler(train_dataset)
        labels = torch.tensor([feature["labels"] for feature in train_dataset or self.train_dataset])
        weights = torch.bincount(labels).double().clamp(min=1).pow(-self.balance)[labels]
        generator = torch.Generator().manual_seed(self.args.seed)
        return WeightedRandomSampler(weights, len(labels), replacement=True, generator=generator)
