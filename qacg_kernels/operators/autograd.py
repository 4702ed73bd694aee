"""Registration of a backend's operators, their derivatives, and calls with the least launch overhead."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from qacg_kernels.call.problem import (
    DIFFERENTIABLE,
    ForwardOutputs,
    Gradients,
    Options,
    Problem,
    Residuals,
    Saved,
    Tensors,
)
from qacg_kernels.call.validation import check_problem, check_saved
from qacg_kernels.operators.schema import (
    BACKWARD_SCHEMA,
    FORWARD_SCHEMA,
    NAMESPACE,
    PLAIN_PYTORCH,
    Kernels,
    backward_op,
    call_backward,
    call_forward,
    eager_op,
    fake_backward,
    fake_forward,
    forward_op,
    library,
    of_backward,
    of_forward,
    python_kernels,
    refuse_forward_mode,
    split,
    validated,
    without_none,
)
from qacg_kernels.utils import torch_internals

_NOT_DIFFERENTIABLE = tuple(name for name in Tensors._fields if name not in DIFFERENTIABLE)
NO_GRADIENTS = (None,) * len(_NOT_DIFFERENTIABLE)
SAVE_NOTHING = Residuals(save_softmax_out=False, save_quasi_out=False)


Attended = tuple[Tensor, Tensor | None, Tensor | None]  # output and gates, None or empty in a call with lambda


def run_forward(backend: str, problem: Problem, residuals: Residuals, differentiable: bool) -> Attended:
    """Runs a forward in the form that eager autograd, torch.compile, torch.jit.trace or torch.func can differentiate.

    `differentiable` states whether a backward may follow.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return _attended(call_forward(forward_op(backend), problem, residuals))
    if torch_internals.functorch_active():
        with validated:
            outputs = TransformableForward.apply(backend, problem.options, residuals, *problem.tensors)
        return _attended(ForwardOutputs(*outputs))
    if differentiable:
        present = [t for t in problem.tensors if t is not None]
        return _apply(backend, problem, residuals, *present)
    return _attended(_forward_below_autograd(backend, problem, residuals))


def _attended(outputs: ForwardOutputs) -> Attended:
    return outputs.out, outputs.query_gate, outputs.key_gate


def _forward_below_autograd(backend: str, problem: Problem, residuals: Residuals) -> ForwardOutputs:
    """Runs a forward with the least launch overhead; autograd does not record the call."""
    with validated, torch_internals.below_autograd():
        return call_forward(eager_op(forward_op, backend), problem, residuals)


def _backward_below_autograd(backend: str, problem: Problem, saved: Saved) -> Gradients:
    """Runs a backward with the least launch overhead; autograd does not record the call."""
    with validated, torch_internals.below_autograd():
        return call_backward(eager_op(backward_op, backend), problem, saved)


def _save(ctx, problem: Problem, o: ForwardOutputs) -> None:
    """Saves in `ctx` what `_differentiate` reads: inputs, results and options of a call."""
    # Autograd saves no tensor of inference mode, such as a mask or a length that a program keeps from evaluation.
    tensors = problem.tensors
    others = {name: getattr(tensors, name) for name in _NOT_DIFFERENTIABLE}
    if of_inference := {name: t.clone() for name, t in others.items() if t is not None and t.is_inference()}:
        tensors = tensors._replace(**of_inference)
    ctx.save_for_backward(*tensors, *o[1:])
    ctx.options = problem.options
    ctx.set_materialize_grads(False)


def _setup_context(ctx, problem, output):
    o = ForwardOutputs(*output)
    _save(ctx, problem, o)
    ctx.mark_non_differentiable(o.softmax_out, o.quasi_out, o.row_max, o.row_sum)


def _setup_operator_context(ctx, inputs, output):
    _setup_context(ctx, of_forward(inputs)[0], output)


