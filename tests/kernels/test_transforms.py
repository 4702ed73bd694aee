"""torch.func, forward mode, fake tensors, export, the FLOP counter and nested tensors work, or raise with advice."""

from dataclasses import replace

import pytest
import torch
from full_members import member, members
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import qacg_kernels as qk
import qacg_kernels.flop_formulas  # registers them
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

GATED = Case("transformed", queries=7, head_dim=8, gate="shared", bias="shared", lambda_gradient=True)


def of_query(case, backend, device):
    """Inputs, and the output as a function of the query alone."""
    inputs = make_inputs(case, torch.float32, device)
    _, *others = inputs.arguments()

    def function(query):
        return qk.quasi_attention(query, *others, **inputs.options, backend=backend)

    return inputs, function


@pytest.mark.parametrize("needs_grad", [False, True])
def test_dual_tensors_raise_with_advice(needs_grad, backend, device):
    inputs, function = of_query(GATED, backend, device)
    query = inputs.tensors["query"].requires_grad_(needs_grad)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(query, torch.ones_like(query))
        with pytest.raises(NotImplementedError, match=r"reverse-mode differentiation.*attention_maps"):
            function(dual)
        # Tensors without a tangent are supported.
        assert torch.equal(function(query), function(query.detach()))


def test_jvp_raises_and_its_advice_works(backend, device):
    inputs, function = of_query(GATED, backend, device)
    query, tangent = inputs.tensors["query"], torch.randn_like(inputs.tensors["query"])
    with pytest.raises(NotImplementedError, match=r"torch\.func\.jvp.*attention_maps"):
        torch.func.jvp(function, (query,), (tangent,))

    def through_maps(query):
        arguments = (query, *inputs.arguments()[1:])
        return qk.attention_maps(*arguments, **inputs.options)[0] @ inputs.tensors["value"]

    out, derivative = torch.func.jvp(through_maps, (query,), (tangent,))
    torch.testing.assert_close(out, function(query))
    step = 1e-2
    slope = (through_maps(query + step * tangent) - through_maps(query - step * tangent)) / (2 * step)
    torch.testing.assert_close(derivative, slope, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    "case",
    [GATED, Case("transformed, long", batch=1, heads=1, queries=530, head_dim=8, mask="boolean", dropout_p=0.2)],
    ids=lambda case: case.name,
)
def test_grad_of_torch_func_equals_autograd(case, backend, device):
    inputs = make_inputs(case, torch.float32, device)
    expected = evaluate(inputs, through_backend(backend))

    def loss(tensors):
        out, lam = through_backend(backend)(inputs, tensors)
        return (out * inputs.grad_out).sum() + (0 if lam is None else (lam * inputs.grad_lambda).sum())

    got = torch.func.grad(loss)(inputs.tensors)
    torch.testing.assert_close(got, {name: expected[f"grad {name}"] for name in got})


def gates(*sizes):
    """Gate parameters with random tensors; `sizes` are dimensions before those of one gate."""
    vectors = torch.randn(4, *sizes, 8).unbind()
    biases = [torch.randn((*sizes, *own)) for own in ((3,), (), (1,))]
    return qk.GateParameters(*vectors, *biases[:2], gamma=0.7, context_key_bias=biases[2])


def attend_with(gate, rows):
    return qk.quasi_attention(*rows.unbind(), gate)


@pytest.mark.parametrize("absent", [(), ("query_bias",), ("query_bias", "key_bias", "context_key_bias")], ids=len)
def test_grad_of_torch_func_by_gate_equals_autograd(absent):
    gate, rows = replace(gates(), **dict.fromkeys(absent)), torch.randn(5, 2, 3, 6, 8)
    gradient = torch.func.grad(lambda gate: attend_with(gate, rows).square().sum())(gate)
    leaf = torch.utils._pytree.tree_map(lambda t: t.clone().requires_grad_(), gate)
    attend_with(leaf, rows).square().sum().backward()
    for name in (name for name, t in vars(gate).items() if isinstance(t, torch.Tensor)):
        torch.testing.assert_close(getattr(gradient, name), getattr(leaf, name).grad)
    assert all(getattr(gradient, name) is None for name in absent)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_gates_equals_separate_calls():
    several, rows = gates(4), torch.randn(5, 2, 3, 6, 8)
    mapped = torch.func.vmap(attend_with, in_dims=(0, None))(several, rows)
    for number, out in enumerate(mapped):
        one = torch.utils._pytree.tree_map(lambda t: t[number], several)  # noqa: B023
        torch.testing.assert_close(out, attend_with(one, rows))


