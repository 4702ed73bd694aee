"""Registration of a backend's operators."""

from collections.abc import Callable
from functools import partial

import torch

from qacg_kernels.call.problem import ForwardOutputs, Gradients, Problem, Residuals, Saved
from qacg_kernels.call.validation import check_problem, check_saved
from qacg_kernels.operators import autograd, schema
from qacg_kernels.operators.schema import NAMESPACE, Kernels, python_kernels

PythonForward = Callable[[Problem, Residuals], ForwardOutputs]
PythonBackward = Callable[[Problem, Saved], Gradients]


def define_operators(
    backend: str, forward: PythonForward | None = None, backward: PythonBackward | None = None
) -> None:
    """Defines a backend's two operators with their fake implementations and derivatives.

    Args:
        forward, backward: the kernels, where they are Python; a compiled library registers its own.
    """
    names = (f"{backend}_attention", f"{backend}_attention_backward")
    schemas = (schema.FORWARD_SCHEMA, schema.BACKWARD_SCHEMA)
    for name, text, fake in zip(names, schemas, (schema.fake_forward, schema.fake_backward)):
        # The schema parser requires one line.
        schema.library.define(name + " ".join(text.split()), tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=schema.library)
    autograd.register(backend)
    if forward is not None and backward is not None:
        register_kernels(backend, Kernels(forward, backward))


def register_kernels(
    backend: str,
    kernels: Kernels,
    key: str = "CompositeExplicitAutograd",
    library: torch.library.Library = schema.library,
) -> None:
    """Registers Python kernels for every device.

    Args:
        key: "BackendSelect" puts them in front of compiled ones.
    """
    python_kernels[backend] = kernels
    library.impl(f"{backend}_attention", partial(_forward, kernels.forward), key)
    library.impl(f"{backend}_attention_backward", partial(_backward, kernels.backward), key)


def _forward(kernel: PythonForward, *tensors, save_softmax_out=True, save_quasi_out=False, **options):
    problem = Problem.of_operator(tensors, options)
    if not schema.validated.active:
        check_problem(problem)
    out, *results = kernel(problem, Residuals(save_softmax_out, save_quasi_out))
    return out, *schema.without_none(results, problem.query)


def _backward(kernel: PythonBackward, *tensors, **options):
    problem, saved = schema.of_backward(tensors, options)
    if not schema.validated.active:
        check_problem(problem)
        check_saved(problem, saved, schema.row_dtype(problem.query))
    grads = kernel(problem, saved)
    return tuple(saved.grad_out.new_empty((0,)) if grad is None else grad for grad in grads)
