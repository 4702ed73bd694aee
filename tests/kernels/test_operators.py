"""The torch.library operators: schema, fake implementations, autograd, raw calls, autocast."""

from dataclasses import replace

import pytest
import torch
from full_members import member, members
from judging import assert_same_bits

import qacg_kernels as qk
from qacg_kernels.functional import problem_of
from qacg_kernels.operators import schema
from qacg_kernels.testing import evaluate, supported_dtypes, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs
from qacg_kernels.utils import torch_internals

FLOAT32 = dict(heads=2, float32_gate=True)
CASES = (
    Case("op: lambda", batch=1, heads=2, queries=5, keys=9, head_dim=4),
    Case("op: gate, mask", heads=2, queries=6, head_dim=4, gate="per_head", bias="shared", mask="additive"),
    Case("op: heads inside", heads=2, queries=6, head_dim=4, gate="shared", bias="per_head", layout="heads_inside"),
    Case("op: float32 gate", queries=6, head_dim=4, gate="one_row", bias="one_row", context_bias="per_head", **FLOAT32),
    Case("op: lengths, dropout", heads=2, queries=6, head_dim=4, key_lengths=(2, 6), dropout_p=0.3),
    Case("op: column gate", heads=2, queries=4, keys=7, head_dim=4, gate="shared", form="column", is_causal=True),
    Case("op: packed", heads=2, sequences=(3, 0, 5), head_dim=4, gate="shared", bias="shared", dropout_p=0.2),
)
ids = dict(ids=lambda case: case.name)


def trainable(inputs):
    return {name: t.detach().requires_grad_() for name, t in inputs.tensors.items()}


def dtype_for(case, backend, device):
    """The widest dtype of a backend; for a case with a float32 gate, a narrower one."""
    return supported_dtypes(backend, device)[-1 if case.float32_gate else 0]


@pytest.mark.parametrize("saved", members([dict(), dict(save_softmax_out=False)], fast=[dict()]))
@pytest.mark.parametrize("case", members(CASES, fast=CASES[::2]))
def test_opcheck_of_the_forward_passes(case, saved, backend, device):
    inputs = make_inputs(case, dtype_for(case, backend, device), device)
    problem = problem_of(*inputs.arguments(trainable(inputs)), **inputs.options)
    torch.library.opcheck(schema.forward_op(backend).default, (*problem.tensors, *problem.options), saved)


@pytest.mark.parametrize("case", CASES, **ids)
def test_opcheck_of_the_backward_passes(case, backend, device):
    """Without the check of autograd, because the backward has no derivative."""
    inputs = make_inputs(case, dtype_for(case, backend, device), device)
    problem = problem_of(*inputs.arguments(), **inputs.options)
    out, *saved = schema.forward_op(backend)(*problem.tensors, *problem.options)
    upstream = [torch.randn_like(out), *(torch.randn_like(t) if t.numel() else None for t in saved[4:])]
    arguments = (*upstream, *problem.tensors, *saved, *problem.options)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(schema.backward_op(backend).default, arguments, test_utils=checks)


@pytest.mark.parametrize("case", CASES, **ids)
def test_raw_operator_has_the_gradients_of_the_function(case, backend, device):
    inputs = make_inputs(case, torch.float32, device)
    expected = evaluate(inputs, through_backend(backend))
    leaves = trainable(inputs)
    problem = problem_of(*inputs.arguments(leaves), **inputs.options)
    operator = getattr(torch.ops.qacg, f"{backend}_attention")
    out = operator(*problem.tensors, *problem.options, save_softmax_out=True, save_quasi_out=False)[0]
    assert out.requires_grad
    gradients = torch.autograd.grad(out, list(leaves.values()), inputs.grad_out)
    torch.testing.assert_close(dict(zip(leaves, gradients)), {name: expected[f"grad {name}"] for name in leaves})