def test_saved_gate_is_loaded_with_weights_only(tmp_path):
    gate = gates()
    torch.save(gate, tmp_path / "gate.pt")
    loaded = torch.load(tmp_path / "gate.pt", weights_only=True)
    assert (loaded.beta, loaded.gamma, loaded.form) == (gate.beta, gate.gamma, gate.form)
    leaves = torch.utils._pytree.tree_leaves
    torch.testing.assert_close(leaves(loaded), leaves(gate))


class Calling(torch.nn.Module):
    """A module that calls a function, and has the modules that the function calls."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.inside = function, torch.nn.ModuleList(modules)

    def forward(self, *arguments):
        return self.function(*arguments)


@pytest.mark.compiles
def test_exported_and_loaded_program_takes_another_gate(tmp_path):
    rows = torch.randn(5, 2, 3, 6, 8)
    torch.export.save(torch.export.export(Calling(attend_with), (gates(), rows)), tmp_path / "program.pt2")
    program, other = torch.export.load(tmp_path / "program.pt2").module(), gates()
    torch.testing.assert_close(program(other, rows), attend_with(other, rows))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # by torch, for operators mapped one sample at a time
@pytest.mark.parametrize("order", ["vmap of grad", "grad of vmap"])
def test_gradients_per_sample_equal_separate_calls(order, backend, device):
    samples = [make_inputs(Case(f"sample {n}", batch=1, queries=7, key_lengths=(5,)), device=device) for n in range(3)]
    reference = [evaluate(inputs, through_backend(backend)) for inputs in samples]
    stacked = {name: torch.stack([s.tensors[name] for s in samples]) for name in samples[0].tensors}
    upstream = torch.stack([s.grad_out for s in samples])

    def loss(tensors, grad_out):
        return (through_backend(backend)(samples[0], tensors)[0] * grad_out).sum()

    if order == "vmap of grad":
        got = torch.func.vmap(torch.func.grad(loss))(stacked, upstream)
    else:
        got = torch.func.grad(lambda tensors: torch.func.vmap(loss)(tensors, upstream).sum())(stacked)
    expected = {name: torch.stack([one[f"grad {name}"] for one in reference]) for name in got}
    torch.testing.assert_close(got, expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_over_key_lengths_equal_separate_calls(backend, device):
    inputs = make_inputs(Case("mapped lengths", batch=1, queries=7), device=device)
    lengths = torch.tensor([[3], [7]], device=device)

    def loss(query, lengths):
        arguments = (query, *inputs.arguments()[1:])
        return qk.quasi_attention(*arguments, key_lengths=lengths, backend=backend).square().sum()

    of_query = torch.func.grad(loss)
    got = torch.func.vmap(of_query, in_dims=(None, 0))(inputs.tensors["query"], lengths)
    torch.testing.assert_close(got, torch.stack([of_query(inputs.tensors["query"], n) for n in lengths]))


def test_second_derivatives_raise_with_advice(backend, device):
    inputs, function = of_query(GATED, backend, device)

    def first(query):
        return torch.func.grad(lambda q: function(q).square().sum())(query).sum()

    with pytest.raises(NotImplementedError, match=r"got a second one.*attention_maps"):
        torch.func.grad(first)(inputs.tensors["query"])


@pytest.mark.parametrize("training", [False, True])
def test_fake_tensors_support_every_argument(training, backend, device):
    with FakeTensorMode(), torch.device(device):
        q, k, v, qc, kc = (torch.randn(2, 3, 5, 8, requires_grad=training) for _ in range(5))
        lengths = torch.tensor([3, 5])
        out = qk.quasi_attention(q, k, v, qc, kc, torch.rand(2, 3, 5), key_lengths=lengths, backend=backend)
        assert out.shape == q.shape
        packed = [t.transpose(1, 2).flatten(0, 1) for t in (q, k, v, qc, kc)]
        offsets = torch.tensor([0, 3, 10])
        out = qk.quasi_attention_varlen(
            *packed, torch.rand(10, 3), cu_seqlens=offsets, max_seqlen=7, dropout_p=0.1, backend=backend
        )
        assert out.shape == (10, 3, 8)
        if training:
            assert torch.autograd.grad(out.sum(), q)[0].shape == q.shape
        assert qk.attention_maps(q, k, v, qc, kc, torch.rand(2, 3, 5), rows=[0, 2])[0].shape == (2, 3, 2, 5)
        module = qk.FusedQuasiAttention(16, 2, backend=backend)
        x = torch.randn(2, 5, 16)
        assert module(x, torch.ones(2, 5, dtype=torch.int64), context=x)[0].shape == x.shape


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("example", "strict"),
    [
        member(example, strict, id=f"{example}{'-strict' * strict}", fast=strict == (example == 16))
        for example in (16, 600)
        for strict in (False, True)
    ],
)
def test_export_with_dynamic_length_runs_at_any_length(example, strict, backend, device):
    """Some lengths are above the limit of single-tile rows (512 keys, 128 on CUDA), where other tensors are saved."""
    attention = qk.FusedQuasiAttention(16, 2, dropout=0.0, backend=backend)
    module = Calling(lambda x, c: attention(x, context=c)[0], attention).to(device)
    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(
        module,
        tuple(torch.randn(2, 2, example, 16, device=device).unbind(0)),
        dynamic_shapes=(({1: length}, {1: length}),),  # of one parameter, *arguments
        strict=strict,
    ).module()
    for n in (7, 130, 530):
        x, c = torch.randn(2, 2, n, 16, device=device).unbind(0)
        gradients = []
        for run in (module, program):
            out = run(x, c)
            module.zero_grad()
            out.square().sum().backward()
            gradients.append([out.detach(), *(p.grad.clone() for p in module.parameters())])
        for got, reference in zip(gradients[1], gradients[0]):
            torch.testing.assert_close(got, reference, rtol=1e-4, atol=1e-4)


MASK_OF_KEYS = torch.arange(5) < torch.tensor([5, 3, 1, 4]).view(4, 1, 1, 1)
BIAS = torch.linspace(-1, 1, 40).view(4, 2, 5)


@pytest.mark.compiles
@pytest.mark.parametrize("strict", members([False, True], fast=[False]))
@pytest.mark.parametrize("form", ["boolean mask", "boolean mask and -log(keys)", "quasi_bias", "module"])
def test_export_of_a_batch_size_that_depends_on_data(form, strict, backend, device):
    mask, bias = MASK_OF_KEYS.to(device), BIAS.to(device)
    module = qk.FusedQuasiAttention(16, 2, backend=backend).eval().to(device)

    def attend(keep, *inputs):
        rows, *heads = (t[keep] for t in inputs)
        options = dict(quasi_bias=bias[rows]) if form == "quasi_bias" else dict(attn_mask=mask[rows])
        if form.endswith("-log(keys)"):
            options["quasi_bias"] = "-log(keys)"
        return qk.quasi_attention(*heads, **options, backend=backend)

    if form == "module":
        model = Calling(lambda keep, x, mask: module(x[keep], mask[keep], context=x[keep])[0], module)
        inputs = torch.randn(4, 5, 16, device=device), mask[:, 0, 0]
    else:
        heads = [*torch.randn(5, 4, 2, 5, 8, device=device).unbind(), torch.rand(4, 2, 5, device=device)]
        model, inputs = Calling(attend), (torch.arange(4, device=device), *heads)
    keep = torch.tensor([True, False, True, True], device=device)
    program = torch.export.export(model, (keep, *inputs), strict=strict).module()
    for kept in (keep, ~keep, torch.ones_like(keep)):
        torch.testing.assert_close(program(kept, *inputs), model(kept, *inputs))


def test_call_traces_symbolic_sizes(backend, device):
    inputs = make_inputs(Case("traced", queries=7, head_dim=8), device=device).arguments()
    graph = make_fx(lambda *heads: qk.quasi_attention(*heads, backend=backend), tracing_mode="symbolic")(*inputs)
    assert torch.equal(graph(*inputs), qk.quasi_attention(*inputs, backend=backend))


def operands(*sizes, keys=None):
    key_sizes = sizes if keys is None else (*sizes[:-2], keys, sizes[-1])
    five = [torch.randn(s) for s in (sizes, key_sizes, key_sizes, sizes, key_sizes)]
    return [t.requires_grad_() for t in five]


def test_flop_counter_of_dense_call_counts_both_passes(backend, device):
    with FlopCounterMode(display=False) as counter, torch.device(device):
        out = qk.quasi_attention(*operands(2, 3, 5, 8, keys=7), torch.rand(2, 3, 5), backend=backend)
        forward = counter.get_total_flops()
        out.sum().backward()
    product = 2 * 3 * 5 * 7 * 8
    assert forward == 6 * product
    assert counter.get_total_flops() == (6 + 16) * product


def test_flop_counter_of_packed_call_counts_sequences():
    offsets = torch.tensor([0, 3, 3, 8])
    with FlopCounterMode(display=False) as counter:
        qk.quasi_attention_varlen(*operands(8, 2, 4), torch.rand(8, 2), cu_seqlens=offsets, max_seqlen=5)
    assert counter.get_total_flops() == 6 * (3 * 3 + 5 * 5) * 2 * 4