def _differentiate(backend, ctx, grad_out, _softmax_out, _quasi_out, _max, _sum, grad_query_gate, grad_key_gate):
    """Returns the gradients of the inputs named in DIFFERENTIABLE; None for absent inputs."""
    inputs, results = split(ctx.saved_tensors, Tensors)
    problem = Problem(inputs, ctx.options)
    if grad_out is None:  # a loss on lambda alone
        grad_out = torch.zeros_like(problem.query)
    return call_gradients(backend, problem, Saved(grad_out, grad_query_gate, grad_key_gate, *results))


def call_gradients(backend: str, problem: Problem, saved: Saved) -> list[Tensor | None]:
    """Returns the gradients of the inputs named in DIFFERENTIABLE, in a backward; None for absent inputs."""
    # The forward has validated the inputs, and autograd the gradients.
    if torch_internals.functorch_active():
        with validated:
            grads = TransformableBackward.apply(backend, problem.options, *saved, *problem.tensors)
    elif torch.compiler.is_compiling():
        grads = call_backward(backward_op(backend), problem, saved)
    elif torch.is_grad_enabled():
        with validated:  # through the operator, so that with create_graph a second derivative raises its error
            grads = call_backward(backward_op(backend), problem, saved)
    else:
        grads = _backward_below_autograd(backend, problem, saved)
    return [g if t is not None else None for g, t in zip(grads, problem.tensors)]


def _differentiate_operator(backend, ctx, *grads):
    """Returns the gradients of all arguments of an operator: those of `_differentiate`, then None for the others."""
    return *_differentiate(backend, ctx, *grads), *NO_GRADIENTS, *[None] * len(Options._fields + Residuals._fields)


class EagerForward(torch.autograd.Function):
    """The forward operator with its autograd formula, for eager calls; returns `Attended`.

    A formula that is registered with the operator takes several times as long as a short call, because torch reads the
    whole schema each time. `apply` takes the tensors of the problem that are not None, as each argument takes time.
    """

    @staticmethod
    def forward(ctx, backend, problem, residuals, *tensors):
        o = _forward_below_autograd(backend, problem, residuals)
        # Without absent results, which have the shape (0,). So all forms of a forward save the same tensors, since of
        # the two forwards of activation checkpointing one may be prepared (backends/triton/prepared.py).
        o = ForwardOutputs(*[t if t.dim() > 1 else None for t in o])
        ctx.backend = backend
        _save(ctx, problem, o)
        return (o.out, o.query_gate, o.key_gate) if problem.tensors.gate_lambda is None else (o.out, None, None)

    @staticmethod
    def backward(ctx, grad_out, grad_query_gate, grad_key_gate):
        grads = _differentiate(ctx.backend, ctx, grad_out, *[None] * 4, grad_query_gate, grad_key_gate)
        # Gradients of the differentiable tensors, which come first; autograd ignores surplus Nones at the end.
        return None, None, None, *[g for g in grads if g is not None], *NO_GRADIENTS

    @staticmethod
    def jvp(ctx, *tangents):
        refuse_forward_mode()


_apply = torch_internals.direct_apply(EagerForward)


class TransformableForward(torch.autograd.Function):
    """The forward operator in the form that torch.func requires, which inspects its signature in each call.

    vmap runs the operator once per sample.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(backend, options, residuals, *tensors):
        return tuple(call_forward(forward_op(backend), Problem(Tensors(*tensors), options), residuals))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.backend, options, _, *tensors = inputs
        _setup_context(ctx, Problem(Tensors(*tensors), options), output)

    @staticmethod
    def backward(ctx, *grads):
        grads = _differentiate(ctx.backend, ctx, *grads)
        return None, None, None, *grads, *NO_GRADIENTS

    jvp = EagerForward.jvp


class TransformableBackward(torch.autograd.Function):
    """The backward operator in the form that torch.func requires. It supports vmap but not differentiation."""

    generate_vmap_rule = True

    @staticmethod
    def forward(backend, options, *tensors):
        saved, inputs = split(tensors, Saved)
        return tuple(call_backward(backward_op(backend), Problem(Tensors(*inputs), options), saved))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        _refuse_second_derivative(ctx, *grads)

    @staticmethod
    def jvp(ctx, *tangents):
        _refuse_second_derivative(ctx, *tangents)


def _refuse_second_derivative(ctx, *grads):
    raise NotImplementedError(
        "quasi_attention: expected a first derivative, got a second one. For second derivatives compute the maps with "
        + PLAIN_PYTORCH
    )


def _register_derivatives(backend: str) -> None:
    """Registers the derivatives of a backend's operators, for traced graphs and direct calls of the operators."""
    forward, backward = (f"{NAMESPACE}::{backend}_attention{suffix}" for suffix in ("", "_backward"))
    formula = partial(_differentiate_operator, backend)
    torch.library.register_autograd(forward, formula, setup_context=_setup_operator_context, lib=library)
    torch.library.register_autograd(backward, _refuse_second_derivative, lib=library)


