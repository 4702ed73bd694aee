"""FusedQuasiAttention and apply_fused_attention, against formulas and plain code in the published style."""

import copy
import math

import pytest
import torch
from oracle import qacg_bert as oracle
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import qacg_kernels as qk
from qacg_kernels import keep_mask
from qacg_kernels.nn import NAMINGS, FusedQuasiAttention
from qacg_kernels.patch import apply_fused_attention

BATCH, LENGTH, HIDDEN, HEADS = 2, 5, 12, 3
HEAD_DIM = HIDDEN // HEADS
VISIBLE = torch.tensor([[True] * LENGTH, [True, True, True, False, False]])


# Roundings of the largest element that a result may be off beside twice eager's error. Eager's own error over
# so few elements is a matter of luck (it may be 0). The kernels keep scores in powers of two: the factor log2 e is
# rounded with them, which shows in P as roundings of the size of a score, here up to 5.
ROUNDINGS = {"reference": 2, "auto": 16}


def assert_within_budget(name, ours, eager, truth, *, roundings, scale):
    """err(ours) <= 2 err(eager in the same dtype) + roundings * eps * scale, both against float64."""
    assert ours.shape == truth.shape, f"{name}: shape {tuple(ours.shape)}, wanted {tuple(truth.shape)}"
    band = roundings * torch.finfo(ours.dtype).eps * scale
    error = (ours.detach().double() - truth).abs()
    budget = 2 * float((eager.detach().double() - truth).abs().max()) + band
    assert bool((error <= budget).all()), (
        f"{name}: error {float(error.max()):.3e} over the budget {budget:.3e} in "
        f"{float((error > budget).double().mean()):.1%} of elements; worst at {int(error.argmax())}: "
        f"{float(ours.flatten()[error.argmax()])} for {float(truth.flatten()[error.argmax()])}"
    )


class PublishedAttention(nn.Module):
    """The attention of the published models in plain PyTorch, in either naming and every published shape."""

    def __init__(self, naming="released", projection="hidden", bias=True, dropout=0.1):
        super().__init__()
        sizes = {
            **dict.fromkeys(("query", "key", "value"), (HIDDEN, HIDDEN, True)),
            **dict.fromkeys(
                ("context_query", "context_key"),
                (HIDDEN, HIDDEN, True) if projection == "hidden" else (HEAD_DIM, HEAD_DIM, True),
            ),
            **dict.fromkeys(("gate_query", "gate_context_query", "gate_key", "gate_context_key"), (HEAD_DIM, 1, bias)),
        }
        self.names = NAMINGS[naming]
        self.projection = projection
        for role, (size_in, size_out, with_bias) in sizes.items():
            self.add_module(self.names[role], nn.Linear(size_in, size_out, bias=with_bias))
        self.dropout = nn.Dropout(dropout)
        self.quasi_act = nn.Sigmoid()

    def apply_layer(self, role, x):
        return getattr(self, self.names[role])(x)

    def drop(self, x):
        return self.dropout(x)

    def heads(self, x):
        return x.reshape(*x.shape[:2], HEADS, -1).permute(0, 2, 1, 3)

    def context_heads(self, role, context):
        if self.projection == "head":
            return self.drop(self.apply_layer(role, self.heads(context)))
        return self.drop(self.heads(self.apply_layer(role, context)))

    def forward(self, hidden_states, attention_mask, device=None, C_embed=None):
        q, k, v = (self.heads(self.apply_layer(r, hidden_states)) for r in ("query", "key", "value"))
        cq, ck = (self.context_heads(r, C_embed) for r in ("context_query", "context_key"))
        p = ((q @ k.mT) / math.sqrt(HEAD_DIM) + attention_mask).softmax(-1)
        g = self.quasi_act((cq @ ck.mT) / math.sqrt(HEAD_DIM) + attention_mask)
        lq = self.quasi_act(self.apply_layer("gate_query", q) + self.apply_layer("gate_context_query", cq))
        lk = self.quasi_act(self.apply_layer("gate_key", k) + self.apply_layer("gate_context_key", ck))
        lam = 1 - (lq + lk)
        a = self.drop(p + lam * g)
        out = (a @ v).permute(0, 2, 1, 3).reshape(hidden_states.shape)
        return out, a, p, lam * g, lam


