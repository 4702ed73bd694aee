"""Sensitivity and relevance of every model, compared with their formulas and finite differences."""

import pytest
import torch
from errors import error_cases, raises
from model_sizes import CONTEXTS, TINY, TOKENS
from oracle import relevance as oracle
from oracle.pieces import gelu
from parity import strengthen
from qacg_models import (
    AspectBertConfig,
    AspectBertForSequenceClassification,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    CGBertConfig,
    CGBertForSequenceClassification,
    PlainBertConfig,
    QACGBertConfig,
    QACGBertForSequenceClassification,
    attention_relevance,
    gradient_relevance,
    layerwise_relevance,
    token_sensitivity,
)
from torch.utils._python_dispatch import TorchDispatchMode

SIZES = {**TINY, "num_labels": 3}
MODELS = {
    "bert": (BertForSequenceClassification, PlainBertConfig, {}),
    "aspect": (AspectBertForSequenceClassification, AspectBertConfig, CONTEXTS),
    "cg": (CGBertForSequenceClassification, CGBertConfig, CONTEXTS),
    "qacg": (QACGBertForSequenceClassification, QACGBertConfig, CONTEXTS),
}


@pytest.fixture(params=MODELS)
def made(request):
    """A model in float64 and a batch for it."""
    cls, config, extra = MODELS[request.param]
    return strengthen(cls(config(**SIZES))).double(), TOKENS | extra


def test_sensitivity_is_the_squared_norm_of_the_gradient(made):
    model, batch = made
    model.train().requires_grad_(False)
    found = token_sensitivity(model, batch | {"labels": torch.tensor([0, 1])}, target=torch.tensor([2, 0]))
    assert model.training
    model.eval()
    assert not found[1, 3:].any(), "padding"
    assert bool((found[batch["attention_mask"].bool()] > 0).all())

    # The gradient by finite differences, in the embedding of one token at a time.
    def logit(row, token, column, step):
        def shift(module, args, out):
            out = out.clone()
            out[row, token, column] += step
            return out

        handle = model.bert.embeddings.register_forward_hook(shift)
        value = model(**batch).logits[row, (2, 0)[row]]
        handle.remove()
        return value

    with torch.no_grad():
        for row, token in ((0, 0), (0, 4), (1, 2)):
            steps = [[logit(row, token, column, step) for step in (1e-5, -1e-5)] for column in range(12)]
            squares = [((up - down) / 2e-5) ** 2 for up, down in steps]
            torch.testing.assert_close(found[row, token], sum(squares), rtol=1e-5, atol=1e-7)


def test_sensitivity_leaves_the_model_unchanged(made):
    model, batch = made
    with torch.inference_mode():
        first = token_sensitivity(model.eval(), batch)
    highest = model(**batch).logits.argmax(-1)
    torch.testing.assert_close(first, token_sensitivity(model, batch, highest))
    assert all(p.grad is None for p in model.parameters())
    layerwise_relevance(model, batch)
    assert not any(module._forward_hooks for module in model.modules())


def test_attribution_bad_target_or_model_raises():
    model = BertForSequenceClassification(PlainBertConfig(**SIZES))
    for function in (token_sensitivity, layerwise_relevance):
        with raises("ValueError: target: expected classes from 0 to 2, got 3 to 3"):
            function(model, TOKENS, 3)
        with raises("ValueError: target: expected an integer or 2 integers, got torch.int64 of shape (3,)"):
            function(model, TOKENS, torch.tensor([0, 1, 2]))
        with raises("ValueError: target: expected an integer or 2 integers, got torch.float32 of shape ()"):
            function(model, TOKENS, 1.0)
        with raises("TypeError: model: expected a sequence classifier of this package, got BertForQuestionAnswering"):
            function(BertForQuestionAnswering(PlainBertConfig(**SIZES)), TOKENS)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def test_gradient_rule_equals_the_formula():
    layer = torch.nn.Linear(5, 4).double()
    x, relevance = random(2, 3, 5).requires_grad_(), random(2, 3, 4)
    found = gradient_relevance(layer(x), x, relevance)
    for b in range(2):
        for i in range(3):
            with torch.no_grad():
                true = oracle.linear_rule(layer.weight, layer.bias, x[b, i], relevance[b, i])
            torch.testing.assert_close(found[b, i], true)
    torch.testing.assert_close(found.sum(-1), relevance.sum(-1), rtol=1e-5, atol=1e-5)


def test_gradient_rule_without_gradients_is_zero():
    x = -torch.ones(2, 3)
    x.requires_grad_()
    assert gradient_relevance(x.relu(), x, torch.ones(2, 3)).tolist() == [[0.0] * 3] * 2


def test_attention_rule_equals_the_formula():
    value, attention, relevance = random(2, 3, 7, 4), random(2, 3, 6, 7), random(2, 3, 6, 4)
    output = attention @ value
    output[0, 0, 0, 0] = 0.0
    kept = output.clone()
    found = attention_relevance(output, value, attention, relevance)
    assert torch.equal(output, kept), "the output is only read"
    for b in range(2):
        for h in range(3):
            one = (t[b, h] for t in (output, value, attention, relevance))
            torch.testing.assert_close(found[b, h], oracle.attention_rule(*one))


@error_cases(
    {
        "ValueError: relevance: expected shape (2, 4), got (4,)": {"relevance": torch.ones(4)},
        "ValueError: inputs: expected shape (2, 3), got (3, 3)": {"inputs": torch.ones(3, 3)},
        "ValueError: output: expected a tensor computed from `inputs` with autograd enabled, got one without": {
            "output": torch.ones(2, 4)
        },
        "ValueError: output: expected a tensor computed from `inputs`, got one that does not depend": {
            "output": torch.ones(2, 4, requires_grad=True)
        },
        "ValueError: eps: expected a finite number, got nan": {"eps": float("nan")},
    }
)
def test_gradient_rule_bad_arguments_raise(error, given):
    inputs = random(2, 3).requires_grad_()
    arguments = {"output": inputs @ random(3, 4), "inputs": inputs, "relevance": random(2, 4)}
    with raises(error):
        gradient_relevance(**arguments | given)


