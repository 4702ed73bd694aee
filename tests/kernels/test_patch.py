"""`apply_fused_attention`: results of patched models, maps that were not requested, and modules that it rejects."""

import copy
import pickle

import pytest
import torch
from doubled_layers import WAYS, change
from errors import error_cases, raises
from parity import strengthen, weighted_sum
from published_attention import (
    BATCH,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LENGTH,
    ContextGuidedAttention,
    PublishedAttention,
    PublishedModel,
    additive,
    inputs,
)
from torch import nn

from qacg_kernels.attention_layers import GATE_ROLES, NAMINGS
from qacg_kernels.nn import FusedQuasiAttention
from qacg_kernels.patch import FusedContextMixing, PatchedQuasiAttention, PlaceholderMap, apply_fused_attention


class ReleasedContextGuided(ContextGuidedAttention):
    """The released attention of CG-BERT: no dropout of the context, and the output only."""

    def context_heads(self, role, context):
        if self.projection == "head":
            return self.apply_layer(role, self.heads(context))
        return self.heads(self.apply_layer(role, context))

    def forward(self, hidden_states, attention_mask, device=None, context_embedded=None):
        return super().forward(hidden_states, attention_mask, device, context_embedded)[0]


KINDS = {
    "QACG-BERT": (PublishedAttention, PatchedQuasiAttention),
    "CG-BERT": (ReleasedContextGuided, FusedContextMixing),
}
each_kind = pytest.mark.parametrize(("make", "kind"), KINDS.values(), ids=KINDS)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("projection", ["hidden", "head"])
@pytest.mark.parametrize("naming", list(NAMINGS))
@each_kind
def test_patched_model_has_equal_results_and_gradients(make, kind, naming, projection, bias, verify):
    plain = strengthen(PublishedModel(attention=make, naming=naming, projection=projection, bias=bias)).double().eval()
    patched = copy.deepcopy(plain)
    assert apply_fused_attention(patched, output_attentions=make is PublishedAttention, verify=verify) == 2
    assert all(type(block.self) is kind for block in patched.layer)
    assert list(patched.state_dict()) == list(plain.state_dict())
    results = []
    for model in (plain, patched):
        x, c = inputs(torch.float64)
        out, maps = model(x, additive(torch.float64), c)
        results.append([out, *(m for layer in maps for m in layer)])
        weighted_sum(results[-1]).backward()
        results[-1] += [x.grad, c.grad, *(p.grad for p in model.parameters())]
    torch.testing.assert_close(results[1], results[0])
    assert apply_fused_attention(patched) == 0


def test_model_that_clones_maps_runs_without_maps():
    plain = strengthen(PublishedModel()).eval()
    patched = copy.deepcopy(plain)
    assert apply_fused_attention(patched) == 2
    x, c = inputs()
    out, collected = patched(x, additive(), c)
    expected, expected_maps = plain(x, additive(), c)
    torch.testing.assert_close(out, expected)
    for mine, theirs in zip(collected, expected_maps):
        assert [tuple(m.shape) for m in mine[:3]] == [(BATCH, HEADS, 0, 0)] * 3
        torch.testing.assert_close(mine[3], theirs[3])


def test_patching_keeps_parameters_modes_and_optimizer():
    model = strengthen(PublishedModel(dropout=0.0)).double()
    model.layer[1].eval()
    model.layer[0].self.register_buffer("steps", torch.tensor(3))
    models = model, copy.deepcopy(model)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in models]

    def step():
        for m, optimizer in zip(models, optimizers):
            x, c = inputs(torch.float64)
            optimizer.zero_grad()
            weighted_sum([m(x, additive(torch.float64), c)[0]]).backward()
            optimizer.step()

    def kept():
        modes = [m.training for m in model.modules()]
        return [*map(id, (model.layer[0].self, *model.parameters()))], list(model.state_dict()), modes

    step()
    before = kept()
    assert apply_fused_attention(model) == 2
    assert kept() == before
    step()
    torch.testing.assert_close(dict(model.named_parameters()), dict(models[1].named_parameters()))
    model.load_state_dict(models[1].state_dict())


def test_patching_keeps_hooks_and_calls_none_of_the_module():
    model = PublishedModel(layers=1).eval()
    attention = model.layer[0].self
    calls = []
    attention.register_forward_pre_hook(lambda m, args: calls.append("pre"))
    attention.register_forward_hook(lambda m, args, out: calls.append("post"))
    attention.register_full_backward_hook(lambda m, gi, go: calls.append("backward"))
    attention.query.register_forward_hook(lambda m, args, out: calls.append("query"))
    attention.register_state_dict_post_hook(lambda m, state, prefix, meta: state.update(extra=torch.zeros(1)))
    assert apply_fused_attention(model) == 1
    assert set(calls) == {"query"}, "layers are compared with their hooks"
    calls.clear()
    x, c = inputs()
    attention(x, additive(), None, c)[0].sum().backward()
    assert calls == ["pre", "query", "post", "backward"]
    assert "extra" in model.state_dict()