def test_second_derivative_raises_with_advice(backend, device):
    inputs = make_inputs(CASES[0], dtype_for(CASES[0], backend, device), device)
    leaves = trainable(inputs)
    out, _ = through_backend(backend)(inputs, leaves)
    (first,) = torch.autograd.grad(out.square().sum(), leaves["query"], create_graph=True)
    with pytest.raises(NotImplementedError, match="attention_maps"):
        first.sum().backward()


def test_output_has_the_memory_order_of_the_query(backend, device):
    """The heads of a (B, L, H*D) projection are merged again without a copy."""
    inputs = make_inputs(Case("memory order", layout="heads_inside"), torch.float32, device)
    out, _ = through_backend(backend)(inputs, inputs.tensors)
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("case", CASES, **ids)
def test_autocast_around_a_call_changes_nothing(case, backend, device):
    inputs = make_inputs(case, torch.float32, device)
    outside = evaluate(inputs, through_backend(backend))
    with torch.autocast(device, dtype=torch.bfloat16):
        inside = evaluate(inputs, through_backend(backend))
    assert_same_bits(inside, outside)


def test_call_does_not_change_its_inputs(backend, dtype, device):
    case = Case("unchanged", gate="shared", bias="shared", mask="additive", key_lengths=(3, 17), dropout_p=0.1)
    inputs = make_inputs(case, dtype, device)
    everything = {**inputs.tensors, **inputs.options, "upstream": inputs.grad_out}
    before = {name: t.clone() for name, t in everything.items() if isinstance(t, torch.Tensor)}
    evaluate(inputs, through_backend(backend))
    assert_same_bits({name: everything[name] for name in before}, before)


INFERENCE_CASES = (
    Case("inference: mask, lengths", mask="boolean_keys", key_lengths=(9, 17), dropout_p=0.2, quasi_bias="per_query"),
    Case("inference: additive mask", gate="shared", bias="shared", mask="additive"),
    Case("inference: packed", sequences=(3, 0, 5), gate="shared", dropout_p=0.2),
)


@pytest.mark.parametrize("case", INFERENCE_CASES, **ids)
def test_options_of_inference_mode_can_be_used_in_training(case, backend, device):
    """Programs keep masks and lengths that an evaluation made; torch's attention also accepts boolean ones."""
    inputs = make_inputs(case, torch.float32, device)
    expected = evaluate(inputs, through_backend(backend))
    with torch.inference_mode():
        options = {name: t.clone() if isinstance(t, torch.Tensor) else t for name, t in inputs.options.items()}
    assert any(isinstance(t, torch.Tensor) and t.is_inference() for t in options.values())
    assert_same_bits(evaluate(replace(inputs, options=options), through_backend(backend)), expected)


def test_output_with_heads_inside_may_be_changed_in_place():
    """The inputs, and so the output, have the memory order (B, L, H, D) of a projection."""
    leaves = [torch.randn(2, 5, 3, 8, requires_grad=True) for _ in range(5)]
    for backend in {"reference", "cpu"}.intersection(qk.available_backends()):
        out = qk.quasi_attention(*(t.transpose(1, 2) for t in leaves), torch.rand(2, 3, 5), backend=backend)
        out.mul_(2).sum().backward()


def test_only_export_counts_as_exporting():
    class Module(torch.nn.Module):
        def forward(self, x):
            return x + 1 if torch_internals.is_exporting() else x - 1

    zero = torch.zeros(1)
    assert torch.compile(Module(), fullgraph=True, backend="eager")(zero) == -1
    for strict in (False, True):
        assert torch.export.export(Module(), (zero,), strict=strict).module()(zero) == 1


@pytest.mark.parametrize("case", [member(case, id=case.name, fast=n == 1) for n, case in enumerate(CASES)])
def test_gradcheck_of_the_reference_passes(case, device):
    inputs = make_inputs(case, torch.float64, device)
    leaves = trainable(inputs)
    call = qk.quasi_attention if case.sequences is None else qk.quasi_attention_varlen

    def function(*values):
        arguments = inputs.arguments(dict(zip(leaves, values)))
        return call(*arguments, **inputs.options, backend="reference", return_lambda=case.returns_lambda)

    assert torch.autograd.gradcheck(function, tuple(leaves.values()))
