"""The released optimizer and schedule, step by step in float64 from their formulas."""

import math
from dataclasses import replace

import pytest
import torch
from model_sizes import SMALL
from qacg_models.data import load_data
from qacg_models.runs.options import TrainingOptions
from qacg_models.training import train
from qacg_models.training.bert_adam import BertAdam, warmup_then_linear

RATE, DECAY, CLIP, EPS = 0.01, 0.1, 0.5, 1e-6


def test_bert_adam_matches_the_formulas():
    torch.manual_seed(0)
    start = [torch.randn(4, 3, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    weights = [value.clone().requires_grad_() for value in start]
    groups = [{"params": weights[:1], "weight_decay": DECAY}, {"params": weights[1:], "weight_decay": 0.0}]
    optimizer = BertAdam(groups, RATE, max_grad_norm=CLIP)
    expected, means, squares = [v.clone() for v in start], [0.0, 0.0], [0.0, 0.0]
    for step in range(6):
        # One gradient is above the norm, the other below: each is clipped by its own norm.
        gradients = [torch.randn(4, 3, dtype=torch.float64) * 10, torch.randn(5, dtype=torch.float64) * 0.01]
        for group in optimizer.param_groups:
            group["lr"] = RATE * (step + 1) / 6
        for index, (weight, gradient) in enumerate(zip(weights, gradients)):
            weight.grad = gradient.clone()
            norm = math.sqrt(float((gradient**2).sum()))
            clipped = gradient * min(1.0, CLIP / (norm + 1e-6))
            means[index] = 0.9 * means[index] + 0.1 * clipped
            squares[index] = 0.999 * squares[index] + 0.001 * clipped**2
            update = means[index] / (squares[index] ** 0.5 + EPS) + (DECAY if index == 0 else 0.0) * expected[index]
            expected[index] = expected[index] - RATE * (step + 1) / 6 * update
        optimizer.step()
    for weight, value in zip(weights, expected):
        torch.testing.assert_close(weight.detach(), value, rtol=1e-12, atol=1e-12)


def test_bert_adam_skips_missing_gradients_and_runs_closure():
    used, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = BertAdam([used, unused], 0.1)

    def closure():
        optimizer.zero_grad()
        loss = (used**2).sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure)) == 2.0
    assert torch.equal(unused, torch.ones(2))
    assert not torch.equal(used, torch.ones(2))


def test_warmup_then_linear_rises_jumps_and_falls_to_zero():
    factors = [warmup_then_linear(step, 100, 0.1) for step in range(120)]
    assert factors[:11] == pytest.approx([step / 10 for step in range(10)] + [0.9])
    assert factors[10:100] == pytest.approx([1 - step / 100 for step in range(10, 100)])
    assert factors[100:] == [0.0] * 20  # the released code goes below 0 here
    assert warmup_then_linear(0, 10, 0.0) == 1.0


def test_released_protocol_uses_bert_adam(small_data, tmp_path, monkeypatch):
    rates, optimizers = [], []
    plain = BertAdam.step

    def spy(self, closure=None):
        rates.append(self.param_groups[0]["lr"])
        optimizers.append(self)
        return plain(self, closure)

    monkeypatch.setattr(BertAdam, "step", spy)
    options = TrainingOptions(protocol="released", max_steps=20, batch_size=16, **SMALL)
    record = train(load_data(small_data), tmp_path / "m", options).record
    expected = [2e-5 * warmup_then_linear(step, 20, 0.1) for step in range(20)]
    assert rates == pytest.approx(expected)
    (decayed, other) = optimizers[0].param_groups
    assert (decayed["weight_decay"], other["weight_decay"]) == (0.01, 0.0)
    assert all(value.dim() == 2 for value in decayed["params"])
    assert all(value.dim() == 1 for value in other["params"])
    assert record.selected.split == "test"
    assert replace(options).resolved().balance == 1.0