def test_patched_module_accepts_every_name_of_the_context():
    x, c = inputs()
    module = strengthen(PublishedAttention()).eval()
    expected = module(x, additive(), None, C_embed=c)[0]
    assert apply_fused_attention(module) == 1
    for name in ("C_embed", "context_embedded", "context"):
        torch.testing.assert_close(module(x, additive(), None, **{name: c})[0], expected)


class DropsOtherwise(PublishedAttention):
    """Published attention whose dropout has another name, is a number or is missing."""

    def drop(self, x):
        if hasattr(self, "attention_dropout"):
            return self.attention_dropout(x)
        p = getattr(self, "dropout", 0.0)
        return p(x) if isinstance(p, nn.Dropout) else nn.functional.dropout(x, p, self.training)


@pytest.mark.parametrize("form", ["called dropout", "other name", "number", "none"])
def test_dropout_of_the_replaced_module_is_kept(form):
    module = DropsOtherwise(dropout=0.25)
    layer = module.dropout
    if form == "other name":
        del module.dropout
        module.attention_dropout = layer
    elif form == "number":
        del module.dropout
        module.dropout = 0.25
    elif form == "none":
        del module.dropout
    assert apply_fused_attention(module) == 1
    assert module.dropout.p == (0.0 if form == "none" else 0.25)
    assert module.dropout.training
    if form in ("called dropout", "other name"):
        assert module.dropout is layer


def test_dropout_by_a_function_only_raises():
    module = DropsOtherwise(dropout=0.25)
    del module.dropout
    module.drop = lambda x: nn.functional.dropout(x, 0.1, module.training)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"DropsOtherwise: expected dropout by an nn.Dropout of the module"):
        apply_fused_attention(module)
    assert type(module) is DropsOtherwise and module.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("root", [True, False])
def test_compiled_attention_is_replaced_inside_its_wrapper(root):
    x, c = inputs()
    module = strengthen(PublishedAttention()).eval()
    compiled = torch.compile(module, backend="eager")
    expected = compiled(x, additive(), None, c)[0]
    model = compiled if root else nn.Sequential(compiled)
    assert apply_fused_attention(model) == 1
    assert isinstance(module, FusedQuasiAttention)
    torch.testing.assert_close(compiled(x, additive(), None, c)[0], expected)


def test_module_with_another_formula_raises_and_is_unchanged():
    model = PublishedModel(attention=ContextGuidedAttention, projection="head", bias=False)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # small weights like those before training, when the formulas differ least
        for parameter in model.parameters():
            parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    with pytest.raises(ValueError, match=r"layer\.0\.self: .* got a relative difference"):
        apply_fused_attention(model)
    assert all(type(block.self) is ContextGuidedAttention for block in model.layer)


def test_other_scalars_raise_unless_unverified():
    model = strengthen(PublishedModel(layers=1))
    with pytest.raises(ValueError, match="Pass the quasi_scale, beta and gamma of the model"):
        apply_fused_attention(model, beta=0.5)
    apply_fused_attention(model, beta=0.5, verify=False)
    assert model.layer[0].self.beta == 0.5


class ReturnsFour(PublishedAttention):
    def forward(self, hidden_states, attention_mask, device=None, C_embed=None):
        return super().forward(hidden_states, attention_mask, device, C_embed)[:4]


class ReturnsHeads(PublishedAttention):
    def forward(self, hidden_states, attention_mask, device=None, C_embed=None):
        return self.heads(super().forward(hidden_states, attention_mask, device, C_embed)[0])


class TakesMore(PublishedAttention):
    def forward(self, hidden_states, attention_mask, heads_kept, scale, context):
        return hidden_states


class CalledOnce(nn.Linear):
    def forward(self, x):
        if hasattr(self, "called"):
            raise RuntimeError("called twice")
        self.called = True
        return super().forward(x)


def reshaped():
    module = PublishedAttention()
    module.context_for_q = nn.Linear(HIDDEN, HEAD_DIM)
    return module


def with_own_forward():
    module = PublishedAttention()
    module.forward = lambda *args: None
    return module


def with_a_failing_layer():
    module = PublishedAttention()
    module.lambda_q_query_layer.__class__ = CalledOnce
    return module


REJECTED = {
    "ValueError: expected its forward to return one tensor, or a tuple of five values... got 4 values": ReturnsFour,
    "ValueError: context_for_q: expected a layer from 12 to 12 ... got one from 12 to 4": reshaped,
    "ValueError: got one set on the instance": with_own_forward,
    "ValueError: expected a result of shape": ReturnsHeads,
    "ValueError: expected a module that can be called as (hidden_states": TakesMore,
    "ValueError: expected layers that PatchedQuasiAttention can use, got the error: called twice": with_a_failing_layer,
}


@pytest.mark.parametrize("verify", [True, False])
@error_cases(REJECTED)
def test_unsupported_module_raises_and_is_unchanged(error, given, verify):
    module = given()
    kind = type(module)
    with raises(error):
        apply_fused_attention(module, verify=verify)
    assert type(module) is kind


@pytest.mark.parametrize("model", [None, PublishedModel])
def test_patch_of_no_module_raises(model):
    with pytest.raises(TypeError, match=r"model: expected a torch.nn.Module, got (NoneType|type). Pass the model"):
        apply_fused_attention(model)