@error_cases(
    {
        "TypeError: attention: expected dtype torch.float32 like output and relevance, got torch.float64": {
            "attention": torch.ones(3, 5).double()
        },
        "ValueError: attention: expected shape (..., L, S), got (5,)": {"attention": torch.ones(5)},
        "ValueError: value: expected shape (5, 4), got (6, 4)": {"value": torch.ones(6, 4)},
        "ValueError: output: expected shape (3, 4), got (1, 4)": {"output": torch.ones(1, 4)},
        "ValueError: eps: expected at least 0, got -1": {"eps": -1},
    }
)
def test_attention_rule_bad_arguments_raise(error, given):
    attention, value = torch.rand(3, 5), torch.rand(5, 4)
    arguments = {"output": attention @ value, "value": value, "attention": attention, "relevance": torch.rand(3, 4)}
    with raises(error):
        attention_relevance(**arguments | given)


def test_attention_rule_allocates_at_most_one_map():
    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor))
            return out

    length, size = 60, 16
    value, attention, relevance = random(1, 2, length, size), random(1, 2, length, length), random(1, 2, length, size)
    with Sizes():
        attention_relevance(attention @ value, value, attention, relevance)
    assert 0 < max(sizes) <= 2 * length * length


@pytest.mark.parametrize("pooler", ["cls", "attention"])
def test_layerwise_relevance_equals_the_rules_in_order(made, pooler):
    model, batch = made
    model = type(model)(type(model.config)(**SIZES, pooler=pooler))
    model = strengthen(model).double().eval().requires_grad_(False)
    target = torch.tensor([1, 2])
    found = layerwise_relevance(model.train(), batch, target)
    assert model.training
    model.eval()
    out = model(**batch, output_hidden_states=True, output_attentions=True)
    torch.testing.assert_close(found.logit, out.logits[[0, 1], target])
    assert len(found.layers) == 3
    torch.testing.assert_close(found.tokens, found.layers[0])
    for layer in found.layers:
        torch.testing.assert_close(layer.sum(-1), found.logit, rtol=1e-3, atol=1e-3)
        assert float(layer[1, 3:].abs().max()) < 1e-4, "padding"

    w = model.state_dict()
    for row in range(2):
        relevance = torch.zeros(3, dtype=torch.float64)
        relevance[target[row]] = found.logit[row]
        last = out.hidden_states[-1][row]
        if pooler == "cls":
            summary = last[0]
        else:
            weights = model.bert.pooler.weights(last[None], batch["attention_mask"][row : row + 1].bool())
            summary = weights[0] @ last
        pooled = torch.tanh(model.bert.pooler.dense(summary))
        relevance = oracle.linear_rule(w["classifier.weight"], w["classifier.bias"], pooled, relevance)
        dense = w["bert.pooler.dense.weight"], w["bert.pooler.dense.bias"]
        relevance = oracle.linear_rule(*dense, summary, relevance)
        if pooler == "cls":
            relevance = torch.stack([relevance, *torch.zeros(4, 12, dtype=torch.float64)])
        else:
            relevance = oracle.attention_rule(summary[None], last, weights, relevance[None])
        torch.testing.assert_close(found.layers[2][row], relevance.sum(-1))
        for n in (1, 0):
            x = out.hidden_states[n][row]
            if model.config.model_type == "aspect_bert" and n == model.config.context_from_layer:
                x = x + w["bert.context_embeddings.weight"][batch["context_ids"][row]]
            relevance = layer_relevance(w, n, x, out.attentions[n][row], relevance)
            torch.testing.assert_close(found.layers[n][row], relevance.sum(-1))


def layer_relevance(w, n, x, attention, relevance):
    """The rules of one layer, on one sequence: x (L, hidden), A (H, L, L), R (L, hidden)."""

    def dense(name):
        return w[f"bert.encoder.layer.{n}.{name}.weight"], w[f"bert.encoder.layer.{n}.{name}.bias"]

    def apply(name, t):
        weight, bias = dense(name)
        return t @ weight.T + bias

    def norm(name, t):
        return torch.nn.functional.layer_norm(t, (12,), *dense(name), eps=1e-12)

    def rows(rule, *per_row):
        return torch.stack([rule(*one) for one in zip(*per_row)])

    def linear(name, t, relevance):
        return rows(lambda one, r: oracle.linear_rule(*dense(name), one, r), t, relevance)

    value = apply("attention.self.value", x)
    parts = [slice(h * 4, h * 4 + 4) for h in range(3)]
    attended = torch.cat([a @ value[:, part] for a, part in zip(attention, parts)], -1)
    first = apply("attention.output.dense", attended)
    middle = norm("attention.output.LayerNorm", first + x)
    wide = gelu(apply("intermediate.dense", middle))
    relevance = rows(oracle.residual_rule, apply("output.dense", wide), middle, relevance)
    relevance = linear("output.dense", wide, relevance)
    relevance = linear("intermediate.dense", middle, relevance)
    relevance = rows(oracle.residual_rule, first, x, relevance)
    relevance = linear("attention.output.dense", attended, relevance)
    relevance = torch.cat(
        [
            oracle.attention_rule(attended[:, part], value[:, part], a, relevance[:, part])
            for a, part in zip(attention, parts)
        ],
        -1,
    )
    return linear("attention.self.value", x, relevance)
