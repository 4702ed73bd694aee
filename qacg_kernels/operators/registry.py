"""Registration of a backend's operators."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

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
        backend: the backend's name.
        forward, backward: the kernels if they are Python functions; None if a compiled library registers its own.
    """
    names = (f"{backend}_attention", f"{backend}_attention_backward")
    schemas = (schema.FORWARD_SCHEMA, schema.BACKWARD_SCHEMA)
    for name, text, fake in zip(names, schemas, (schema.fake_forward, schema.fake_backward)):
        # The schema parser requires one line.
        schema.library.define(name + " ".join(text.split()), tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=schema.library)
    autograd.register(backend)
    if forward is not None and backward is not None:
        python_kernels[backend] = Kernels(forward, backward)
        for name, kernel in zip(names, (partial(_forward, forward), partial(_backward, backward))):
            schema.library.impl(name, kernel, "CompositeExplicitAutograd")


def define_first_calls(backend: str, kernel: Callable) -> None:
    """Defines the operators that a compiled library calls for kernel variants that have not passed their self-check.

    See csrc/common/first_calls.h.

    Args:
        backend: the backend's name.
        kernel: runs a forward or backward, with the arguments of `self_check.Kernel.first_call`. It calls its third
            argument, `mark_checked`, if later calls of the variant need no check.
    """
    sides = (("", schema.FORWARD_SCHEMA, _forward), ("_backward", schema.BACKWARD_SCHEMA, _backward))
    for suffix, text, run in sides:
        name, results = f"{backend}_attention{suffix}_first_call", text.partition("->")[2].count("Tensor")
        schema.library.define(f"{name}{' '.join(text.split())[:-1]}, Tensor passed)")
        schema.library.impl(name, partial(_first_call, run, kernel, results), "CompositeExplicitAutograd")


def _first_call(run: Callable, kernel: Callable, results: int, *arguments):
    """Runs a forward or backward for C++; returns its results, and a text as a uint8 tensor.

    The text is "passed" if later calls of the variant need no check, "" if they do, or an error message. An exception
    must not propagate through C++, so its message is returned with as many empty tensors as there are results. In a
    public call, `schema.validated` stores the exception and raises it again after the call.
    """
    passed: list[str] = []
    try:
        found = run(lambda problem, others: kernel(problem, others, lambda: passed.append("passed")), *arguments)
        return *found, _bytes("".join(passed))
    except BaseException as error:
        if schema.validated.active:
            schema.validated.error = error
        return *[arguments[0].new_empty((0,)) for _ in range(results)], _bytes(str(error) or type(error).__name__)


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")


def _forward(kernel: PythonForward, *arguments):
    problem, residuals = schema.of_forward(arguments)
    if not schema.validated.active:
        check_problem(problem)
    out, *results = kernel(problem, residuals)
    return out, *schema.without_none(results, problem.query)


def _backward(kernel: PythonBackward, *arguments):
    problem, saved = schema.of_backward(arguments)
    if not schema.validated.active:
        check_problem(problem)
        check_saved(problem, saved, schema.row_dtype(problem.query))
    grads = kernel(problem, saved)
    return tuple(saved.grad_out.new_empty((0,)) if grad is None else grad for grad in grads)
