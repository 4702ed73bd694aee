"""FusedQuasiAttention equals the formulas and the published code in plain PyTorch."""

import copy
import math

import pytest
import torch
from doubled_layers import WAYS, by_its_weights, change
from errors import error_cases, raises
from judging import assert_same_bits
from oracle import qacg_bert as oracle
from parity import strengthen, weighted_sum
from published_attention import BATCH, HEAD_DIM, HEADS, HIDDEN, LENGTH, VISIBLE, PublishedAttention, additive, inputs
from torch import nn

from qacg_kernels import keep_mask
from qacg_kernels.attention_layers import GATE_ROLES, NAMINGS, GateLayer
from qacg_kernels.nn import FusedQuasiAttention
from qacg_kernels.patch import FusedContextMixing

# Allowed error in roundings of the largest element, in addition to twice the error of eager, which may be 0 over so few
# elements. The kernels keep scores times log2 e: the rounding of that product changes P by roundings of the size of a
# score, here up to 5.
ROUNDINGS = {"reference": 2, "auto": 16}


def assert_within_budget(name, ours, eager, truth, *, roundings, scale):
    """Checks err(ours) <= 2 err(eager in the same dtype) + roundings * eps * scale, both against float64."""
    assert ours.shape == truth.shape, f"{name}: expected shape {tuple(truth.shape)}, got {tuple(ours.shape)}"
    band = roundings * torch.finfo(ours.dtype).eps * scale
    error, eager_error = ((t.detach().double() - truth).abs() for t in (ours, eager))
    assert not error.numel() or error.max() <= 2 * eager_error.max() + band, name


def released_names(module, naming):
    """The module's parameters as float64 leaves under the released names, as the oracle requires."""
    back = {ours: NAMINGS["released"][role] for role, ours in NAMINGS[naming].items()}
    return {
        f"{back[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": p.detach().double().requires_grad_()
        for name, p in module.named_parameters()
    }


def oracle_results(weights, x, c, projection, **scalars):
    rows = [
        oracle.self_attention(weights, *one, heads=HEADS, head_projection=projection == "head", **scalars)
        for one in zip(x, c, VISIBLE)
    ]
    out, a, p, g, lam = (torch.stack(parts) for parts in zip(*rows))
    return out, a, p, g, lam.unsqueeze(-1)


NAMES = ("output", "A", "softmax map", "quasi map", "lambda")
GATES = tuple(NAMINGS["released"][role] for role in GATE_ROLES)


@pytest.mark.parametrize("chosen_backend", list(ROUNDINGS))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("projection", ["hidden", "head"])
@pytest.mark.parametrize("naming", list(NAMINGS))
def test_outputs_and_gradients_match_the_formulas(naming, projection, bias, dtype, chosen_backend):
    eager = strengthen(PublishedAttention(naming, projection, bias)).to(dtype).eval()
    form = dict(naming=naming, context_projection=projection, lambda_bias=bias)
    ours = FusedQuasiAttention(HIDDEN, HEADS, **form, backend=chosen_backend, dtype=dtype)
    ours.eval().load_state_dict(eager.state_dict())

    results, gradients = {}, {}
    for key, module in (("ours", ours), ("eager", eager)):
        x, c = inputs(dtype)
        extra = {"output_attentions": True} if key == "ours" else {}
        results[key] = module(x, additive(dtype), x.device, c, **extra)
        weighted_sum(results[key]).backward()
        gradients[key] = {"hidden_states": x.grad, "context": c.grad} | {
            name: p.grad for name, p in module.named_parameters()
        }
    weights = released_names(eager, naming)
    x, c = (t.detach().double().requires_grad_() for t in inputs(dtype))
    truth = oracle_results(weights, x, c, projection)
    weighted_sum(truth).backward()
    true_gradients = {"hidden_states": x.grad, "context": c.grad}
    for (name, _), leaf in zip(eager.named_parameters(), weights.values()):
        true_gradients[name] = leaf.grad

    roundings = ROUNDINGS[chosen_backend]
    for name, mine, theirs, true in zip(NAMES, results["ours"], results["eager"], truth):
        scale = float(true.detach().abs().max())
        assert_within_budget(name, mine.to(dtype), theirs, true.detach(), roundings=roundings, scale=scale)
    assert gradients["ours"].keys() == true_gradients.keys()
    for name, true in true_gradients.items():
        # The gradient of a bias may cancel; the terms of its sum are as large as those of the weight.
        siblings = [true, *(true_gradients[n] for n in true_gradients if n == name.replace("bias", "weight"))]
        scale = max(float(t.abs().max()) for t in siblings)
        mine, theirs = gradients["ours"][name], gradients["eager"][name]
        assert_within_budget(f"gradient of {name}", mine, theirs, true, roundings=roundings, scale=scale)