class ContextGuidedAttention(PublishedAttention):
    """The same layers under the same names, another formula: queries and keys mixed with the context's."""

    def forward(self, hidden_states, attention_mask, device=None, C_embed=None):
        q, k, v = (self.heads(self.apply_layer(r, hidden_states)) for r in ("query", "key", "value"))
        cq, ck = (self.context_heads(r, C_embed) for r in ("context_query", "context_key"))
        lq = self.quasi_act(self.apply_layer("gate_query", q) + self.apply_layer("gate_context_query", cq))
        lk = self.quasi_act(self.apply_layer("gate_key", k) + self.apply_layer("gate_context_key", ck))
        q, k = (1 - lq) * q + lq * cq, (1 - lk) * k + lk * ck
        p = self.dropout(((q @ k.mT) / math.sqrt(HEAD_DIM) + attention_mask).softmax(-1))
        return (p @ v).permute(0, 2, 1, 3).reshape(hidden_states.shape), p, p, p, lq


class PublishedBlock(nn.Module):
    """Calls its attention as the published block does: .forward, positionally."""

    def __init__(self, attention):
        super().__init__()
        self.self = attention
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, x, mask, device, context):
        out, *rest = self.self.forward(x, mask, device, context)
        return self.norm(x + out), *rest


class PublishedModel(nn.Module):
    """Clones the four maps of every layer, as the published encoder does."""

    def __init__(self, *, attention=PublishedAttention, layers=2, **kwargs):
        super().__init__()
        self.layer = nn.ModuleList(PublishedBlock(attention(**kwargs)) for _ in range(layers))

    def forward(self, x, mask, context):
        collected = []
        for layer in self.layer:
            x, *maps = layer(x, mask, x.device, context)
            collected.append([m.clone() for m in maps])
        return x, collected


def strengthen(module):
    """Weights large enough that scores, gates and biases all matter."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return module


def inputs(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, c = torch.randn(2, BATCH, LENGTH, HIDDEN, generator=generator).to(dtype)
    return x.requires_grad_(), c.requires_grad_()


def additive(dtype=torch.float32):
    return torch.where(VISIBLE, 0.0, -10000.0)[:, None, None, :].to(dtype)


def weighted_sum(tensors):
    """A scalar in which every element of every output has a weight of its own."""
    total = 0.0
    for n, t in enumerate(tensors):
        weights = torch.randn(t.shape, generator=torch.Generator().manual_seed(100 + n)).double()
        total = total + (t.double() * weights.to(t.device)).sum()
    return total


def released_names(module, naming):
    """The module's parameters as float64 leaves under the released names, which the oracle speaks."""
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


