"""torch.compile without graph breaks, with static and dynamic sizes."""

import functools
import operator

import pytest
import torch
import torch._dynamo.testing
from full_members import members

import qacg_kernels as qk
from qacg_kernels.testing import evaluate, supported_dtypes, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

pytestmark = pytest.mark.compiles

CASES = (
    Case("compiled: gate", queries=13, gate="one_row", bias="one_row", context_bias="per_head", float32_gate=True),
    Case("compiled: gate, mask", queries=13, gate="shared", bias="shared", mask="boolean", lambda_gradient=True),
    Case("compiled: lambda, lengths", queries=13, key_lengths=(4, 13), layout="heads_inside"),
    Case("compiled: column gate", queries=9, keys=14, gate="per_head", form="column", is_causal=True),
    Case("compiled: dropout", queries=13, gate="per_head", bias="per_head", dropout_p=0.2),
    Case("compiled: packed", sequences=(4, 9), gate="shared", dropout_p=0.2),
)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(backend, compiler):
    return torch.compile(through_backend(backend), fullgraph=True, backend=compiler)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fullgraph_equals_eager(case, backend, device):
    inputs = make_inputs(case, supported_dtypes(backend, device)[-1], device)
    expected = evaluate(inputs, through_backend(backend))
    torch.testing.assert_close(evaluate(inputs, compiled(backend, "aot_eager")), expected)


@pytest.mark.full
def test_inductor_equals_eager(backend, device):
    inputs = make_inputs(CASES[0], torch.float32, device)
    expected = evaluate(inputs, through_backend(backend))
    torch.testing.assert_close(evaluate(inputs, compiled(backend, "inductor")), expected)


@pytest.mark.parametrize("form", members(["dense", "cross", "packed"], fast=["packed"]))
def test_dynamic_sizes_share_one_graph(form, backend, device):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    function = torch.compile(_call, fullgraph=True, backend=counter, dynamic=True)
    compilations = []
    # For Triton at most 32 keys: longer float32 rows are not single-tile rows, which is another graph.
    for length in (7, 13, 26) if backend == "triton" else (7, 19, 40):
        if form == "packed":
            case = Case(f"dynamic {form}", sequences=(length, 3, length + 2), gate="shared", bias="shared")
        else:
            keys = length + 5 if form == "cross" else None
            gate = "lambda" if form == "cross" else "shared"
            case = Case(f"dynamic {form}", queries=length, keys=keys, gate=gate, mask="boolean")
        inputs = make_inputs(case, torch.float32, device)
        expected = evaluate(inputs, through_backend(backend))

        def attend(inputs, tensors):
            out = function(*inputs.arguments(tensors), backend, **inputs.options)
            return out, None

        got = evaluate(inputs, attend)
        torch.testing.assert_close(got, {name: t for name, t in expected.items() if name != "lambda"})
        compilations.append(counter.frame_count)
    assert compilations == compilations[:1] * 3


def _call(query, key, value, context_query, context_key, gate, backend, **options):
    call = qk.quasi_attention_varlen if "cu_seqlens" in options else qk.quasi_attention
    return call(query, key, value, context_query, context_key, gate, **options, backend=backend)


def test_compiled_dropout_differs_between_calls(backend, device):
    inputs = make_inputs(Case("compiled dropout", dropout_p=0.5), torch.float32, device)
    options = dict(inputs.options)
    del options["dropout_seed"]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(*arguments):
        return qk.quasi_attention(*arguments, **options, backend=backend)

    torch.manual_seed(3)
    first, second = call(*inputs.arguments()), call(*inputs.arguments())
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(call(*inputs.arguments()), first)


