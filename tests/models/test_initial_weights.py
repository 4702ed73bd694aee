"""Initial weights: those of BERT, and those of the published code as an option."""

import math

import pytest
import torch
from model_cases import CASES, SIZES
from qacg_models import PlainBertConfig, QueryAttentionConfig, QueryAttentionForQuestionAnswering
from torch import nn

ENCODERS = {
    name: CASES[name] for name in ("BertForQuestionAnswering", "CGBertModel", "QACGBertForSequenceClassification")
}
every_encoder = pytest.mark.parametrize("case", ENCODERS.values(), ids=ENCODERS)
WIDE = {"hidden_size": 96, "num_hidden_layers": 3, "initializer_range": 0.05}
GATE_STD = 0.01


def fresh(case, **settings):
    torch.manual_seed(0)
    return case.model_class(case.make_config(**WIDE, **settings))


def is_normal(values, std):
    """Returns whether the mean is 0 and the standard deviation is `std`, within five standard errors."""
    n = values.numel()
    mean, deviation = float(values.mean()), float(values.square().mean().sqrt())
    return abs(mean) < 5 * std / math.sqrt(n) and abs(deviation / std - 1) < 5 / math.sqrt(2 * n)


def norms(model):
    found = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(found) == 1 + 2 * WIDE["num_hidden_layers"]
    return found


@every_encoder
def test_layer_norm_starts_as_identity_or_published(case):
    for norm in norms(fresh(case)):
        assert bool((norm.weight == 1).all()) and not norm.bias.any()
    published = norms(fresh(case, layer_norm_initializer="normal"))
    for kind in ("weight", "bias"):
        values = [getattr(norm, kind).detach() for norm in published]
        assert is_normal(torch.cat(values), 0.05)
        assert len({float(v[0]) for v in values}) == len(values)  # each has its own random values


@every_encoder
def test_other_layers_start_as_published(case):
    for choice in ("identity", "normal"):
        for name, module in fresh(case, layer_norm_initializer=choice).named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                assert is_normal(module.weight.detach(), GATE_STD if "lambda_" in name else 0.05), name
            if isinstance(module, nn.Linear) and module.bias is not None:
                assert not module.bias.any(), name


def test_layer_norm_initializer_applies_under_a_head():
    encoder = PlainBertConfig(**{**SIZES, **WIDE}, layer_norm_initializer="normal")
    model = QueryAttentionForQuestionAnswering(QueryAttentionConfig(encoder=encoder))
    assert is_normal(torch.cat([norm.weight.detach() for norm in norms(model.backbone)]), 0.05)