@pytest.mark.parametrize("chosen_backend", list(ROUNDINGS))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("projection", ["hidden", "head"])
@pytest.mark.parametrize("naming", list(NAMINGS))
def test_outputs_and_every_gradient_match_the_formulas(naming, projection, bias, dtype, chosen_backend):
    eager = strengthen(PublishedAttention(naming, projection, bias)).to(dtype).eval()
    ours = FusedQuasiAttention(
        HIDDEN,
        HEADS,
        naming=naming,
        context_projection=projection,
        lambda_bias=bias,
        backend=chosen_backend,
        dtype=dtype,
    )
    ours.eval().load_state_dict(eager.state_dict())

    results, gradients = {}, {}
    for which, module in (("ours", ours), ("eager", eager)):
        x, c = inputs(dtype)
        extra = {"output_attentions": True} if which == "ours" else {}
        results[which] = module(x, additive(dtype), x.device, c, **extra)
        weighted_sum(results[which]).backward()
        gradients[which] = {"hidden_states": x.grad, "context": c.grad} | {
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
        # A bias gradient may cancel to little; the terms of its sum are as large as those of the weight's.
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
    for name, ours, true in zip(NAMES, mine, truth):
        torch.testing.assert_close(ours, true, msg=lambda m, n=name: f"{n}: {m}")
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("own", list(NAMINGS))
def test_either_naming_loads_into_either(own):
    other = next(n for n in NAMINGS if n != own)
    source = strengthen(FusedQuasiAttention(HIDDEN, HEADS, naming=other))
    target = nn.ModuleDict({"self": FusedQuasiAttention(HIDDEN, HEADS, naming=own)})
    target.load_state_dict({f"self.{k}": v for k, v in source.state_dict().items()})
    for role in NAMINGS[own]:
        assert torch.equal(target["self"].layer(role).weight, source.layer(role).weight), role
        assert torch.equal(target["self"].layer(role).bias, source.layer(role).bias), role
    own_names = {f"{name}.{kind}" for name in NAMINGS[own].values() for kind in ("weight", "bias")}
    assert set(target["self"].state_dict()) == own_names


def test_loading_the_other_naming_is_strict():
    with_bias = FusedQuasiAttention(HIDDEN, HEADS, naming="compact").state_dict()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*lambda_q_query_layer\.bias"):
        FusedQuasiAttention(HIDDEN, HEADS, lambda_bias=False).load_state_dict(with_bias)
    del with_bias["Wcq.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*context_for_q\.weight"):
        FusedQuasiAttention(HIDDEN, HEADS).load_state_dict(with_bias)
    both = FusedQuasiAttention(HIDDEN, HEADS).state_dict()
    both["Wq.weight"] = both["query.weight"] + 1
    with pytest.raises(RuntimeError, match=r"Unexpected key.*Wq\.weight"):
        FusedQuasiAttention(HIDDEN, HEADS).load_state_dict(both)


def test_initial_gate_is_that_of_the_published_code():
    torch.manual_seed(0)
    module = FusedQuasiAttention(4096, 4)
    for name in (
        "lambda_q_query_layer",
        "lambda_q_context_layer",
        "lambda_k_key_layer",
        "lambda_k_context_layer",
    ):
        layer = getattr(module, name)
        assert 0.0095 < float(layer.weight.detach().std()) < 0.0105, name
        assert not layer.bias.any(), name


MASKS = {
    "boolean (B, 1, 1, L)": VISIBLE[:, None, None, :],
    "boolean (B, L, L)": VISIBLE[:, None, :].expand(-1, LENGTH, -1),
    "boolean (B, L)": VISIBLE,
    "integer (B, L)": VISIBLE.long(),
    "additive double": additive(torch.float64),
    "additive (B, L, L)": additive()[:, 0].expand(-1, LENGTH, -1),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_all_forms_of_a_mask_mean_the_same(mask):
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS)).eval()
    x, c = inputs()
    expected = module(x, additive(), None, c, output_attentions=True)
    unmasked = module(x, None, None, c)
    assert not torch.allclose(expected[0], unmasked[0])
    for name, mine, wanted in zip(NAMES, module(x, mask, None, c, output_attentions=True), expected):
        torch.testing.assert_close(mine, wanted, msg=lambda m, n=name: f"{n}: {m}")


def test_maps_come_only_when_asked_for():
    x, c = inputs()
    for default in (False, True):
        module = FusedQuasiAttention(HIDDEN, HEADS, output_attentions=default).eval()
        for asked in (None, False, True):
            out, a, p, g, lam = module(x, None, None, c, output_attentions=asked)
            assert out.shape == (BATCH, LENGTH, HIDDEN)
            assert lam.shape == (BATCH, HEADS, LENGTH, 1)
            if default if asked is None else asked:
                assert a.shape == p.shape == g.shape == (BATCH, HEADS, LENGTH, LENGTH)
            else:
                assert a is p is g is None