def test_scalars_and_gates_per_head_match_the_formulas():
    scalars = {"beta": 0.7, "gamma": 1.6}
    module = FusedQuasiAttention(HIDDEN, HEADS, lambda_per_head=True, quasi_scale=0.4, dtype=torch.float64, **scalars)
    strengthen(module).eval()
    assert module.lambda_q_query_layer.weight.shape == (HEADS, HEAD_DIM)
    x, c = inputs(torch.float64)
    mine = module(x, additive(torch.float64), None, c, output_attentions=True)
    weighted_sum(mine).backward()
    weights = released_names(module, "released")
    truth = oracle_results(weights, x.detach(), c.detach(), "hidden", alpha=0.4, **scalars)
    weighted_sum(truth).backward()
    torch.testing.assert_close(dict(zip(NAMES, mine)), dict(zip(NAMES, truth)))
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    torch.testing.assert_close(gradients, {name: weights[name].grad for name in gradients})


@pytest.mark.parametrize("own", list(NAMINGS))
def test_each_naming_loads_the_other(own):
    other = next(n for n in NAMINGS if n != own)
    source = strengthen(FusedQuasiAttention(HIDDEN, HEADS, naming=other))
    target = nn.ModuleDict({"self": FusedQuasiAttention(HIDDEN, HEADS, naming=own)})
    target.load_state_dict({f"self.{k}": v for k, v in source.state_dict().items()})
    for role in NAMINGS[own]:
        assert_same_bits(target["self"].layer(role).state_dict(), source.layer(role).state_dict())
    own_names = {f"{name}.{kind}" for name in NAMINGS[own].values() for kind in ("weight", "bias")}
    assert set(target["self"].state_dict()) == own_names


def test_loading_of_the_other_naming_is_strict():
    def load(state, message, **options):
        with pytest.raises(RuntimeError, match=message):
            FusedQuasiAttention(HIDDEN, HEADS, **options).load_state_dict(state)

    compact = FusedQuasiAttention(HIDDEN, HEADS, naming="compact").state_dict()
    load(compact, r"Unexpected key.*lambda_q_query_layer\.bias", lambda_bias=False)
    del compact["Wcq.weight"]
    load(compact, r"Missing key.*context_for_q\.weight")
    both = FusedQuasiAttention(HIDDEN, HEADS).state_dict()
    load(both | {"Wq.weight": both["query.weight"] + 1}, r"Unexpected key.*Wq\.weight")


def test_initial_gate_equals_the_published_code():
    torch.manual_seed(0)
    module = FusedQuasiAttention(4096, 4)
    for name in GATES:
        layer = getattr(module, name)
        assert 0.0095 < float(layer.weight.detach().std()) < 0.0105, name
        assert not layer.bias.any(), name


