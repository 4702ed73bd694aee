"""A backend for float32 on the CPU, by the reference's functions."""

import torch

from qacg_kernels.backends import reference
from qacg_kernels.call.problem import Problem, Residuals
from qacg_kernels.operators.autograd import define_operators

NAME = "toy"
DEVICE = "cpu"
DTYPES = (torch.float32,)
MAX_HEAD_DIM, HEAD_DIM_STEP = 64, 1


def missing() -> list[str]:
    return []


def not_for(device: torch.device) -> list[str]:
    return []


def residuals(problem: Problem) -> Residuals:
    return Residuals(save_softmax_out=False, save_quasi_out=False)


def note(problem: Problem) -> str | None:
    return "by the equations"


define_operators(NAME, reference.forward, reference.backward)
