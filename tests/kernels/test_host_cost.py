"""What a call of few tokens must not spend its time on."""

import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

import qacg_kernels as qk

FORMULAS = str(Path("torch", "_library", "autograd.py"))  # where torch runs formulas registered with an operator


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
    assert any(file.endswith("ops.py") for file in python_files)
    assert not [file for file in python_files if file.endswith(FORMULAS)]


@pytest.mark.parametrize("gradients", [True, False])
def test_tangents_are_refused_all_the_same(gradients):
    query, *others = operands()
    with torch.set_grad_enabled(gradients), forward_ad.dual_level():
        dual = forward_ad.make_dual(query, query)
        with pytest.raises(NotImplementedError, match="reverse"):
            qk.quasi_attention(dual, *others)