MASKS = {
    "boolean (B, 1, 1, L)": VISIBLE[:, None, None, :],
    "boolean (B, L, L)": VISIBLE[:, None, :].expand(-1, LENGTH, -1),
    "boolean (B, L)": VISIBLE,
    "integer (B, L)": VISIBLE.long(),
    "additive double": additive(torch.float64),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_equivalent_masks_give_equal_outputs(mask):
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS)).eval()
    x, c = inputs()
    expected = module(x, additive(), None, c, output_attentions=True)
    unmasked = module(x, None, None, c)
    assert not torch.allclose(expected[0], unmasked[0])
    got = module(x, mask, None, c, output_attentions=True)
    torch.testing.assert_close(dict(zip(NAMES, got)), dict(zip(NAMES, expected)))


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("requested", [None, False, True])
def test_maps_are_returned_only_on_request(requested, default):
    x, c = inputs()
    module = FusedQuasiAttention(HIDDEN, HEADS, output_attentions=default).eval()
    out, *maps, lam = module(x, None, None, c, output_attentions=requested)
    assert (out.shape, lam.shape) == ((BATCH, LENGTH, HIDDEN), (BATCH, HEADS, LENGTH, 1))
    returned = default if requested is None else requested
    assert [m if m is None else m.shape for m in maps] == [(BATCH, HEADS, LENGTH, LENGTH) if returned else None] * 3


def test_dropout_applies_to_map_context_queries_and_keys():
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS, dropout=0.4, dtype=torch.float64)).train()
    dropped = []
    module.dropout.register_forward_hook(lambda _, args, out: dropped.append((args[0], out)))
    x, c = inputs(torch.float64)
    torch.manual_seed(3)
    out, a, p, g, lam = module(x, None, None, c, output_attentions=True)

    assert len(dropped) == 2
    for before, after in dropped:
        kept = after != 0
        torch.testing.assert_close(after[kept], before[kept] / 0.6)
        assert 0.4 < float(kept.double().mean()) < 0.8
    cq, ck = (after.transpose(1, 2) for _, after in dropped)
    q, k, v = (
        getattr(module, name)(x).view(BATCH, LENGTH, HEADS, HEAD_DIM).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    gates = [
        torch.sigmoid(getattr(module, f"lambda_{s}_{own}_layer")(t) + getattr(module, f"lambda_{s}_context_layer")(tc))
        for s, own, t, tc in (("q", "query", q, cq), ("k", "key", k, ck))
    ]
    torch.testing.assert_close(lam, 1 - (gates[0] + gates[1]))
    torch.testing.assert_close(p, ((q @ k.mT) / math.sqrt(HEAD_DIM)).softmax(-1))
    torch.testing.assert_close(g, lam * torch.sigmoid((cq @ ck.mT) / math.sqrt(HEAD_DIM)))
    kept = a != 0
    assert 0.5 < float(kept.double().mean()) < 0.7
    torch.testing.assert_close(a[kept], ((p + g) / 0.6)[kept], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(out, (a @ v).transpose(1, 2).flatten(-2))


def test_dropout_depends_on_generator_and_mode(monkeypatch):
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS, dropout=0.3)).train()
    x, c = inputs()

    def run(seed):
        torch.manual_seed(seed)
        return module(x, None, None, c, output_attentions=True)

    assert torch.equal(run(0)[0], run(0)[0])
    assert not torch.allclose(run(0)[0], run(1)[0])
    # The mask is that of the seed that the module draws.
    seed = torch.tensor(1234)
    monkeypatch.setattr("qacg_kernels.nn.draw_dropout_seed", lambda device: seed)
    assert torch.equal(run(0)[1] != 0, keep_mask(seed, 0.3, BATCH, HEADS, LENGTH, LENGTH))
    module.eval()
    assert torch.equal(run(0)[0], run(1)[0])


@pytest.mark.parametrize("projection", ["hidden", "head"])
def test_packed_sequences_equal_padded_ones(projection):
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS, context_projection=projection, dtype=torch.float64))
    module.eval()
    x, c = inputs(torch.float64)
    padded = module(x, VISIBLE, None, c)
    weighted_sum([padded[0][VISIBLE], padded[4].transpose(1, 2)[VISIBLE]]).backward()
    expected = [x.grad[VISIBLE], c.grad[VISIBLE], *(p.grad.clone() for p in module.parameters())]
    module.zero_grad()

    offsets = torch.tensor([0, *VISIBLE.sum(1).cumsum(0).tolist()], dtype=torch.int32)
    xp, cp = (t.detach()[VISIBLE].requires_grad_() for t in (x, c))
    out, a, p, g, lam = module(xp, None, None, cp, cu_seqlens=offsets, max_seqlen=LENGTH)
    assert a is p is g is None
    torch.testing.assert_close(out, padded[0][VISIBLE])
    torch.testing.assert_close(lam, padded[4].transpose(1, 2)[VISIBLE])
    weighted_sum([out, lam]).backward()
    for mine, true in zip([xp.grad, cp.grad, *(p.grad for p in module.parameters())], expected):
        torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("heads, length", [(1, 1), (1, 4), (3, 3), (12, 12)])
