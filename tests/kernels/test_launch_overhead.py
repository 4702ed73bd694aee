"""Small calls bypass torch's formulas, and observers of operators see them."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import qacg_kernels as qk
from qacg_kernels.utils import torch_internals

FORMULAS = str(Path("torch", "_library", "autograd.py"))  # runs formulas registered with an operator


@pytest.fixture
def python_files():
    """The files whose functions have run."""
    files: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, _event, _argument: files.add(frame.f_code.co_filename))
    yield files
    sys.setprofile(before)


def operands() -> list[torch.Tensor]:
    return [torch.randn(1, 2, 5, 8) for _ in range(5)] + [torch.rand(1, 2, 5)]


def test_inference_runs_no_autograd_formula(python_files):
    with torch.no_grad():
        qk.quasi_attention(*operands())
    assert any(file.endswith("functional.py") for file in python_files)
    assert not [file for file in python_files if file.endswith(FORMULAS)]


def test_training_runs_only_our_formulas(python_files):
    leaves = [t.requires_grad_() for t in operands()]
    out = qk.quasi_attention(*leaves)
    torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert any(file.endswith("qacg_kernels/operators/autograd.py") for file in python_files)
    assert not [file for file in python_files if file.endswith(FORMULAS)]


def _gradients(leaves, gate, upstream=None, **options):
    out = qk.quasi_attention(*leaves[:5], gate, backend="reference")
    return torch.autograd.grad(out, leaves, torch.ones_like(out) if upstream is None else upstream, **options)


@pytest.fixture(params=["lambda tensor", "gate vectors"])
def call(request):
    """The inputs of a call that require a gradient, and its gate, which is made of some of them."""
    leaves = [t.requires_grad_() for t in operands()]
    if request.param == "lambda tensor":
        return leaves, leaves[5]
    vectors = [torch.randn(8, requires_grad=True) for _ in range(4)]
    return [*leaves[:5], *vectors], qk.GateParameters(*vectors)


class RecordOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.seen.add(function.name())
        return function(*arguments, **(options or {}))


@contextmanager
def profiled(seen):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        yield
    seen |= {event.key for event in profiler.key_averages()}


@contextmanager
def recorded(seen):
    with RecordOperators() as mode:
        yield
    seen |= mode.seen


@pytest.mark.parametrize("observe", [recorded, profiled])
def test_observer_of_operators_sees_the_call(call, observe):
    expected, seen = _gradients(*call), set()
    with observe(seen):
        got = _gradients(*call)
    assert {"qacg::reference_attention", "qacg::reference_attention_backward"} <= seen
    assert all(map(torch.equal, got, expected))


def test_tensor_subclass_reaches_the_operator():
    query, *others = operands()
    with torch.no_grad():
        got = qk.quasi_attention(TwoTensor(query, query), *others, backend="reference")
        expected = qk.quasi_attention(query, *others, backend="reference")
    assert isinstance(got, TwoTensor), "the operator's dispatch makes it"
    assert torch.equal(got.a, expected)


@pytest.mark.parametrize("recomputed", [False, True])
def test_backward_may_be_observed_without_its_forward(call, recomputed):
    leaves, gate = call
    expected, seen = _gradients(*call), set()

    def attend(*wide):
        return qk.quasi_attention(*wide, gate, backend="reference")

    out = checkpoint(attend, *leaves[:5], use_reentrant=False) if recomputed else attend(*leaves[:5])
    with recorded(seen):
        got = torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert "qacg::reference_attention_backward" in seen
    assert ("qacg::reference_attention" in seen) == recomputed
    assert all(map(torch.equal, got, expected))


def test_batched_gradients_equal_separate_ones(call):
    upstream = torch.randn(3, 1, 2, 5, 8)
    got = _gradients(*call, upstream, is_grads_batched=True)
    for index, one in enumerate(upstream):
        for t, expected in zip(got, _gradients(*call, one)):
            torch.testing.assert_close(t[index], expected)


# Private names of torch

NAMES = (
    "_dispatch_stack_length",
    "_tracing_state",
    "_below_autograd",
    "_dispatch_keys",
    "_functorch_active",
    "_is_batched",
    "_is_wrapped",
    "_unwrapped",
    "_FakeTensor",
)


@pytest.fixture(params=NAMES)
def torch_without_name(request, monkeypatch):
    """Simulates a torch without one of its private names, for which `_private` returns None."""
    monkeypatch.setattr(torch_internals, request.param, () if request.param == "_FakeTensor" else None)


def seeded_gradients(backend):
    torch.manual_seed(0)
    leaves = [t.requires_grad_() for t in operands()]
    return torch.autograd.grad(qk.quasi_attention(*leaves, backend=backend).square().sum(), leaves)


def test_gradients_without_a_private_name_are_equal(backend, torch_without_name, monkeypatch):
    got = seeded_gradients(backend)
    monkeypatch.undo()
    for mine, expected in zip(got, seeded_gradients(backend)):
        assert torch.equal(mine, expected)


def test_vmap_without_a_private_name_works(backend, torch_without_name):
    query, *others = operands()
    mapped = torch.func.vmap(lambda q: qk.quasi_attention(q, *others, backend=backend))(torch.stack([query, query]))
    assert torch.equal(mapped[0], qk.quasi_attention(query, *others, backend=backend))