def test_dropout_acts_on_map_and_on_context_queries_and_keys():
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


def test_dropout_follows_the_generator_and_the_mode(monkeypatch):
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS, dropout=0.3)).train()
    x, c = inputs()

    def run(seed):
        torch.manual_seed(seed)
        return module(x, None, None, c)[0]

    assert torch.equal(run(0), run(0))
    assert not torch.allclose(run(0), run(1))
    module.eval()
    assert torch.equal(run(0), run(1))

    # The mask is that of the seed which the module draws, so a test elsewhere can rebuild it.
    module.train()
    seed = torch.tensor(1234)
    monkeypatch.setattr("qacg_kernels.nn.draw_dropout_seed", lambda device: seed)
    a = module(x, None, None, c, output_attentions=True)[1]
    assert torch.equal(a != 0, keep_mask(seed, 0.3, BATCH, HEADS, LENGTH, LENGTH))


@pytest.mark.parametrize("projection", ["hidden", "head"])
def test_packed_sequences_match_padded_ones(projection):
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS, context_projection=projection, dtype=torch.float64))
    module.eval()
    x, c = inputs(torch.float64)
    padded = module(x, VISIBLE, None, c)
    weighted_sum([padded[0][VISIBLE], padded[4].transpose(1, 2)[VISIBLE]]).backward()
    wanted = [x.grad[VISIBLE], c.grad[VISIBLE], *(p.grad.clone() for p in module.parameters())]
    module.zero_grad()

    offsets = torch.tensor([0, *VISIBLE.sum(1).cumsum(0).tolist()], dtype=torch.int32)
    xp, cp = (t.detach()[VISIBLE].requires_grad_() for t in (x, c))
    out, a, p, g, lam = module(xp, None, None, cp, cu_seqlens=offsets, max_seqlen=LENGTH)
    assert a is p is g is None
    torch.testing.assert_close(out, padded[0][VISIBLE])
    torch.testing.assert_close(lam, padded[4].transpose(1, 2)[VISIBLE])
    weighted_sum([out, lam]).backward()
    for mine, true in zip([xp.grad, cp.grad, *(p.grad for p in module.parameters())], wanted):
        torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("heads, length", [(1, 1), (1, 4), (3, 3), (12, 12)])
def test_sizes_that_look_like_each_other(heads, length):
    """A head count equal to the length, heads of the whole width and heads of width 1 are not confused."""
    module = strengthen(FusedQuasiAttention(HIDDEN, heads, dtype=torch.float64)).eval()
    x, c = torch.randn(2, 1, length, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    out, *_, lam = module(x, None, None, c)
    true = oracle.self_attention(
        dict(module.named_parameters()),
        x[0],
        c[0],
        torch.ones(length, dtype=torch.bool),
        heads=heads,
        head_projection=False,
    )
    torch.testing.assert_close(out[0], true[0])
    torch.testing.assert_close(lam[0, ..., 0], true[-1])


def test_autocast_computes_in_the_lower_precision():
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS)).eval()
    x, c = inputs()
    exact = module(x, additive(), None, c)
    with torch.autocast("cpu", torch.bfloat16):
        rough = module(x, additive(), None, c)
    assert rough[0].dtype == rough[4].dtype == torch.bfloat16
    torch.testing.assert_close(rough[0].float(), exact[0], atol=0.15, rtol=0.05)
    rough[0].float().sum().backward()
    assert module.lambda_q_query_layer.weight.grad.dtype == torch.float32


@pytest.mark.full
def test_compiles_whole_and_gives_the_same():
    module = strengthen(FusedQuasiAttention(HIDDEN, HEADS, dropout=0.0)).train()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x, c = inputs()
    for mask in (None, VISIBLE, additive()):
        for maps in (False, True):
            mine = compiled(x, mask, None, c, output_attentions=maps)
            wanted = module(x, mask, None, c, output_attentions=maps)
            for name, a, b in zip(NAMES, mine, wanted):
                if b is not None:
                    torch.testing.assert_close(a, b, msg=lambda m, n=name: f"{n}: {m}")
    compiled(x, None, None, c)[0].sum().backward()
    assert bool(module.context_for_q.weight.grad.any())