def test_equal_sizes_are_not_confused(heads, length):
    """Cases: as many heads as positions, one head of the whole width, heads of width 1."""
    module = strengthen(FusedQuasiAttention(HIDDEN, heads, dtype=torch.float64)).eval()
    x, c = torch.randn(2, 1, length, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    out, *_, lam = module(x, None, None, c)
    weights, visible = dict(module.named_parameters()), torch.ones(length, dtype=torch.bool)
    true = oracle.self_attention(weights, x[0], c[0], visible, heads=heads, head_projection=False)
    torch.testing.assert_close(out[0], true[0])
    torch.testing.assert_close(lam[0, ..., 0], true[-1])


def test_autocast_computes_in_lower_precision():
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS)).eval()
    x, c = inputs()
    exact = module(x, additive(), None, c)
    with torch.autocast("cpu", torch.bfloat16):
        rough = module(x, additive(), None, c)
    assert [rough[0].dtype, rough[4].dtype] == [torch.bfloat16] * 2
    torch.testing.assert_close(rough[0].float(), exact[0], atol=0.15, rtol=0.05)
    rough[0].float().sum().backward()
    assert module.lambda_q_query_layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("autocast", [False, True])
def test_gate_has_the_parameters_of_its_layers(autocast):
    module = FusedQuasiAttention(HIDDEN, HEADS)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        gate = module.gate(module.project(X, C))
    for role in GATE_ROLES:
        name, layer = role.removeprefix("gate_"), module.layer(role)
        assert getattr(gate, name) is layer.weight
        assert getattr(gate, f"{name}_bias") is layer.bias


def test_gate_of_another_16_bit_type_follows_autocast():
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS)).eval()
    with torch.autocast("cpu", torch.bfloat16):
        expected = module(X, context=C)[4]
        for role in GATE_ROLES:
            module.layer(role).half()
        found = module(X, context=C)[4]
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


@pytest.mark.full
@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("mask", [None, VISIBLE, additive()], ids=["none", "boolean", "additive"])
def test_compiled_module_equals_eager(mask, maps):
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS, dropout=0.0)).train()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x, c = inputs()
    results = [[t for t in m(x, mask, None, c, output_attentions=maps) if t is not None] for m in (compiled, module)]
    torch.testing.assert_close(*results)
    results[0][0].sum().backward()
    assert bool(module.context_for_q.weight.grad.any())


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per_head"])
def test_gate_layer_that_is_not_plain_is_called(per_head, way):
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS, dropout=0.0, lambda_per_head=per_head, beta=0.7, gamma=0.9))
    expected = change(copy.deepcopy(module), GATES, by_its_weights)
    module = change(module, GATES, way)
    packed = {"cu_seqlens": torch.tensor([0, 2, LENGTH]), "max_seqlen": 3}
    for options in ({"attention_mask": VISIBLE, "output_attentions": True}, packed):
        results = []
        for each in (module, expected):
            x, c = (t.detach()[0] if options is packed else t.detach() for t in inputs())
            x.requires_grad_()
            outputs = [t for t in each(x, context=c, **options) if t is not None]
            weighted_sum(outputs).backward()
            results.append([*outputs, x.grad])
        torch.testing.assert_close(results[0], results[1])
    trained = [p for p in module.parameters() if not p.is_meta]
    assert all(p.grad is not None and p.grad.any() for p in trained)