# Maps that were not requested

READERS = {
    "detach and numpy": lambda m: m.detach().cpu().numpy().flatten(),
    "data and numpy": lambda m: m.data.cpu().float().numpy(),
    "a head": lambda m: m[0, 0],
    "a loop": list,
    "a product": lambda m: torch.ones(3, 3) @ m,
    "a file": pickle.dumps,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_reading_a_map_not_requested_names_the_option(read):
    model = PublishedModel(layers=1).eval()
    apply_fused_attention(model)
    x, c = inputs()
    for absent in model(x, additive(), c)[1][0][:3]:
        with pytest.raises(RuntimeError, match="output_attentions=True"):
            read(absent)


def test_placeholder_map_can_be_copied_like_a_tensor():
    model = PublishedModel(layers=1).eval()
    apply_fused_attention(model)
    x, c = inputs()
    absent = model(x, additive(), c)[1][0][0]
    assert absent is not None
    assert torch.is_tensor(absent)
    assert not absent.requires_grad
    for copied in (absent.to("cpu").double(), absent.data, absent.detach().clone(), copy.deepcopy([absent])[0]):
        assert isinstance(copied, PlaceholderMap)
        assert tuple(copied.shape) == (BATCH, HEADS, 0, 0)
    assert "PlaceholderMap" in repr([absent])
    assert "PlaceholderMap" in f"{absent}"


@pytest.mark.full
def test_patched_model_without_maps_compiles():
    model = strengthen(PublishedModel()).eval()
    apply_fused_attention(model)
    x, c = inputs()
    out, collected = torch.compile(model, fullgraph=True, backend="aot_eager")(x, additive(), c)
    torch.testing.assert_close(out, model(x, additive(), c)[0])
    with pytest.raises(RuntimeError, match="output_attentions=True"):
        collected[0][0].mean()


def test_patched_model_without_maps_exports():
    model = strengthen(PublishedModel()).eval()
    apply_fused_attention(model)
    x, c = inputs()
    program = torch.export.export(model, (x, additive(), c), strict=False).module()
    torch.testing.assert_close(program(x, additive(), c)[0], model(x, additive(), c)[0])


def test_cg_bert_dropout_applies_to_the_map_only():
    """With values of 1 the output is the sum of a row of the map: 1, and with dropout 1 on average."""
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
def test_cg_bert_mask_hides_keys_by_the_bound(lowest):
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
def test_options_that_cg_bert_does_not_have_raise(option):
    model = PublishedModel(attention=ReleasedContextGuided)
    with pytest.raises(ValueError, match=rf"{next(iter(option))}: expected the default, got .*0\.self is CG-BERT's"):
        apply_fused_attention(model, **option)
    assert all(type(block.self) is ReleasedContextGuided for block in model.layer)


class TanhGates(ReleasedContextGuided):
    """Context-guided attention with the gate of the paper, which differs from that of the code."""

    def __init__(self):
        super().__init__()
        self.quasi_act = nn.Tanh()


def test_cg_bert_with_another_gate_raises():
    with pytest.raises(
        ValueError, match=r"FusedContextMixing, .*relative difference .* The module's gate must be a sigmoid"
    ):
        apply_fused_attention(strengthen(TanhGates()))


class Quantized(nn.Module):
    """A layer without parameters, whose weight is a method, like those of torch.ao.quantization."""

    def __init__(self, layer):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.values = (2 * layer.weight.detach(), 2 * layer.bias.detach())

    def weight(self):
        return self.values[0]

    def forward(self, x):
        return nn.functional.linear(x, *self.values)


GATES = tuple(NAMINGS["released"][role] for role in GATE_ROLES)
CHANGED = {name: (GATES, way) for name, way in WAYS.items()} | {
    "quantized gates": (GATES, Quantized),
    "all layers quantized": (("",), Quantized),
}


@pytest.mark.parametrize(("names", "way"), CHANGED.values(), ids=CHANGED)
@each_kind
def test_patching_keeps_what_hangs_on_layers(make, kind, names, way):
    x, c = inputs()
    module = change(strengthen(make()), names, way).eval()
    expected = module(x, additive(), None, c)
    assert apply_fused_attention(module) == 1
    assert type(module) is kind
    found = module(x, additive(), None, c)
    expected, found = (r if make is ReleasedContextGuided else (r[0], r[4]) for r in (expected, found))
    torch.testing.assert_close(found, expected)


@each_kind
def test_modules_on_the_meta_device_are_patched_by_kind(make, kind):
    model = PublishedModel(attention=make).to("meta")
    assert apply_fused_attention(model) == 2
    assert all(type(block.self) is kind for block in model.layer)


def test_cg_bert_mask_without_values_raises():
    from torch.nn.attention.bias import causal_upper_left  # here, because it imports the compiler

    attention = ReleasedContextGuided()
    apply_fused_attention(attention)
    x, c = inputs()
    with pytest.raises(TypeError, match="attention_mask: expected a tensor whose memory has its values"):
        attention(x, causal_upper_left(LENGTH, LENGTH), None, c)