def test_deep_copies_are_independent():
    module = FusedQuasiAttention(HIDDEN, HEADS, naming="compact")
    twin = copy.deepcopy(module)
    strengthen(twin)
    assert not torch.equal(twin.Wq.weight, module.Wq.weight)
    twin.load_state_dict(FusedQuasiAttention(HIDDEN, HEADS).state_dict())  # its hook is its own


X, C = (t.detach() for t in inputs())
BAD_CALLS = {
    "no context": (TypeError, "context: expected exactly one.* got 0", lambda m: m(X)),
    "two contexts": (TypeError, "context: expected exactly one.* got 2", lambda m: m(X, None, None, C, C_embed=C)),
    "context shape": (
        ValueError,
        r"context: expected shape \(2, 5, 12\) like hidden_states, got \(2, 1, 12\)",
        lambda m: m(X, context=C[:, :1]),
    ),
    "context type": (TypeError, "context: expected a torch.Tensor, got list", lambda m: m(X, None, None, [1])),
    "hidden type": (
        TypeError,
        "hidden_states: expected a torch.Tensor, got NoneType",
        lambda m: m(None, None, None, C),
    ),
    "hidden rank": (
        ValueError,
        r"hidden_states: expected shape \(B, L, 12\), got \(5, 12\)",
        lambda m: m(X[0], context=C[0]),
    ),
    "hidden width": (ValueError, r"expected shape \(B, L, 12\)", lambda m: m(X[..., :6], context=C[..., :6])),
    "device": (
        ValueError,
        "device: expected that of hidden_states, cpu, got cuda:0",
        lambda m: m(X, None, "cuda:0", C),
    ),
    "float (B, L) mask": (
        ValueError,
        "attention_mask: expected boolean or integer",
        lambda m: m(X, VISIBLE.float(), None, C),
    ),
    "mask length": (
        ValueError,
        r"attention_mask: expected \(B, L\) = \(2, 5\)",
        lambda m: m(X, VISIBLE[:, :3], None, C),
    ),
    "mask values": (ValueError, "got other integers", lambda m: m(X, VISIBLE * -10000, None, C)),
    "mask type": (
        TypeError,
        "attention_mask: expected a torch.Tensor or None, got str",
        lambda m: m(X, "causal", None, C),
    ),
    "mask rank": (ValueError, "attention_mask: expected boolean or floating", lambda m: m(X, VISIBLE[0], None, C)),
    "integer 4-D mask": (
        ValueError,
        "attention_mask: expected boolean or floating",
        lambda m: m(X, additive().long(), None, C),
    ),
    "mask that does not broadcast": (
        ValueError,
        "attn_mask: expected",
        lambda m: m(X, additive()[..., :4], None, C),
    ),
    "dtypes": (RuntimeError, "dtype", lambda m: m(X.double(), None, None, C.double())),
    "max_seqlen alone": (
        ValueError,
        "max_seqlen: expected None without cu_seqlens",
        lambda m: m(X, context=C, max_seqlen=5),
    ),
    "cu_seqlens alone": (
        ValueError,
        "max_seqlen: expected the longest length",
        lambda m: m(X[0], context=C[0], cu_seqlens=torch.tensor([0, 5])),
    ),
    "packed and masked": (
        ValueError,
        "attention_mask: expected None beside cu_seqlens",
        lambda m: m(X[0], VISIBLE, context=C[0], cu_seqlens=torch.tensor([0, 5]), max_seqlen=5),
    ),
    "packed maps": (
        ValueError,
        "output_attentions: expected False beside cu_seqlens",
        lambda m: m(X[0], context=C[0], cu_seqlens=torch.tensor([0, 5]), max_seqlen=5, output_attentions=True),
    ),
    "packed offsets": (
        ValueError,
        "cu_seqlens",
        lambda m: m(X[0], context=C[0], cu_seqlens=torch.tensor([0, 4, 2, 5]), max_seqlen=5),
    ),
    "unknown keyword": (TypeError, "contxt", lambda m: m(X, contxt=C)),
}