@pytest.mark.parametrize("kind", [nn.Linear, GateLayer])
def test_forward_replaced_on_the_class_of_gates_is_called(kind, monkeypatch):
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS, dropout=0.0)).eval()
    names = [name for name, layer in module.named_children() if isinstance(layer, kind)]
    expected = change(copy.deepcopy(module), tuple(names), by_its_weights)(X, context=C)
    monkeypatch.setattr(kind, "forward", lambda layer, x: 2 * nn.functional.linear(x, layer.weight, layer.bias))
    found = module(X, context=C)
    torch.testing.assert_close((found[0], found[4]), (expected[0], expected[4]))


@pytest.mark.parametrize("kind", [FusedQuasiAttention, FusedContextMixing])
def test_gate_weight_on_another_device_raises(kind):
    module = FusedQuasiAttention(HIDDEN, HEADS, dropout=0.0, lambda_bias=False)
    module.__class__ = kind
    module.lambda_q_query_layer.to("meta")
    with pytest.raises(ValueError, match=r"query.*: expected .*device cpu like .*, got meta"):
        module(X, context=C)


def test_called_gate_layers_compile_and_export():
    module = change(strengthen(FusedQuasiAttention(HIDDEN, HEADS, dropout=0.0)), GATES, WAYS["adapter"]).eval()
    expected = module(X, context=C)[0]
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X, context=C)[0], expected)
    program = torch.export.export(module, (X,), {"context": C}, strict=False).module()
    torch.testing.assert_close(program(X, context=C)[0], expected)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_module_computes_lambda_in_the_kernel(strict):
    module = FusedQuasiAttention(HIDDEN, HEADS, dropout=0.0).eval()
    program = torch.export.export(module, (X,), {"context": C}, strict=strict)
    assert not any("sigmoid" in str(node.target) for node in program.graph.nodes)


def test_fsdp2_around_single_layers_keeps_the_values(tmp_path):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS, dropout=0.0))
    expected = module(X, context=C)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        for layer in [layer for layer in module.modules() if isinstance(layer, nn.Linear)]:
            fsdp.fully_shard(layer, mesh=mesh)
        found = module(X, context=C)
        found[0].sum().backward()
        torch.testing.assert_close((found[0], found[4]), (expected[0], expected[4]))
        assert all(p.grad is not None for p in module.parameters())
    finally:
        torch.distributed.destroy_process_group()


X, C = (t.detach() for t in inputs())
PACKED = dict(hidden_states=X[0], context=C[0], cu_seqlens=torch.tensor([0, 5]), max_seqlen=5)
BAD_CALLS = {
    "TypeError: context: expected exactly one... got 0": dict(context=None),
    "ValueError: context: expected shape (2, 5, 12) like hidden_states, got (2, 1, 12)": dict(context=C[:, :1]),
    "ValueError: hidden_states: expected shape (B, L, 12), got (5, 12)": dict(hidden_states=X[0], context=C[0]),
    "ValueError: device: expected type 'cpu' like hidden_states, got 'cuda:0'": dict(device="cuda:0"),
    "ValueError: attention_mask: expected boolean or integer...float32": dict(attention_mask=VISIBLE.float()),
    "ValueError: attention_mask: expected shape (B, L) = (2, 5)": dict(attention_mask=VISIBLE[:, :3]),
    "ValueError: attention_mask: expected a tensor without gradient... Pass attention_mask.detach()": dict(
        attention_mask=torch.zeros(2, 1, 5, 5, requires_grad=True)
    ),
    "ValueError: attention_mask...got other integers": dict(attention_mask=VISIBLE * -10000),
    "ValueError: attention_mask: expected boolean or integer...shape (5,)": dict(attention_mask=VISIBLE[0]),
    "ValueError: attention_mask: expected device cpu like hidden_states, got meta": dict(
        attention_mask=additive().to("meta")
    ),
    "ValueError: attention_mask: expected a shape that broadcasts to (B, H, L, L) = (2, 3, 5, 5)": dict(
        attention_mask=additive()[..., :4]
    ),
    "TypeError: hidden_states: expected dtype torch.float32, that of the weights, got torch.float64. Convert one": dict(
        hidden_states=X.double(), context=C.double()
    ),
    "TypeError: hidden_states: expected a floating dtype, such as torch.float32, got torch.int64. Convert it": dict(
        hidden_states=X.long()
    ),
    "ValueError: max_seqlen: expected None without cu_seqlens": dict(max_seqlen=5),
    "ValueError: max_seqlen: expected the length of the longest": PACKED | {"max_seqlen": None},
    "ValueError: attention_mask: expected None with cu_seqlens": PACKED | {"attention_mask": VISIBLE},
    "ValueError: output_attentions: expected False with cu_seqlens": PACKED | {"output_attentions": True},
    # The context as the second or the third argument.
    "TypeError: attention_mask: expected a mask, got shape (2, 5, 12), that of hidden_states...Pass context=": dict(
        attention_mask=C, context=None
    ),
    "TypeError: device: expected a device, got a tensor as the third argument...Pass context=": dict(
        device=C, context=None
    ),
    "TypeError: device: expected a device, got a tensor as the third": dict(attention_mask=additive(), device=C),
}


