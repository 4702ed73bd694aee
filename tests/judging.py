"""What backends are compared to, and the comparison."""

import functools

import torch

from qacg_kernels.testing import (
    assert_within_budget,
    evaluate,
    evaluate_exactly,
    rounding_scales,
    through_eager,
)
from qacg_kernels.testing_inputs import make_inputs


@functools.cache
def judged_by(case, dtype, device):
    """Inputs of a case with what they are compared to, shared by all backends."""
    return judges_of(make_inputs(case, dtype, device))


def judges_of(inputs):
    # Backends promise float32 accumulation of 16-bit inputs. Eager PyTorch in 16 bits, whose scores are
    # already rounded, would allow ten times the error that they have: they are held to eager in float32.
    narrow = inputs.grad_out.dtype in (torch.bfloat16, torch.float16)
    eager = evaluate(inputs.to(torch.float32) if narrow else inputs, through_eager)
    return inputs, eager, evaluate_exactly(inputs), rounding_scales(inputs)


def compare(results, judges, where, allowance=0.0):
    _, eager, exact, scales = judges
    for name, t in results.items():
        allowed = allowance if name.startswith("grad") else 0.0
        assert_within_budget(name, t, eager[name], exact[name], scales[name], allowance=allowed, where=where)