@pytest.mark.parametrize("error, message, call", BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls_name_expected_and_actual_value(error, message, call):
    with pytest.raises(error, match=message):
        call(FusedQuasiAttention(HIDDEN, HEADS))


BAD_SETTINGS = {
    "not a multiple": (
        ValueError,
        "hidden_size: expected a multiple of num_heads = 5, got 12",
        {"num_heads": 5},
    ),
    "no heads": (ValueError, "num_heads: expected at least 1, got 0", {"num_heads": 0}),
    "heads not integer": (TypeError, "num_heads: expected an integer, got 3.0", {"num_heads": 3.0}),
    "negative size": (ValueError, "hidden_size: expected at least 1, got -12", {"hidden_size": -12}),
    "dropout 1": (ValueError, r"dropout: expected a probability in .*, got 1\.0", {"dropout": 1.0}),
    "dropout NaN": (ValueError, "dropout: expected a probability in .*, got nan", {"dropout": float("nan")}),
    "projection": (
        ValueError,
        "context_projection: expected one of 'hidden', 'head', got 'heads'",
        {"context_projection": "heads"},
    ),
    "naming": (ValueError, "naming: expected one of 'released', 'compact', got 'other'", {"naming": "other"}),
    "backend": (ValueError, "backend: expected one of 'auto'", {"backend": "gpu"}),
}


@pytest.mark.parametrize("error, message, settings", BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_settings_name_expected_and_actual_value(error, message, settings):
    with pytest.raises(error, match=message):
        FusedQuasiAttention(**{"hidden_size": HIDDEN, "num_heads": HEADS, **settings})


def test_a_named_backend_is_used_or_raises():
    module = FusedQuasiAttention(HIDDEN, HEADS, backend="triton")
    with pytest.raises(RuntimeError, match="backend 'triton' does not take this call"):
        module(X, None, None, C)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: m(X, C),
            r"attention_mask: expected a mask, got \(2, 5, 12\).*as the second argument.*pass context=",
        ),
        (lambda m: m(X, None, C), r"device: expected a device, got a tensor as the third argument.*pass context="),
        (lambda m: m(X, additive(), C, C), "device: expected a device, got a tensor"),
    ],
    ids=["second", "third", "third and fourth"],
)
def test_a_context_put_too_early_is_named(call, message):
    with pytest.raises(TypeError, match=message):
        call(FusedQuasiAttention(HIDDEN, HEADS))


# --- apply_fused_attention ------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("projection", ["hidden", "head"])
@pytest.mark.parametrize("naming", list(NAMINGS))
def test_patched_model_gives_the_same_results_and_gradients(naming, projection, bias):
    plain = strengthen(PublishedModel(naming=naming, projection=projection, bias=bias)).double().eval()
    patched = copy.deepcopy(plain)
    assert apply_fused_attention(patched, output_attentions=True) == 2
    assert all(isinstance(block.self, FusedQuasiAttention) for block in patched.layer)
    results = []
    for model in (plain, patched):
        x, c = inputs(torch.float64)
        out, maps = model(x, additive(torch.float64), c)
        results.append([out, *(m for layer in maps for m in layer)])
        weighted_sum(results[-1]).backward()
        results[-1] += [x.grad, c.grad, *(p.grad for p in model.parameters())]
    assert len(results[0]) == len(results[1])
    for wanted, mine in zip(*results):
        torch.testing.assert_close(mine, wanted)