def test_compiled_seed_has_62_random_bits(device):
    draw = torch.compile(lambda: qk.draw_dropout_seed(device), fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    seeds = [draw() for _ in range(50)]
    assert (seeds[0].dtype, seeds[0].shape, seeds[0].device.type) == (torch.int64, (), torch.device(device).type)
    numbers = [int(seed) for seed in seeds]
    assert functools.reduce(operator.or_, numbers) == 2**62 - 1
    assert functools.reduce(operator.and_, numbers) == 0
    torch.manual_seed(0)
    assert int(draw()) == numbers[0]


@pytest.mark.parametrize("budget", [0.9, 0.1])
@pytest.mark.parametrize("form", ["function", "module"])
def test_recomputed_activations_have_the_same_dropout(form, budget, backend, device):
    """The output is linear in `value`: its product with a gradient is that of `value` with the gradient of `value`."""
    query, key, value, context_query, context_key = torch.randn(5, 2, 2, 9, 8, device=device).unbind()
    gate, upstream = torch.rand(2, 2, 9, device=device), torch.randn_like(value)
    module = qk.FusedQuasiAttention(16, 2, dropout=0.5, backend=backend)

    def attend(value):
        heads = query, key, value, context_query, context_key
        if form == "function":
            return qk.quasi_attention(*heads, gate, dropout_p=0.5, backend=backend)
        return module.attend(heads, module.gate(heads), None, 0.5, False, False)[0]

    module.to(device).requires_grad_(False)
    value.requires_grad_()
    with torch._functorch.config.patch(activation_memory_budget=budget):
        out = torch.compile(lambda value: attend(attend(value) * 2), backend="aot_eager_decomp_partition")(value)
        (gradient,) = torch.autograd.grad(out, value, upstream)
    torch.testing.assert_close((out * upstream).sum(), (value * gradient).sum(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("budget", [0.9, 0.5])
def test_recomputed_module_has_the_same_dropout(budget, backend, device):
    """The output is linear in the value layer. Below 0.5 torch's own dropout of the contexts is wrong."""
    module = qk.FusedQuasiAttention(16, 2, dropout=0.5, backend=backend).to(device)
    hidden, context = torch.randn(2, 2, 9, 16, device=device).unbind()
    parameters = [module.value.weight, module.value.bias]

    def attend(hidden, context):
        return module(hidden.sin(), context=context.exp())[0]

    with torch._functorch.config.patch(activation_memory_budget=budget):
        out = torch.compile(attend, backend="aot_eager_decomp_partition")(hidden, context)
        upstream = torch.randn_like(out)
        gradients = torch.autograd.grad(out, parameters, upstream)
    total = sum((p * g).sum() for p, g in zip(parameters, gradients))
    torch.testing.assert_close((out * upstream).sum(), total, rtol=1e-3, atol=1e-3)


def test_bad_shape_raises_while_compiling(backend, device):
    inputs = make_inputs(Case("compiled bad input"), torch.float32, device)
    query, key, *rest = inputs.arguments()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(key):
        return qk.quasi_attention(query, key, *rest, backend=backend)

    with pytest.raises(Exception, match=r"key: expected shape \(2, 3, 17, 16\), .* got \(2, 3, 17, 15\)"):
        call(key[..., 1:])


class Encoder(torch.nn.Module):
    def __init__(self, backend):
        super().__init__()
        self.attention = qk.FusedQuasiAttention(32, 2, dropout=0.0, backend=backend)

    def forward(self, x, c):
        return self.attention(x, None, None, c, output_lambda=False)[0]


@pytest.mark.parametrize("grad", [True, False])
def test_traced_module_computes_new_inputs_and_gradients(grad, backend, device, tmp_path):
    """torch.jit.trace records the operator, not the values of the example."""
    model = Encoder(backend).to(device).eval()
    example, other = (torch.randn(2, 2, 7, 32, device=device).unbind() for _ in range(2))
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(model, example)
    torch.jit.save(traced, tmp_path / "traced.pt")
    traced = torch.jit.load(tmp_path / "traced.pt", map_location=device)
    x, c = (t.requires_grad_() for t in other)
    results = [function(x, c) for function in (traced, model)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result.sum(), (x, c)) for result in results))


@pytest.mark.parametrize("gate", ["lambda", "shared"])
def test_compiled_autograd_differentiates_an_eager_call(gate, backend, device):
    inputs = make_inputs(Case("compiled autograd", queries=9, gate=gate), torch.float32, device)
    expected = evaluate(inputs, through_backend(backend))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        torch.testing.assert_close(evaluate(inputs, through_backend(backend)), expected)


def test_mask_without_values_raises_when_compiled(backend, device):
    """Torch never fills the memory of a CausalBias."""
    from torch.nn.attention.bias import causal_upper_left

    inputs = make_inputs(Case("compiled causal bias"), torch.float32, device)

    @torch.compile(backend="aot_eager")
    def call(mask):
        return qk.quasi_attention(*inputs.arguments(), attn_mask=mask, backend=backend)

    with pytest.raises(TypeError, match="attn_mask: expected a tensor whose memory has its values, got CausalBias"):
        call(causal_upper_left(17, 17))
