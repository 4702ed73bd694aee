"""The torch.library operators: schema, fakes, autograd, raw calls, autocast."""

import pytest
import torch
from full_members import member, members

import qacg_kernels as qk
from qacg_kernels.call.validation import dense_problem, packed_problem
from qacg_kernels.operators import schema
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

CASES = (
    Case("op: lambda", batch=1, heads=2, queries=5, keys=9, head_dim=4),
    Case("op: gate, mask", heads=2, queries=6, head_dim=4, gate="per_head", bias="shared", mask="additive"),
    Case("op: heads inside", heads=2, queries=6, head_dim=4, gate="shared", bias="per_head", layout="heads_inside"),
    Case("op: lengths, dropout", heads=2, queries=6, head_dim=4, key_lengths=(2, 6), dropout_p=0.3),
    Case("op: column gate", heads=2, queries=4, keys=7, head_dim=4, gate="shared", form="column", is_causal=True),
    Case("op: packed", heads=2, sequences=(3, 0, 5), head_dim=4, gate="shared", bias="shared", dropout_p=0.2),
)
ids = dict(ids=lambda case: case.name)


def problem_of(inputs, tensors=None):
    if inputs.case.sequences is not None:
        defaults = dict(dropout_seed=None)
        return packed_problem(*inputs.arguments(tensors), **defaults | inputs.options)
    defaults = dict(attn_mask=None, key_lengths=None, dropout_seed=None)
    return dense_problem(*inputs.arguments(tensors), **defaults | inputs.options)


def trainable(inputs):
    return {name: t.detach().requires_grad_() for name, t in inputs.tensors.items()}


def widest(backend, device):
    from qacg_kernels.testing import supported_dtypes

    return supported_dtypes(backend, device)[0]


@pytest.mark.parametrize("saved", members([dict(), dict(save_softmax_out=False, save_quasi_out=True)], fast=[dict()]))
@pytest.mark.parametrize("case", members(CASES, fast=CASES[::2]))
def test_opcheck_forward(case, saved, backend, device):
    inputs = make_inputs(case, widest(backend, device), device)
    problem = problem_of(inputs, trainable(inputs))
    torch.library.opcheck(schema.forward_op(backend).default, problem.tensors(), problem.options() | saved)


@pytest.mark.parametrize("case", CASES, **ids)
def test_opcheck_backward(case, backend, device):
    """The backward is an operator too; its own derivative is refused, so autograd is not among the checks."""
    inputs = make_inputs(case, widest(backend, device), device)
    problem = problem_of(inputs)
    out, *saved = schema.forward_op(backend)(*problem.tensors(), **problem.options())
    upstream = [torch.randn_like(out), *(torch.randn_like(t) if t.numel() else None for t in saved[4:])]
    arguments = (*upstream, *problem.tensors(), *saved)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(schema.backward_op(backend).default, arguments, problem.options(), test_utils=checks)


@pytest.mark.parametrize("case", [member(case, id=case.name, fast=n == 1) for n, case in enumerate(CASES)])
def test_gradcheck_of_the_reference(case, device):
    inputs = make_inputs(case, torch.float64, device)
    leaves = trainable(inputs)
    wants_lambda = case.returns_lambda
    call = qk.quasi_attention if case.sequences is None else qk.quasi_attention_varlen

    def function(*values):
        arguments = inputs.arguments(dict(zip(leaves, values)))
        return call(*arguments, **inputs.options, backend="reference", return_lambda=wants_lambda)

    assert torch.autograd.gradcheck(function, tuple(leaves.values()))


@pytest.mark.parametrize("case", CASES, **ids)
def test_raw_operator_differentiates(case, backend, device):
    inputs = make_inputs(case, widest(backend, device), device)
    expected = evaluate(inputs, through_backend(backend))
    leaves = trainable(inputs)
    problem = problem_of(inputs, leaves)
    operator = getattr(torch.ops.qacg, f"{backend}_attention")
    out = operator(*problem.tensors(), **problem.options(), save_softmax_out=True, save_quasi_out=False)[0]
    assert out.requires_grad
    gradients = torch.autograd.grad(out, list(leaves.values()), inputs.grad_out)
    for name, g in zip(leaves, gradients):
        torch.testing.assert_close(g, expected[f"grad {name}"], msg=lambda m, name=name: f"{name}: {m}")


def test_saved_tensors_are_no_outputs_to_differentiate(backend, device):
    inputs = make_inputs(CASES[0], widest(backend, device), device)
    problem = problem_of(inputs, trainable(inputs))
    out, softmax_out, _, row_max, *_ = schema.forward_op(backend)(*problem.tensors(), **problem.options())
    assert out.requires_grad
    assert not softmax_out.requires_grad
    assert not row_max.requires_grad


def test_second_derivative_is_refused_with_advice(backend, device):
    inputs = make_inputs(CASES[0], widest(backend, device), device)
    leaves = trainable(inputs)
    out, _ = through_backend(backend)(inputs, leaves)
    (first,) = torch.autograd.grad(out.square().sum(), leaves["query"], create_graph=True)
    with pytest.raises(NotImplementedError, match="attention_maps"):
        first.sum().backward()


def test_output_has_the_memory_order_of_the_query(backend, device):
    """Heads of a (B, L, H*D) projection merge again without a copy."""
    inputs = make_inputs(Case("memory order", layout="heads_inside"), widest(backend, device), device)
    out, _ = through_backend(backend)(inputs, inputs.tensors)
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("case", CASES, **ids)
def test_autocast_around_a_call_changes_nothing(case, backend, device):
    """Inputs come in the dtype they have; autocast must not reach into the kernel."""
    inputs = make_inputs(case, torch.float32, device)
    outside = evaluate(inputs, through_backend(backend))
    with torch.autocast(device, dtype=torch.bfloat16):
        inside = evaluate(inputs, through_backend(backend))
    for name, t in outside.items():
        assert torch.equal(inside[name], t), name


def test_inputs_are_left_alone(backend, dtype, device):
    case = Case("left alone", gate="shared", bias="shared", mask="additive", key_lengths=(3, 17), dropout_p=0.1)
    inputs = make_inputs(case, dtype, device)
    everything = {**inputs.tensors, **inputs.options, "upstream": inputs.grad_out}
    before = {name: t.clone() for name, t in everything.items() if isinstance(t, torch.Tensor)}
    evaluate(inputs, through_backend(backend))
    for name, t in before.items():
        assert torch.equal(everything[name], t), name


def test_an_output_may_be_changed_in_place_whatever_the_layout():
    """Heads behind rows in memory, as a projection gives them: the output has them so too."""
    leaves = [torch.randn(2, 5, 3, 8, requires_grad=True) for _ in range(5)]
    for backend in {"reference", "cpu"}.intersection(qk.available_backends()):
        out = qk.quasi_attention(*(t.transpose(1, 2) for t in leaves), torch.rand(2, 3, 5), backend=backend)
        assert out.transpose(1, 2).is_contiguous()
        out.mul_(2).sum().backward()