def test_model_that_clones_every_map_runs_without_maps():
    plain = strengthen(PublishedModel()).eval()
    patched = copy.deepcopy(plain)
    assert apply_fused_attention(patched) == 2
    x, c = inputs()
    out, collected = patched(x, additive(), c)
    wanted, wanted_maps = plain(x, additive(), c)
    torch.testing.assert_close(out, wanted)
    for mine, theirs in zip(collected, wanted_maps):
        assert [tuple(m.shape) for m in mine[:3]] == [(BATCH, HEADS, 0, 0)] * 3
        torch.testing.assert_close(mine[3], theirs[3])


def test_patching_keeps_parameters_dtype_modes_and_optimizer():
    model = strengthen(PublishedModel(dropout=0.0)).double()
    model.layer[1].eval()
    model.layer[0].self.register_buffer("steps", torch.tensor(3))
    reference = copy.deepcopy(model)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, reference)]

    def step(which, m):
        x, c = inputs(torch.float64)
        optimizers[which].zero_grad()
        weighted_sum([m(x, additive(torch.float64), c)[0]]).backward()
        optimizers[which].step()

    step(0, model), step(1, reference)
    before = dict(model.named_parameters())
    keys, modes = list(model.state_dict()), [m.training for m in model.modules()]
    attention = model.layer[0].self
    assert apply_fused_attention(model) == 2
    assert model.layer[0].self is attention
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert list(model.state_dict()) == keys
    assert [m.training for m in model.modules()] == modes
    assert all(p.dtype == torch.float64 for p in model.parameters())
    step(0, model), step(1, reference)
    for (name, mine), theirs in zip(model.named_parameters(), reference.parameters()):
        torch.testing.assert_close(mine, theirs, msg=lambda m, n=name: f"{n}: {m}")
    reference.load_state_dict(model.state_dict())
    model.load_state_dict(reference.state_dict())


def test_patching_keeps_hooks_and_their_handles_and_calls_none():
    model = PublishedModel(layers=1).eval()
    attention = model.layer[0].self
    calls = []
    handles = [
        attention.register_forward_pre_hook(lambda m, args: calls.append("pre")),
        attention.register_forward_hook(lambda m, args, out: calls.append("post")),
        attention.register_full_backward_hook(lambda m, gi, go: calls.append("backward")),
        attention.query.register_forward_hook(lambda m, args, out: calls.append("query")),
    ]
    attention.register_state_dict_post_hook(lambda m, state, prefix, meta: state.update(extra=torch.zeros(1)))
    assert apply_fused_attention(model) == 1
    assert calls == []
    x, c = inputs()
    out = attention(x, additive(), None, c)[0]
    assert calls == ["pre", "query", "post"]
    out.sum().backward()
    assert calls[3:] == ["backward"]
    assert "extra" in model.state_dict()
    for handle in handles:
        handle.remove()
    calls.clear()
    attention(x, additive(), None, c)
    assert calls == []


def test_patched_modules_take_the_published_names_of_the_context():
    x, c = inputs()
    module = strengthen(PublishedAttention()).eval()
    wanted = module(x, additive(), None, C_embed=c)[0]
    assert apply_fused_attention(module) == 1
    for name in ("C_embed", "context_embedded", "context"):
        torch.testing.assert_close(module(x, additive(), None, **{name: c})[0], wanted)


def test_patching_twice_replaces_nothing():
    model = PublishedModel()
    assert apply_fused_attention(model) == 2
    assert apply_fused_attention(model) == 0
    assert apply_fused_attention(nn.Sequential(nn.Linear(2, 2), nn.MultiheadAttention(4, 2))) == 0


def test_a_module_used_twice_is_replaced_once():
    model = PublishedModel()
    model.layer[1].self = model.layer[0].self
    assert apply_fused_attention(model) == 1
    assert model.layer[1].self is model.layer[0].self


class DropsOtherwise(PublishedAttention):
    """Its dropout may have another name, be a number or be absent."""

    def drop(self, x):
        if hasattr(self, "attention_dropout"):
            return self.attention_dropout(x)
        p = getattr(self, "dropout", 0.0)
        return p(x) if isinstance(p, nn.Dropout) else nn.functional.dropout(x, p, self.training)


