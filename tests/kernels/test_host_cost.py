"""What a call of few tokens must not spend its time on."""

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import qacg_kernels as qk

FORMULAS = str(Path("torch", "_library", "autograd.py"))  # where torch runs formulas registered with an operator
OPERATORS = str(Path("torch", "_ops.py"))  # where it calls operators


@pytest.fixture
def python_files():
    """The files whose functions ran while it was open."""
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


def test_training_runs_ours_alone(python_files):
    leaves = [t.requires_grad_() for t in operands()]
    out = qk.quasi_attention(*leaves)
    torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert any(file.endswith("qacg_kernels/operators/autograd.py") for file in python_files)
    assert not [file for file in python_files if file.endswith(FORMULAS)]


@pytest.mark.parametrize("gradients", [True, False])
def test_tangents_are_refused_all_the_same(gradients):
    query, *others = operands()
    with torch.set_grad_enabled(gradients), forward_ad.dual_level():
        dual = forward_ad.make_dual(query, query)
        with pytest.raises(NotImplementedError, match="reverse"):
            qk.quasi_attention(dual, *others)


def _gradients(leaves, gate, upstream=None, **options):
    """Of a call by the reference, whose kernels are Python as those of GPUs are."""
    out = qk.quasi_attention(*leaves[:5], gate, backend="reference")
    return torch.autograd.grad(out, leaves, torch.ones_like(out) if upstream is None else upstream, **options)


@pytest.fixture(params=["lambda tensor", "gate vectors"])
def call(request):
    """Leaves, and the gate that is among them."""
    leaves = [t.requires_grad_() for t in operands()]
    if request.param == "lambda tensor":
        return leaves, leaves[5]
    vectors = [torch.randn(8, requires_grad=True) for _ in range(4)]
    return [*leaves[:5], *vectors], qk.GateParameters(*vectors)


def test_a_kernel_in_python_is_called_past_the_operator(call, python_files):
    _gradients(*call)
    assert any(file.endswith("backends/reference.py") for file in python_files)
    assert not [file for file in python_files if file.endswith(OPERATORS)]


class Watching(TorchDispatchMode):
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
def watched(seen):
    with Watching() as mode:
        yield
    seen |= mode.seen


@pytest.mark.parametrize("watch", [watched, profiled])
def test_whoever_watches_operators_sees_it(call, watch):
    expected, seen = _gradients(*call), set()
    with watch(seen):
        got = _gradients(*call)
    assert {"qacg::reference_attention", "qacg::reference_attention_backward"} <= seen
    assert all(map(torch.equal, got, expected))


class Wrapped(torch.Tensor):
    """A tensor around another that sees the operators it meets."""

    seen: ClassVar[set] = set()

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        cls.seen.add(function.name())
        plain = [t.inner if isinstance(t, Wrapped) else t for t in arguments]
        return function(*plain, **(options or {}))


def test_a_tensor_of_a_type_of_its_own_meets_the_operator():
    query, *others = operands()
    with torch.no_grad():
        got = qk.quasi_attention(Wrapped(query), *others, backend="reference")
        expected = qk.quasi_attention(query, *others, backend="reference")
    assert "qacg::reference_attention" in Wrapped.seen
    assert torch.equal(got, expected)


def test_a_backward_is_watched_though_its_forward_was_not(call):
    """What the forward left out is None, which an operator does not take."""
    leaves, gate = call
    expected, seen = _gradients(*call), set()
    out = qk.quasi_attention(*leaves[:5], gate, backend="reference")
    with watched(seen):
        got = torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert "qacg::reference_attention_backward" in seen
    assert all(map(torch.equal, got, expected))


def test_gradients_for_many_at_once(call):
    upstream = torch.randn(3, 1, 2, 5, 8)
    got = _gradients(*call, upstream, is_grads_batched=True)
    for index, one in enumerate(upstream):
        for t, expected in zip(got, _gradients(*call, one)):
            torch.testing.assert_close(t[index], expected)


def test_checkpoint_with_a_watched_second_forward_saves_as_many(call):
    leaves, gate = call
    expected, seen = _gradients(*call), set()

    def attend(*wide):
        return qk.quasi_attention(*wide, gate, backend="reference")

    out = checkpoint(attend, *leaves[:5], use_reentrant=False)
    with watched(seen):
        got = torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert "qacg::reference_attention" in seen
    assert all(map(torch.equal, got, expected))
