"""What a patched model returns: maps that nobody asked for, CG-BERT's attention, and what is never installed."""

import copy
import pickle

import numpy as np
import pytest
import torch
from test_nn import (
    BATCH,
    HEAD_DIM,
    HEADS,
    LENGTH,
    ContextGuidedAttention,
    PublishedAttention,
    PublishedModel,
    additive,
    inputs,
    strengthen,
    weighted_sum,
)
from torch import nn

from qacg_kernels.context_mixing import FusedContextMixing
from qacg_kernels.nn import FusedQuasiAttention
from qacg_kernels.patch import apply_fused_attention
from qacg_kernels.placeholder_attentions import PlaceholderMap

READERS = {
    "numpy, as the histograms do": lambda m: m.detach().cpu().numpy().flatten(),
    "data and numpy": lambda m: m.data.cpu().float().numpy(),
    "numpy's own conversion": np.histogram,
    "a head": lambda m: m[0, 0],
    "a mean": lambda m: m.mean(1),
    "a stack of layers": lambda m: torch.stack([m, m]),
    "a list": lambda m: m.tolist(),
    "a loop": list,
    "a product": lambda m: torch.ones(3, 3) @ m,
    "a view": lambda m: m.view(-1),
    "a transpose": lambda m: m.mT,
    "a truth value": bool,
    "a file": pickle.dumps,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_reading_a_map_that_was_not_asked_for_says_how_to_ask(read):
    model = PublishedModel(layers=1).eval()
    apply_fused_attention(model)
    x, c = inputs()
    for absent in model(x, additive(), c)[1][0][:3]:
        with pytest.raises(RuntimeError, match="output_attentions=True"):
            read(absent)


def test_placeholder_map_is_passed_on_like_a_tensor():
    model = PublishedModel(layers=1).eval()
    apply_fused_attention(model)
    x, c = inputs()
    absent = model(x, additive(), c)[1][0][0]
    assert absent is not None
    assert torch.is_tensor(absent)
    assert not absent.requires_grad
    for passed in (absent.to("cpu").double(), absent.data, absent.detach().clone(), copy.deepcopy([absent])[0]):
        assert isinstance(passed, PlaceholderMap)
        assert tuple(passed.shape) == (BATCH, HEADS, 0, 0)
    assert "PlaceholderMap" in repr([absent])
    assert "PlaceholderMap" in f"{absent}"


@pytest.mark.full
def test_a_patched_model_compiles_whole_without_maps():
    model = strengthen(PublishedModel()).eval()
    apply_fused_attention(model)
    x, c = inputs()
    expected = model(x, additive(), c)[0]
    out, collected = torch.compile(model, fullgraph=True, backend="aot_eager")(x, additive(), c)
    torch.testing.assert_close(out, expected)
    with pytest.raises(RuntimeError, match="output_attentions=True"):
        collected[0][0].mean()


class ReleasedContextGuided(ContextGuidedAttention):
    """CG-BERT's attention as it was released: no dropout on the context, and the attended values alone."""

    def context_heads(self, role, context):
        if self.projection == "head":
            return self.apply_layer(role, self.heads(context))
        return self.heads(self.apply_layer(role, context))

    def forward(self, hidden_states, attention_mask, device=None, context_embedded=None):
        return super().forward(hidden_states, attention_mask, device, context_embedded)[0]


class ReleasedBlock(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.self = attention

    def forward(self, x, mask, device, context):
        return x + self.self.forward(x, mask, device, context)


def released(layers=2, **kwargs):
    blocks = [ReleasedBlock(strengthen(ReleasedContextGuided(**kwargs))) for _ in range(layers)]
    return nn.ModuleList(blocks).eval()


def run(blocks, x, c):
    for block in blocks:
        x = block(x, additive(x.dtype), x.device, c)
    return x


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("projection", ["hidden", "head"])
@pytest.mark.parametrize("naming", ["released", "compact"])
@pytest.mark.parametrize("verify", [True, False])
def test_cg_bert_gives_the_same_results_and_gradients(naming, projection, bias, verify):
    plain = released(naming=naming, projection=projection, bias=bias).double()
    patched = copy.deepcopy(plain)
    assert apply_fused_attention(patched, verify=verify) == 2
    assert all(type(block.self) is FusedContextMixing for block in patched)
    assert list(patched.state_dict()) == list(plain.state_dict())
    results = []
    for model in (plain, patched):
        x, c = inputs(torch.float64)
        out = run(model, x, c)
        weighted_sum([out]).backward()
        results.append([out, x.grad, c.grad, *(p.grad for p in model.parameters())])
    for expected, mine in zip(*results):
        torch.testing.assert_close(mine, expected)
    assert apply_fused_attention(patched) == 0


def test_cg_bert_drops_cells_of_the_map_alone():
    """Where every value is 1 the output is the sum of a row of the map: 1, and with dropout 1 on average."""
    attention = strengthen(ReleasedContextGuided(dropout=0.5)).eval()
    apply_fused_attention(attention)
    x, c = (t.detach() for t in inputs())
    with torch.no_grad():
        attention.value.weight.zero_()
        attention.value.bias.fill_(1.0)
    kept = attention(x, additive(), None, c)
    torch.testing.assert_close(kept, torch.ones_like(kept))
    torch.manual_seed(0)
    attention.train()
    with torch.no_grad():
        sums = torch.stack([attention(x, additive(), None, c)[..., ::HEAD_DIM] for _ in range(400)])
    assert 0.85 < float(sums.mean()) < 1.15
    assert float(sums.std()) > 0.2


@pytest.mark.parametrize("lowest", [-torch.inf, torch.finfo(torch.float32).min, -1e38 * 2])
def test_cg_bert_follows_the_rule_of_masks(lowest):
    attention = strengthen(ReleasedContextGuided()).eval()
    apply_fused_attention(attention)
    x, c = (t.detach() for t in inputs())
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH)
    mask[0, :, 1] = lowest
    out = attention(x, mask, None, context=c)
    assert out[0, 1].eq(0).all()
    assert out[0, 0].ne(0).any()
    assert out.isfinite().all()


@pytest.mark.parametrize(
    "option", [{"beta": 0.5}, {"quasi_scale": 2.0}, {"backend": "reference"}, {"output_attentions": True}], ids=str
)
def test_what_cg_bert_has_no_use_for_is_refused(option):
    model = released()
    with pytest.raises(ValueError, match=rf"{next(iter(option))}: expected the default, got .*0\.self is CG-BERT's"):
        apply_fused_attention(model, **option)
    assert all(type(block.self) is ReleasedContextGuided for block in model)


class TanhGates(ReleasedContextGuided):
    """The paper's gate, not the code's."""

    def __init__(self):
        super().__init__()
        self.quasi_act = nn.Tanh()


def test_cg_bert_with_another_gate_is_refused():
    with pytest.raises(ValueError, match=r"FusedContextMixing, .*relative difference .* a gate that is no sigmoid"):
        apply_fused_attention(strengthen(TanhGates()))


class ReturnsHeads(PublishedAttention):
    def forward(self, hidden_states, attention_mask, device=None, C_embed=None):
        return self.heads(super().forward(hidden_states, attention_mask, device, C_embed)[0])


class NeedsMore(PublishedAttention):
    def forward(self, hidden_states, attention_mask, *, context):
        return super().forward(hidden_states, attention_mask, None, context)


class FirstOnly(PublishedAttention):
    def forward(self, hidden_states, attention_mask, device=None, C_embed=None):
        return super().forward(hidden_states, attention_mask, device, C_embed)[:1]


class Opaque(nn.Module):
    """A layer that has sizes and no weight of its own to read, as quantised ones may."""

    in_features, out_features = HEAD_DIM, 1

    def forward(self, x):
        return x.sum(-1, keepdim=True)


def without_a_weight():
    module = PublishedAttention()
    module.lambda_q_query_layer = Opaque()
    return module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ReturnsHeads, "expected a result of shape"),
        (NeedsMore, r"expected a module that is called as \(hidden_states"),
        (FirstOnly, "expected the five results.* got 1 values"),
        (without_a_weight, "expected layers that FusedQuasiAttention can use"),
    ],
    ids=["shape", "call", "values", "weights"],
)
@pytest.mark.parametrize("verify", [True, False])
def test_nothing_is_installed_that_fails_in_the_first_forward(verify, make, message):
    module = make()
    with pytest.raises(ValueError, match=message):
        apply_fused_attention(module, verify=verify)
    assert type(module) is type(make())


def test_without_verification_numbers_alone_are_not_compared():
    attention = strengthen(PublishedModel(layers=1))
    assert apply_fused_attention(attention, quasi_scale=0.5, verify=False) == 1
    assert attention.layer[0].self.quasi_scale == 0.5


@pytest.mark.parametrize("make", [PublishedModel, released], ids=["QACG-BERT", "CG-BERT"])
def test_modules_on_the_meta_device_are_told_apart_too(make):
    model = make().to("meta")
    assert apply_fused_attention(model) == 2
    kind = FusedQuasiAttention if make is PublishedModel else FusedContextMixing
    blocks = model.layer if make is PublishedModel else model
    assert all(type(block.self) is kind for block in blocks)
