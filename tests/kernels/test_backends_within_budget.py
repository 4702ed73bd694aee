"""Output, lambda and all gradients of every backend, in every dtype that it supports, meet the error rule."""

from dataclasses import replace

import pytest
import torch
from cases import LARGE_SCORES, LAYOUT_CASES, SMALL, STRIPS, TILED
from judging import check, compare, judged_by, judges_of

from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import LAYOUTS, WIDE, Case, lay_like, make_inputs


@pytest.mark.parametrize("case", SMALL + LAYOUT_CASES + STRIPS, ids=lambda case: case.name)
def test_small_case_meets_the_error_rule(case, backend, dtype, device):
    check(case, backend, dtype, device)


@pytest.mark.parametrize("case", TILED, ids=lambda case: case.name)
def test_tiled_case_meets_the_error_rule(case, backend, dtype, device):
    check(case, backend, dtype, device)


@pytest.mark.parametrize("case", LARGE_SCORES, ids=lambda case: case.name)
def test_large_scores_meet_the_error_rule(case, backend, dtype, device):
    inputs = judged_by(case, dtype, device)[0]
    scores = inputs.tensors["query"].float() @ inputs.tensors["key"].float().mT * case.head_dim**-0.5
    assert scores.abs().max() > 5000
    check(case, backend, dtype, device)


@pytest.mark.parametrize("size", [64, 1024, 10_000])
@pytest.mark.parametrize(("queries", "head_dim"), [(20, 64), (14, 160), (14, 256)])
def test_query_gradient_with_large_common_score_is_exact(queries, head_dim, size, backend, device):
    """The scale of the error rule grows with the scores, so dQ is compared with the largest error of eager only.

    Softmax ignores a common summand of a row's scores. Its rounding must not reach dQ through delta.
    """
    inputs = make_inputs(Case("common", batch=1, heads=2, queries=queries, head_dim=head_dim), torch.float32, device)
    tensors = dict(inputs.tensors)
    for name in ("query", "key"):
        tensors[name] = tensors[name] + (size * inputs.case.head_dim**-0.5) ** 0.5
    inputs, eager, exact, _ = judges_of(replace(inputs, tensors=tensors))
    gradient = evaluate(inputs, through_backend(backend))["grad query"]
    error, budget = ((g.double() - exact["grad query"]).abs().max() for g in (gradient, eager["grad query"]))
    assert error <= 3 * budget


@pytest.mark.parametrize("mean", [-6, -10])
def test_context_scores_far_below_zero_meet_the_rule(mean, backend, dtype, device):
    """The sigmoid is near 0, and its error is compared with its own size."""
    inputs = make_inputs(Case("far below zero", batch=1, heads=1, queries=40, head_dim=16), dtype, device)
    tensors = dict(inputs.tensors)
    for name, sign in (("context_query", 1), ("context_key", -1)):
        tensors[name] = tensors[name].clone()
        tensors[name][..., 0] = sign * (-mean * inputs.case.head_dim**0.5) ** 0.5
    judges = judges_of(replace(inputs, tensors=tensors))
    compare(evaluate(judges[0], through_backend(backend)), judges, backend)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "contiguous"])
def test_upstream_gradient_may_have_other_strides(layout, backend, dtype, device):
    """The upstream gradient has the strides of `layout`; the inputs are contiguous."""
    case = Case("upstream gradient", queries=19, head_dim=24, gate="shared", mask="boolean")
    inputs = make_inputs(case, dtype, device)
    placed = lay_like(inputs.grad_out, LAYOUTS[layout](1, inputs.grad_out.shape)[0])
    assert not placed.is_contiguous()
    judges = judges_of(replace(inputs, grad_out=placed))
    compare(evaluate(judges[0], through_backend(backend)), judges, f"{layout}, {backend}")


def test_upstream_gradient_may_have_zero_strides(backend, dtype, device):
    """The gradient of out.sum() has strides of zero."""
    inputs = make_inputs(Case("sum as the loss", queries=600, batch=1, head_dim=16), dtype, device)
    one = torch.ones((), dtype=dtype, device=device)
    judges = judges_of(replace(inputs, grad_out=one.expand(inputs.grad_out.shape)))
    compare(evaluate(judges[0], through_backend(backend)), judges, backend)


def test_loss_of_lambda_only_gives_gate_gradients(backend, dtype, device):
    """The loss does not use the output, so only the gate and its inputs get a gradient."""
    case = Case("loss on lambda", queries=21, gate="per_head", bias="shared", lambda_gradient=True)
    inputs = make_inputs(case, dtype, device)
    judges = judges_of(replace(inputs, grad_out=torch.zeros_like(inputs.grad_out)))
    leaves = {name: t.detach().requires_grad_() for name, t in inputs.tensors.items()}
    _, lam = through_backend(backend)(inputs, leaves)
    gradients = torch.autograd.grad(
        lam, list(leaves.values()), inputs.grad_lambda, allow_unused=True, materialize_grads=True
    )
    compare({f"grad {name}": g for name, g in zip(leaves, gradients)}, judges, backend)


def test_gradients_of_a_float32_gate_have_its_precision(backend, dtype, device):
    options = dict(gate="per_head", bias="per_head", context_bias="per_head", float32_gate=True)
    results = evaluate(make_inputs(Case("float32 gradients", **options), dtype, device), through_backend(backend))
    gradients = [t for name, t in results.items() if name.startswith("grad gate.")]
    assert [t.dtype for t in gradients] == [torch.float32] * 8
    if dtype != torch.float32:
        assert not any(torch.equal(t, t.to(dtype).float()) for t in gradients)


@pytest.mark.parametrize("name", [*WIDE, "gate.key_bias"])
def test_gradient_of_one_tensor_equals_that_of_all(name, backend, device):
    """A gradient is the same whether or not others are requested."""
    inputs = make_inputs(Case("one gradient", gate="shared", bias="per_head", queries=15), torch.float32, device)
    everything = evaluate(inputs, through_backend(backend))
    tensors = {n: t.detach().requires_grad_(n == name) for n, t in inputs.tensors.items()}
    out, _ = through_backend(backend)(inputs, tensors)
    (alone,) = torch.autograd.grad(out, tensors[name], inputs.grad_out)
    assert torch.equal(alone, everything[f"grad {name}"])
