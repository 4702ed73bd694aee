"""Empty sizes, and which results NaN may reach.

Queries without visible keys are among the calls of support/cases.py: where the terms of a result are 0, its rounding
scale is 0, and the error rule requires 0.
"""

from dataclasses import replace

import pytest
import torch
from judging import assert_same_bits

from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

EMPTY = (
    Case("no batch", batch=0, gate="shared", bias="shared"),
    Case("no heads", heads=0, gate="shared"),
    Case("no queries", queries=0, keys=5),
    Case("no keys", queries=5, keys=0),
    Case("no queries, no keys", queries=0, gate="per_head", bias="per_head"),
    Case("no keys, column gate", queries=5, keys=0, gate="shared", form="column"),
    Case("no keys, dropout", queries=5, keys=0, dropout_p=0.5),
    Case("no keys, causal and masked", queries=5, keys=0, is_causal=True, mask="boolean"),
    Case("no batch, lengths", batch=0, key_lengths=()),
    Case("no tokens", sequences=(0, 0), gate="shared", bias="shared"),
    Case("no sequences", sequences=()),
)


@pytest.mark.parametrize("case", EMPTY, ids=lambda case: case.name)
def test_empty_call_gives_zeros(case, backend, dtype, device):
    inputs = make_inputs(case, dtype, device)
    results = evaluate(inputs, through_backend(backend))
    assert results["out"].shape == inputs.tensors["query"].shape
    for name, t in results.items():
        if name.startswith("grad "):
            assert t.shape == inputs.tensors[name.removeprefix("grad ")].shape, name
        if name != "lambda":
            assert torch.equal(t, torch.zeros_like(t)), name


@pytest.mark.parametrize("queries", [17, 600])
@pytest.mark.parametrize(
    ("gate", "unread"),
    [
        (dict(), ("key", "value", "context_key")),
        (dict(gate="shared", form="column", bias="shared"), ("key", "value", "context_key")),
        (dict(gate="per_head"), ("value",)),  # a row gate reads each query's own key, padding or not
    ],
    ids=["lambda", "column gate", "row gate"],
)
def test_keys_beyond_the_length_are_not_read(gate, unread, queries, backend, dtype, device):
    """NaN in the padding changes no bit of any result."""
    case = Case("poisoned padding", queries=queries, key_lengths=(0, queries - 6), **gate)
    inputs = make_inputs(case, dtype, device)
    clean = evaluate(inputs, through_backend(backend))
    poisoned = dict(inputs.tensors)
    for name in unread:
        poisoned[name] = poisoned[name].clone()
        for b, length in enumerate(case.key_lengths):
            poisoned[name][b, :, length:] = torch.nan
    assert_same_bits(evaluate(replace(inputs, tensors=poisoned), through_backend(backend)), clean)


@pytest.mark.parametrize("gate", [dict(), dict(gate="per_head", bias="per_head")], ids=["lambda", "vectors"])
@pytest.mark.parametrize("shape", [dict(queries=17), dict(queries=530), dict(sequences=(14, 25, 9))], ids=str)
def test_nan_in_one_sequence_reaches_no_other(shape, gate, backend, dtype, device):
    case = Case("one bad sequence", batch=3, heads=2, head_dim=8, **shape, **gate)
    inputs = make_inputs(case, dtype, device)
    clean = evaluate(inputs, through_backend(backend))
    if case.sequences is None:
        bad = slice(1, 2)
        kept = [0, 2]
    else:
        bad = slice(14, 39)
        kept = [*range(14), *range(39, 48)]
    tensors = {n: t if n.startswith("gate.") else t.clone() for n, t in inputs.tensors.items()}
    for name, t in tensors.items():
        if not name.startswith("gate."):
            t[bad] = torch.nan
    upstream = inputs.grad_out.clone()
    upstream[bad] = torch.nan
    got = evaluate(replace(inputs, tensors=tensors, grad_out=upstream), through_backend(backend))
    for name, t in got.items():
        if name.startswith("grad gate."):
            continue  # shared by all sequences, so NaN is correct
        assert t[bad].isnan().all(), f"{name} does not show the NaN"
        assert torch.equal(t[kept], clean[name][kept]), f"{name} of the other sequences changed"


@pytest.mark.parametrize("keys", [17, 600])
@pytest.mark.parametrize("name", ["query", "key", "context_query", "context_key", "value", "lambda"])
def test_visible_nan_reaches_the_output(name, keys, backend, dtype, device):
    """A NaN reaches the output of the rows that read it, and of no other row."""
    inputs = make_inputs(Case("visible NaN", queries=17, keys=keys), dtype, device)
    clean, _ = through_backend(backend)(inputs, inputs.tensors)
    tensors = dict(inputs.tensors) | {name: inputs.tensors[name].clone()}
    tensors[name][1, 2, 5] = torch.nan
    out, _ = through_backend(backend)(inputs, tensors)
    if name in ("query", "context_query", "lambda"):
        assert out[1, 2, 5].isnan().all()
        out[1, 2, 5] = clean[1, 2, 5]
    else:
        assert out[1, 2].isnan().all()
        out[1, 2] = clean[1, 2]
    assert torch.equal(out, clean)


NEGATED = (
    Case("negated", gate="per_head", bias="per_head", mask="additive", quasi_bias="per_query", lambda_gradient=True),
    Case("negated: lambda", batch=1, heads=1, quasi_bias="per_head", mask="additive_row"),
    Case("negated: packed", sequences=(5, 9), quasi_bias="per_query"),
)


@pytest.mark.parametrize("upstream", [True, False], ids=["gradients", "inputs"])
@pytest.mark.parametrize("case", NEGATED, ids=lambda case: case.name)
def test_negative_bits_change_no_result(case, upstream, backend, device):
    """The memory of a tensor with a negative bit, such as the imaginary part of a conjugate, has the wrong sign."""
    inputs = make_inputs(case, torch.float32, device)

    def negated(t):
        return torch._neg_view(-t) if isinstance(t, torch.Tensor) and t.is_floating_point() else t

    if upstream:
        changed = replace(inputs, grad_out=negated(inputs.grad_out), grad_lambda=negated(inputs.grad_lambda))
        assert changed.grad_out.is_neg()
    else:
        tensors, options = ({n: negated(t) for n, t in d.items()} for d in (inputs.tensors, inputs.options))
        changed = replace(inputs, tensors=tensors, options=options)
        assert changed.options["quasi_bias"].is_neg()
    torch.testing.assert_close(
        evaluate(changed, through_backend(backend)), evaluate(inputs, through_backend(backend)), rtol=1e-5, atol=1e-5
    )


def test_subnormals_are_not_flushed_after_a_call(backend, device):
    """A kernel may flush subnormal numbers to zero only while it runs."""
    inputs = make_inputs(Case("denormals", queries=33, gate="shared"), torch.float32, device)
    evaluate(inputs, through_backend(backend))
    denormal = torch.full((64,), 1e-30) * 1e-10
    assert (denormal != 0).all()


def test_offsets_of_any_dtype_and_larger_maximum_are_valid(backend, device):
    case = Case("offsets", sequences=(5, 0, 17, 1), gate="per_head", bias="shared")
    inputs = make_inputs(case, torch.float32, device)
    expected, _ = through_backend(backend)(inputs, inputs.tensors)
    for dtype in (torch.int32, torch.int64):
        inputs.options.update(cu_seqlens=inputs.options["cu_seqlens"].to(dtype), max_seqlen=700)
        torch.testing.assert_close(through_backend(backend)(inputs, inputs.tensors)[0], expected)