@pytest.mark.parametrize("form", ["called dropout", "other name", "number", "none"])
def test_the_dropout_of_the_replaced_module_is_kept(form):
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


def test_module_with_another_formula_raises_and_is_unchanged():
    model = PublishedModel(attention=ContextGuidedAttention, projection="head", bias=False)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # weights as small as they are before training, when formulas differ least
        for parameter in model.parameters():
            parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    with pytest.raises(ValueError, match=r"layer\.0\.self: .* got something else"):
        apply_fused_attention(model)
    assert all(type(block.self) is ContextGuidedAttention for block in model.layer)


def test_other_scalars_are_noticed_and_can_be_given():
    model = PublishedModel(layers=1)
    strengthen(model)
    apply_fused_attention(model, beta=0.5, verify=False)
    attention = model.layer[0].self
    assert attention.beta == 0.5
    fresh = strengthen(PublishedModel(layers=1))
    with pytest.raises(ValueError, match="other quasi_scale, beta or gamma"):
        apply_fused_attention(fresh, quasi_scale=0.5)


class ReturnsFour(PublishedAttention):
    def forward(self, hidden_states, attention_mask, device=None, C_embed=None):
        return super().forward(hidden_states, attention_mask, device, C_embed)[:4]


class TakesMore(PublishedAttention):
    def forward(self, hidden_states, attention_mask, heads_kept, scale, context):
        return hidden_states


def reshaped(module):
    module.context_for_q = nn.Linear(HIDDEN, HEAD_DIM)
    return module


def with_own_forward(module):
    module.forward = lambda *args: None
    return module


REFUSED = {
    "four values": (r"expected the five results.* got 4 values", ReturnsFour),
    "another call": (r"expected a module that is called as \(hidden_states", TakesMore),
    "shape": (
        r"context_for_q: expected a layer from 12 to 12 .* got one from 12 to 4",
        lambda: reshaped(PublishedAttention()),
    ),
    "instance forward": ("got one set on the instance", lambda: with_own_forward(PublishedAttention())),
}


@pytest.mark.parametrize("message, make", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_replaced_is_refused(message, make):
    module = make()
    with pytest.raises(ValueError, match=message):
        apply_fused_attention(module)
    assert not isinstance(module, FusedQuasiAttention)


class CountedOperations(TorchDispatchMode):
    """Counts the operators that torch runs, without those that only make views."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2), (torch.bfloat16, 3)], ids=str)
def test_lambda_takes_few_operations_and_none_unrequested(dtype, most, packed):
    module = FusedQuasiAttention(HIDDEN, HEADS, dropout=0.0, dtype=dtype).eval()
    lead = (2 * LENGTH,) if packed else (BATCH, LENGTH)
    hidden, context = torch.randn(2, *lead, HIDDEN, dtype=dtype)
    options = dict(cu_seqlens=torch.tensor([0, LENGTH, 2 * LENGTH]), max_seqlen=LENGTH) if packed else {}
    counts = {}
    for requested in (True, False):
        with torch.no_grad(), CountedOperations() as operations:
            *_, lam = module(hidden, context=context, output_lambda=requested, **options)
        counts[requested] = len(operations.names)
        assert (lam is not None) is requested
    assert 0 < counts[True] - counts[False] <= most


def test_lambda_with_weights_matches_the_formula():
    query, key, value, context_query, context_key = torch.randn(5, 2, 3, 6, 8, dtype=torch.float64).unbind()
    vectors = torch.randn(4, 8, dtype=torch.float64).unbind()
    gate = qk.GateParameters(*vectors, beta=0.7, gamma=1.3)
    _, lam = qk.quasi_attention(query, key, value, context_query, context_key, gate, return_lambda=True)
    lq = (query @ vectors[0] + context_query @ vectors[1]).sigmoid()
    lk = (key @ vectors[2] + context_key @ vectors[3]).sigmoid()
    torch.testing.assert_close(lam, 1 - (0.7 * lq + 1.3 * lk))
