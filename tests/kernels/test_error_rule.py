"""The error rule: it rejects formulas that are nearly right, and its message names the element."""

import pytest
import torch

from qacg_kernels import available_backends
from qacg_kernels.testing import (
    evaluate,
    evaluate_exactly,
    judge,
    parity_report,
    rounding_scales,
    supported_dtypes,
    through_eager,
)
from qacg_kernels.testing.inputs import Case, make_inputs

BIASES = dict(bias="shared", context_bias="per_head")
CASE = Case("mutants", queries=63, head_dim=32, gate="shared", mask="additive", lambda_gradient=True, **BIASES)


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, factor):
        ctx.factor = factor
        return t.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


# float32 shows an error of 1e-4; bfloat16, whose steps are 1/256, one of a third.
@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 1e-4), (torch.bfloat16, 0.35)], ids=str)
@pytest.mark.parametrize(
    "name",
    ["query", "key", "value", "context_query", "context_key"]
    + [f"gate.{n}" for n in ("query", "context_query", "key", "context_key", "query_bias", "context_key_bias")],
)
@pytest.mark.parametrize("forward", [True, False], ids=["wrong input", "wrong gradient"])
def test_mutants_are_rejected(name, forward, dtype, step):
    inputs = make_inputs(CASE, dtype)
    eager, exact, scales = evaluate(inputs, through_eager), evaluate_exactly(inputs), rounding_scales(inputs)

    def mutant(inputs, tensors):
        t = tensors[name]
        changed = t * (1 + step) if forward else _ScaledGradient.apply(t, 1 + step)
        return through_eager(inputs, tensors | {name: changed})

    got = evaluate(inputs, mutant)
    results = {n: judge(n, t, eager[n], exact[n], scales[n]) for n, t in got.items()}
    assert not all(v.ok for v in results.values())
    if not forward:
        assert [n for n, v in results.items() if not v.ok] == [f"grad {name}"]


def test_eager_and_exact_results_pass():
    inputs = make_inputs(CASE, torch.bfloat16)
    eager, exact, scales = evaluate(inputs, through_eager), evaluate_exactly(inputs), rounding_scales(inputs)
    for name, t in exact.items():
        assert judge(name, eager[name], eager[name], t, scales[name]).ok, name
        rounded = judge(name, t.to(torch.bfloat16), eager[name], t, scales[name])
        # Correct rounding changes a value by half a step at most.
        assert rounded.error <= torch.finfo(torch.bfloat16).eps, name


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_results_are_rejected(value):
    exact = torch.ones(5, dtype=torch.float64)
    got = exact.float()
    got[3] = value
    assert not judge("out", got, exact.float(), exact).ok
    assert judge("out", got, exact.float(), exact).worst == (3,)
    # An eager result that overflowed does not increase the budget.
    assert not judge("out", exact.float() + 0.1, got, exact).ok


def test_scale_of_zero_requires_a_result_of_zero():
    exact = torch.zeros(4, dtype=torch.float64)
    got = exact.float()
    assert judge("out", got, got, exact, exact).ok
    got[2] = 1e-30
    assert not judge("out", got, exact.float(), exact, exact).ok


def test_smallest_float16_numbers_must_be_rounded_correctly():
    smallest = 2.0**-24
    exact = torch.full((50,), 7.49 * smallest, dtype=torch.float64)
    rounded = exact.to(torch.float16)
    assert (rounded.double() - exact).abs().max() > 0.05 * exact.max()
    assert judge("out", rounded, exact.float(), exact).ok
    assert not judge("out", rounded - smallest, exact.float(), exact).ok
    assert not judge("out", torch.full_like(exact, 1.06).float(), torch.ones(50), torch.ones_like(exact)).ok


def test_small_errors_everywhere_exceed_the_mean_square():
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(4000, generator=generator, dtype=torch.float64).sign()
    eager = exact.clone()
    eager[0] += 1e-3  # one bad element sets the budget for the largest error
    drifted = (exact * (1 + 1e-3)).float()
    result = judge("out", drifted, eager.float(), exact)
    assert result.error <= result.budget
    assert not result.ok


def test_parity_report_covers_every_backend(device):
    rows = parity_report(device=device)
    assert [row for row in rows if not row.ok] == []
    for backend in available_backends():
        expected = {str(d).removeprefix("torch.") for d in supported_dtypes(backend, device)} - {"float64"}
        assert {row.dtype for row in rows if row.backend == backend} == expected
        assert backend != "cpu" or "float16" in expected
    tensors = {row.tensor for row in rows}
    assert {"out", "lambda", "grad value", "grad lambda", "grad gate.key", "grad gate.key_bias"} <= tensors
    assert all(row.budget > 0 for row in rows)
