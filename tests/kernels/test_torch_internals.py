"""Private interfaces of torch: each has a public fallback, and one module is the only one to use them."""

import re
from pathlib import Path

import pytest
import torch

import qacg_kernels as qk
from qacg_kernels.utils import torch_internals

PACKAGE = Path(qk.__file__).parent
NAMES = (
    "_dispatch_stack_length",
    "_tracing_state",
    "_profiler_enabled",
    "_below_autograd",
    "_dispatch_keys",
    "_functorch_active",
    "_is_batched",
    "_FakeTensor",
)


@pytest.fixture(params=NAMES)
def torch_without_name(request, monkeypatch):
    """Torch without one of its private names; `_private` returns None for it."""
    monkeypatch.setattr(torch_internals, request.param, () if request.param == "_FakeTensor" else None)


def operands():
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 2, 5, 8, generator=generator) for _ in range(5)]
    return [t.requires_grad_() for t in (*tensors, torch.rand(1, 2, 5, generator=generator))]


def gradients(backend):
    leaves = operands()
    return torch.autograd.grad(qk.quasi_attention(*leaves, backend=backend).square().sum(), leaves)


def test_private_name_that_is_missing_gives_none():
    assert torch_internals._private("_C._no_such_name") is None


def test_gradients_without_a_private_name_are_equal(backend, torch_without_name, monkeypatch):
    got = gradients(backend)
    monkeypatch.undo()
    for mine, expected in zip(got, gradients(backend)):
        assert torch.equal(mine, expected)


def test_inference_without_a_private_name_works(backend, torch_without_name):
    with torch.no_grad():
        assert qk.quasi_attention(*operands(), backend=backend).isfinite().all()


def test_vmap_without_a_private_name_works(backend, torch_without_name):
    query, *others = (t.detach() for t in operands())
    mapped = torch.func.vmap(lambda q: qk.quasi_attention(q, *others, backend=backend))(torch.stack([query, query]))
    assert torch.equal(mapped[0], qk.quasi_attention(query, *others, backend=backend))


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_one_module_uses_private_names(path):
    if path == Path(torch_internals.__file__):
        return
    assert re.findall(r"torch\._C|_dynamo_marked|torch\._subclasses|_current_level|_op_dk", path.read_text()) == []