PythonForward = Callable[[Problem, Residuals], ForwardOutputs]
PythonBackward = Callable[[Problem, Saved], Gradients]


def define_operators(
    backend: str, forward: PythonForward | None = None, backward: PythonBackward | None = None
) -> None:
    """Defines a backend's two operators with their fake implementations and derivatives.

    `forward` and `backward` are the kernels if they are Python functions, and None if a compiled library registers its
    own.
    """
    names = (f"{backend}_attention", f"{backend}_attention_backward")
    schemas = (FORWARD_SCHEMA, BACKWARD_SCHEMA)
    for name, text, fake in zip(names, schemas, (fake_forward, fake_backward)):
        # The schema parser requires one line.
        library.define(name + " ".join(text.split()), tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
    _register_derivatives(backend)
    if forward is not None and backward is not None:
        python_kernels[backend] = Kernels(forward, backward)
        for name, kernel in zip(names, (partial(_run_forward, forward), partial(_run_backward, backward))):
            library.impl(name, kernel, "CompositeExplicitAutograd")


def define_first_calls(backend: str, kernel: Callable) -> None:
    """Defines the operators that a compiled library calls for kernel variants that have not passed their self-check.

    See csrc/common/first_calls.h. `kernel` is `self_check.Kernel.first_call`.
    """
    sides = (("", FORWARD_SCHEMA, _run_forward), ("_backward", BACKWARD_SCHEMA, _run_backward))
    for suffix, text, run in sides:
        name, results = f"{backend}_attention{suffix}_first_call", text.partition("->")[2].count("Tensor")
        library.define(f"{name}{' '.join(text.split())[:-1]}, Tensor passed)")
        library.impl(name, partial(_first_call, run, kernel, results), "CompositeExplicitAutograd")


def _first_call(run: Callable, kernel: Callable, results: int, *arguments):
    """Runs a forward or backward for C++; returns its results, and a text as a uint8 tensor.

    The text is "passed" if later calls of the variant need no check, "" if they do, or an error message with empty
    results, because an exception must not propagate through C++. A public call raises the exception itself again.
    """
    passed: list[str] = []
    try:
        found = run(lambda problem, others: kernel(problem, others, lambda: passed.append("passed")), *arguments)
        return *found, _bytes("".join(passed))
    except BaseException as error:
        if validated.active:
            validated.error = error
        return *[arguments[0].new_empty((0,)) for _ in range(results)], _bytes(str(error) or type(error).__name__)


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")


def _run_forward(kernel: PythonForward, *arguments):
    problem, residuals = of_forward(arguments)
    if not validated.active:
        check_problem(problem)
    out, *results = kernel(problem, residuals)
    return out, *without_none(results, problem.query)


def _run_backward(kernel: PythonBackward, *arguments):
    problem, saved = of_backward(arguments)
    if not validated.active:
        check_problem(problem)
        check_saved(problem, saved)
    grads = kernel(problem, saved)
    return tuple(saved.grad_out.new_empty((0,)) if grad is None else grad for grad in grads)
