"""Every backend in every dtype it takes: output, lambda and all gradients within the error rule."""

import functools
from dataclasses import replace

import pytest
import torch
from cases import LARGE_SCORES, LAYOUT_CASES, SMALL, TILED

from qacg_kernels.testing import (
    assert_within_budget,
    evaluate,
    evaluate_exactly,
    rounding_scales,
    through_backend,
    through_eager,
)
from qacg_kernels.testing_inputs import LAYOUTS, WIDE, Case, make_inputs


@functools.cache
def judged_by(case, dtype, device):
    """Inputs of a case with what they are compared to, shared by all backends."""
    inputs = make_inputs(case, dtype, device)
    return inputs, evaluate(inputs, through_eager), evaluate_exactly(inputs), rounding_scales(inputs)


def check(case, backend, dtype, device):
    inputs, eager, exact, scales = judged_by(case, dtype, device)
    got = evaluate(inputs, through_backend(backend))
    assert got.keys() == exact.keys()
    for name, t in got.items():
        source = (
            inputs.tensors["query" if name == "out" else name.removeprefix("grad ")]
            if name != "lambda"
            else t
        )
        assert t.dtype == dtype and t.shape == source.shape, f"{name} came back as {t.dtype} {tuple(t.shape)}"
        assert_within_budget(name, t, eager[name], exact[name], scales[name], where=f"{case.name}, {backend}")
    with torch.no_grad():  # nothing is saved for a backward then, which is another path through a kernel
        out, _ = through_backend(backend)(inputs, inputs.tensors)
    assert_within_budget("out", out, eager["out"], exact["out"], scales["out"], where=f"{case.name}, no grad")


@pytest.mark.parametrize("case", SMALL + LAYOUT_CASES, ids=lambda case: case.name)
def test_small(case, backend, dtype, device):
    check(case, backend, dtype, device)


@pytest.mark.parametrize("case", TILED, ids=lambda case: case.name)
def test_off_the_tile(case, backend, dtype, device):
    check(case, backend, dtype, device)


@pytest.mark.parametrize("case", LARGE_SCORES, ids=lambda case: case.name)
def test_large_scores(case, backend, dtype, device):
    check(case, backend, dtype, device)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "contiguous"])
def test_upstream_gradient_of_another_layout(layout, backend, dtype, device):
    """The gradient that arrives has strides of its own, those of `layout`; the inputs are contiguous."""
    case = Case("upstream gradient", queries=19, head_dim=24, gate="shared", mask="boolean")
    inputs, eager, exact, scales = judged_by(case, dtype, device)
    placed = LAYOUTS[layout](1, inputs.grad_out.shape)[0].to(device, dtype)
    if layout == "shared_heads":
        placed = inputs.grad_out[:, :1].expand_as(inputs.grad_out)
        inputs = replace(inputs, grad_out=placed.contiguous())
        eager, exact, scales = (
            evaluate(inputs, through_eager),
            evaluate_exactly(inputs),
            rounding_scales(inputs),
        )
    else:
        placed.copy_(inputs.grad_out)
    got = evaluate(replace(inputs, grad_out=placed), through_backend(backend))
    for name, t in got.items():
        assert_within_budget(name, t, eager[name], exact[name], scales[name], where=f"{layout}, {backend}")


def test_sum_as_the_loss(backend, dtype, device):
    """out.sum() sends back a gradient whose strides are all zero."""
    inputs = make_inputs(Case("sum as the loss", queries=600, batch=1, head_dim=16), dtype, device)
    inputs = replace(
        inputs, grad_out=torch.ones((), dtype=dtype, device=device).expand(inputs.grad_out.shape)
    )
    eager, exact, scales = evaluate(inputs, through_eager), evaluate_exactly(inputs), rounding_scales(inputs)
    for name, t in evaluate(inputs, through_backend(backend)).items():
        assert_within_budget(name, t, eager[name], exact[name], scales[name], where=backend)


def test_loss_on_lambda_alone(backend, dtype, device):
    """No gradient arrives at the output: only the gate and what it reads get one."""
    case = Case("loss on lambda", queries=21, gate="per_head", bias="shared", lambda_gradient=True)
    inputs = make_inputs(case, dtype, device)
    silent = replace(inputs, grad_out=torch.zeros_like(inputs.grad_out))
    eager, exact, scales = evaluate(silent, through_eager), evaluate_exactly(silent), rounding_scales(silent)
    leaves = {name: t.detach().requires_grad_() for name, t in inputs.tensors.items()}
    _, lam = through_backend(backend)(inputs, leaves)
    gradients = torch.autograd.grad(lam, list(leaves.values()), inputs.grad_lambda, allow_unused=True)
    for name, g in zip(leaves, gradients):
        g = torch.zeros_like(leaves[name]) if g is None else g
        label = f"grad {name}"
        assert_within_budget(label, g, eager[label], exact[label], scales[label], where=backend)


@pytest.mark.parametrize("wanted", [*WIDE, "gate.key_bias"])
def test_gradient_of_one_tensor_alone(wanted, backend, device):
    """A gradient is the same whether or not others were asked for."""
    inputs = make_inputs(
        Case("one gradient", gate="shared", bias="per_head", queries=15), torch.float32, device
    )
    everything = evaluate(inputs, through_backend(backend))
    tensors = {n: t.detach().requires_grad_(n == wanted) for n, t in inputs.tensors.items()}
    out, _ = through_backend(backend)(inputs, tensors)
    (alone,) = torch.autograd.grad(out, tensors[wanted], inputs.grad_out)
    assert torch.equal(alone, everything[f"grad {wanted}"])