@error_cases(BAD_CALLS)
def test_bad_calls_name_expected_and_actual_value(error, given):
    with raises(error):
        FusedQuasiAttention(HIDDEN, HEADS)(**{"hidden_states": X, "context": C} | given)


BAD_SETTINGS = {
    "ValueError: hidden_size: expected a multiple of num_heads = 5, got 12": {"num_heads": 5},
    "ValueError: num_heads: expected at least 1, got 0": {"num_heads": 0},
    "TypeError: num_heads: expected an integer, got 3.0": {"num_heads": 3.0},
    "ValueError: dropout: expected a probability in ..., got 1.0": {"dropout": 1.0},
    "ValueError: beta: expected a finite number, got nan": {"beta": float("nan")},
    "ValueError: context_projection: expected one of 'hidden', 'head', got 'heads'": {"context_projection": "heads"},
    "ValueError: naming: expected one of 'released', 'compact', got 'other'": {"naming": "other"},
    "ValueError: backend: expected one of 'auto'": {"backend": "gpu"},
    "TypeError: lambda_bias: expected True or False, got 'no'": {"lambda_bias": "no"},
    "TypeError: dtype: expected a floating torch.dtype or None, got torch.int64": {"dtype": torch.int64},
    "ValueError: device: expected a device of torch or None, got 'gpu'": {"device": "gpu"},
}


@error_cases(BAD_SETTINGS)
def test_bad_settings_name_expected_and_actual_value(error, given):
    with raises(error):
        FusedQuasiAttention(**{"hidden_size": HIDDEN, "num_heads": HEADS, **given})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtype_under_autocast_is_not_checked(dtype):
    module = FusedQuasiAttention(HIDDEN, HEADS).eval()
    with torch.autocast("cpu", torch.bfloat16):
        expected = module(X, context=C)[0]
        found = module(X.to(dtype), context=C.to(dtype))[0]
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.05, atol=0.05)


def test_dtype_of_converting_layers_is_not_checked():
    module = FusedQuasiAttention(HIDDEN, HEADS).eval()
    plain = module(X, context=C)[0]
    for name in ("query", "key", "value", "context_for_q", "context_for_k"):
        getattr(module, name).register_forward_pre_hook(lambda layer, x: x[0].to(layer.weight.dtype))
    assert torch.equal(module(X.double(), context=C.double())[0], plain)


class LeafTracer(torch.fx.Tracer):
    def is_leaf_module(self, module, path):
        return isinstance(module, FusedQuasiAttention)


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = FusedQuasiAttention(HIDDEN, HEADS)

    def forward(self, x, c):
        return self.attention(x, context=c)[0]


def test_module_is_a_leaf_of_an_fx_graph():
    module = Around().eval()
    traced = torch.fx.GraphModule(module, LeafTracer().trace(module))
    assert torch.equal(traced(X, C), module(X, C))
