"""A backend for padded calls in float32 on the CPU, by the equations in PyTorch."""

import torch

from qacg_kernels.call import equations
from qacg_kernels.call.problem import ForwardOutputs, Gradients, Problem, Residuals, Saved
from qacg_kernels.operators.autograd import define_operators

NAME = "toy"
NEEDS_SELF_CHECK = False
TAKES_PACKED = False
DEVICE = "cpu"
DTYPES = (torch.float32,)
MAX_HEAD_DIM = 64
GATE_FORMS = ("row", "column")


def missing() -> list[str]:
    return []


def not_for(device: torch.device) -> list[str]:
    return []


def residuals(problem: Problem) -> Residuals:
    return Residuals(save_softmax_out=False, save_quasi_out=False)


def note(problem: Problem) -> str | None:
    return "by the equations"


def forward(problem: Problem, residuals: Residuals) -> ForwardOutputs:
    outputs, _ = equations.dense_forward(problem)
    return outputs._replace(softmax_out=None, quasi_out=None)


def backward(problem: Problem, saved: Saved) -> Gradients:
    return equations.dense_backward(problem, saved)[0]


define_operators(NAME, forward, backward)
