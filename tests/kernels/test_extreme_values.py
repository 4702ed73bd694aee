"""Finite inputs near the limits of their dtypes: results are finite, or NaN, where those of the reference are."""

import pytest
import torch
from judging import check

import qacg_kernels as qk
from qacg_kernels.backends import cpu
from qacg_kernels.functional import problem_of
from qacg_kernels.operators import schema
from qacg_kernels.testing import evaluate, evaluate_exactly, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

needs_cpu = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are missing")
KEYS = [3, 40, 600]  # read in place, a single-tile row, a tiled row


@needs_cpu
@pytest.mark.parametrize("score_size", [1400.0, 12500.0])
@pytest.mark.parametrize("keys", [40, 600])
def test_negative_scale_large_scores_keep_gradients(keys, score_size, capability):
    """Forward and backward must round scores equally: the softmax of scores near 50,000 shows each bit."""
    case = Case("negative scale", batch=1, queries=20, keys=keys, scale=-0.25, score_size=score_size)
    check(case, "cpu", torch.float32, "cpu")


@needs_cpu
@pytest.mark.parametrize("keys", [1, 2, 16, 17])
@pytest.mark.parametrize("queries", [1, 12])
def test_short_rows_of_large_scores_keep_gradients(queries, keys, capability):
    """The largest weight is 1; the backward must round it as the forward did."""
    inputs = make_inputs(Case("short rows", batch=2, queries=queries, keys=keys, score_size=1e4))
    inputs.tensors["lambda"].zero_()
    got = evaluate(inputs, through_backend("cpu"))["grad value"]
    expected = evaluate_exactly(inputs)["grad value"]
    assert (got - expected).abs().max() <= 2e-6 * expected.abs().max()


@needs_cpu
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_additive_mask_near_the_largest_number_is_finite(dtype, keys, capability):
    """Kernels multiply masks by log2 e, which must not make a finite value infinite."""
    inputs = make_inputs(Case("largest mask", batch=1, queries=12, keys=keys), dtype)
    mask = torch.zeros(12, keys, dtype=dtype)
    mask[:, 0], mask[:, 1], mask[3, 2] = 2.5e38, 3e38, 3.3e38
    inputs.options["attn_mask"] = mask
    results = evaluate(inputs, through_backend("cpu"))
    expected = evaluate(inputs, through_backend("reference"))
    assert [name for name, t in expected.items() if not t.isfinite().all()] == []
    tolerance = 5e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(results, expected, rtol=tolerance, atol=tolerance)


@needs_cpu
@pytest.mark.parametrize(("queries", "keys"), [(12, 3), (12, 40), (3, 600)])
@pytest.mark.parametrize("gate", [dict(), dict(gate="shared", form="column")], ids=["lambda", "column gate"])
def test_large_quasi_scale_times_row_sum_is_finite(gate, queries, keys, capability):
    case = Case("large alpha", batch=1, queries=queries, keys=keys, quasi_scale=3e37, score_size=0.01, **gate)
    inputs = make_inputs(case)
    inputs.tensors["value"] *= 0.01
    (got, expected) = (through_backend(name)(inputs, inputs.tensors)[0] for name in ("cpu", "reference"))
    assert expected.isfinite().all()
    torch.testing.assert_close(got / 1e37, expected / 1e37, rtol=1e-5, atol=1e-5)


@needs_cpu
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("mask", [None, "boolean", "additive"])
def test_row_of_infinitely_low_visible_scores_is_nan(mask, keys, capability):
    """The softmax of such a row is NaN; a row without visible keys gives 0."""
    inputs = make_inputs(Case("lowest scores", batch=1, heads=1, queries=12, keys=keys))
    inputs.tensors["query"][:, :, 4] = -1e30
    inputs.tensors["key"][:] = 1e30
    if mask is not None:
        visible = torch.ones(12, keys, dtype=torch.bool)
        visible[5], visible[4, 0] = False, False
        inputs.options["attn_mask"] = (
            visible if mask == "boolean" else torch.zeros(12, keys).masked_fill(~visible, -torch.inf)
        )
    out, expected = (through_backend(name)(inputs, inputs.tensors)[0] for name in ("cpu", "reference"))
    assert expected[:, :, 4].isnan().all()
    assert out[:, :, 4].isnan().all()
    if mask is not None:
        assert out[:, :, 5].eq(0).all()


def tensors(*sizes):
    return [torch.randn(sizes) for _ in range(5)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_lengths_changed_before_the_backward_raise(packed, dtype):
    if packed:
        five, lengths = tensors(8, 1, 8), torch.tensor([0, 3, 8], dtype=dtype)
        five[0].requires_grad_()
        out = qk.quasi_attention_varlen(*five, torch.rand(8, 1), cu_seqlens=lengths, max_seqlen=5)
    else:
        five, lengths = tensors(2, 1, 8, 8), torch.tensor([3, 8], dtype=dtype)
        five[0].requires_grad_()
        out = qk.quasi_attention(*five, torch.rand(2, 1, 8), key_lengths=lengths)
    lengths[1] = 4
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_reference_gradient_of_absent_gates_is_ignored():
    """With a lambda tensor, the gate outputs of an operator and their gradients are empty."""
    five, lam = tensors(8, 2, 8), torch.rand(8, 2)
    five[0].requires_grad_()
    problem = problem_of(*five, lam, cu_seqlens=torch.tensor([0, 3, 8]), max_seqlen=5)
    outputs = schema.forward_op("reference")(*problem.tensors, *problem.options)
    expected = torch.autograd.grad(outputs[0].sum(), five[0], retain_graph=True)[0]
    loss = outputs[0].sum() + outputs[5].sum() + outputs[6].sum()
    assert torch.equal(torch.autograd.grad(loss, five[0])[0], expected)
