"""How torch differentiates the operators of `ops.py`, and the shortest way of a call to its kernels."""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from qacg_kernels.operators.schema import (
    BACKENDS,
    DIFFERENTIABLE,
    GATE_VECTORS,
    INPUTS,
    NAMESPACE,
    PLAIN_PYTORCH,
    ForwardOutputs,
    backward_op,
    checked,
    forward_op,
    in_python,
    library,
    none_absent,
    refuse_forward_mode,
)

SAVE_NOTHING = {"save_softmax_out": False, "save_quasi_out": False}
_OUTPUT_GRADIENTS = 3  # that the backward operator takes, before the inputs

_PLAIN_TYPES = frozenset((Tensor, torch.nn.Parameter, type(None)))


def _unseen(tensors: tuple[Tensor, ...]) -> bool:
    """Whether nobody would see an operator's call: no mode, profiler, tracer, tensor of another type or on "meta".

    A level of tangents has to see it, to refuse them.
    """
    return (
        forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.autograd._profiler_enabled()
        and torch._C._get_tracing_state() is None
        and _PLAIN_TYPES.issuperset(map(type, tensors))
        and not tensors[0].is_meta
    )


def _forward_past_autograd(backend: str, tensors, options: dict[str, object]) -> tuple[Tensor | None, ...]:
    """The results of a forward that nothing will differentiate, by as little on the host as a call of short rows wants.

    The operators' autograd formulas are Python, which torch runs even where it then only hands the call on. Where there
    may be tangents it has to: that is what refuses them. And a kernel in Python is called as it is where nobody would
    see the operator: torch would take 26 arguments apart and put them together again, which is half of such a call.
    """
    if backend in in_python and _unseen(tensors):
        return in_python[backend].forward(*tensors, **options)
    with checked, _past_formulas():
        return forward_op(backend)(*tensors, **options)


def _backward_past_autograd(backend: str, tensors, options: dict[str, object]) -> tuple[Tensor | None, ...]:
    """As `_forward_past_autograd`, of the backward."""
    if (
        backend in in_python
        and _unseen(tensors)
        and not _mapped(tensors[:_OUTPUT_GRADIENTS], tensors[_OUTPUT_GRADIENTS])
    ):
        return in_python[backend].backward(*tensors, **options)
    with checked, _past_formulas():
        return _backward_by_operator(backend, tensors, options)


def _past_formulas() -> contextlib.AbstractContextManager:
    return contextlib.nullcontext() if forward_ad._current_level >= 0 else torch._C._AutoDispatchBelowAutograd()


def _mapped(gradients: tuple[Tensor | None, ...], query: Tensor) -> bool:
    """Whether these may be many gradients at once (`is_grads_batched`), which torch tells by nothing but their keys."""
    keys = torch._C._dispatch_keys(query).raw_repr()
    return any(t is not None and torch._C._dispatch_keys(t).raw_repr() != keys for t in gradients)


def _backward_by_operator(backend: str, tensors, options: dict[str, object]) -> tuple[Tensor, ...]:
    """Of tensors that a kernel in Python may have left out."""
    first_saved = _OUTPUT_GRADIENTS + INPUTS
    saved = none_absent(tensors[first_saved:], query=tensors[_OUTPUT_GRADIENTS])
    return backward_op(backend)(*tensors[:first_saved], *saved, **options)


class Attended(NamedTuple):
    """The outputs of a forward that users may ask for; the gates are None, or empty, where lambda was given."""

    out: Tensor
    query_gate: Tensor | None
    key_gate: Tensor | None


def _save(ctx, inputs, options: dict[str, object], o: ForwardOutputs) -> None:
    """Keeps what `_differentiate` needs of a call."""
    ctx.save_for_backward(*inputs, o.softmax_out, o.quasi_out, o.row_max, o.row_sum, o.query_gate, o.key_gate)
    ctx.options = {k: v for k, v in options.items() if not k.startswith("save_")}
    ctx.set_materialize_grads(False)


def _setup_context(ctx, inputs, keyword_only_inputs, output):
    o = ForwardOutputs(*output)
    _save(ctx, inputs, keyword_only_inputs, o)
    ctx.mark_non_differentiable(o.softmax_out, o.quasi_out, o.row_max, o.row_sum)


def _differentiate(backend, ctx, grad_out, _softmax_out, _quasi_out, _max, _sum, grad_query_gate, grad_key_gate):
    saved = ctx.saved_tensors
    if grad_out is None:  # a loss on lambda alone
        grad_out = torch.zeros_like(saved[0])
    arguments = (grad_out, grad_query_gate, grad_key_gate, *saved)
    # They are checked: by the forward, and what autograd hands on by autograd.
    if torch._C._are_functorch_transforms_active():
        with checked:
            grads = TransformableBackward.apply(backend, ctx.options, *arguments)
    elif torch.is_grad_enabled() or torch.compiler.is_compiling():
        with checked:  # With create_graph a second derivative has to find its refusal.
            grads = _backward_by_operator(backend, arguments, ctx.options)
    else:
        grads = _backward_past_autograd(backend, arguments, ctx.options)
    present = [g if t is not None else None for g, t in zip(grads, saved[:DIFFERENTIABLE])]
    return *present, *[None] * (INPUTS - DIFFERENTIABLE)


class EagerForward(torch.autograd.Function):
    """The forward operator with its autograd formula, for calls outside a graph that is being made.

    The formula registered with an operator costs torch a look through its whole schema at every call, several times
    what a short row takes. `apply` takes the name of the backend, the options and the tensors, and gives `Attended`:
    what the backward alone needs is no output, each of which takes time.
    """

    @staticmethod
    def forward(ctx, backend, options, *tensors):
        o = ForwardOutputs(*_forward_past_autograd(backend, tensors, options))
        if backend in in_python:
            # Of these what is absent is None by either way: a checkpoint's second forward has to save as many tensors.
            gates = tensors[GATE_VECTORS] is not None
            there = (True, options["save_softmax_out"], options["save_quasi_out"], True, True, gates, gates)
            o = ForwardOutputs(*(t if present else None for t, present in zip(o, there)))
        ctx.backend = backend
        _save(ctx, tensors, options, o)
        return o.out, o.query_gate, o.key_gate

    @staticmethod
    def backward(ctx, grad_out, grad_query_gate, grad_key_gate):
        grads = _differentiate(ctx.backend, ctx, grad_out, *[None] * 4, grad_query_gate, grad_key_gate)
        return None, None, *grads

    @staticmethod
    def jvp(ctx, *tangents):
        refuse_forward_mode()


class TransformableForward(torch.autograd.Function):
    """EagerForward for calls under torch.func (grad, vjp, jacrev, vmap), in the form that those want.

    That form costs every call an inspection of `forward`'s signature. vmap runs the operators sample by sample.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(backend, options, *tensors):
        return forward_op(backend)(*tensors, **options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.backend, options, *tensors = inputs
        _setup_context(ctx, tensors, options, output)

    @staticmethod
    def backward(ctx, *grads):
        return None, None, *_differentiate(ctx.backend, ctx, *grads)

    jvp = EagerForward.jvp


class TransformableBackward(torch.autograd.Function):
    """The backward operator under torch.func: it can be mapped, not differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(backend, options, *tensors):
        return _backward_by_operator(backend, tensors, options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        _refuse_second_derivative(ctx, *grads)

    @staticmethod
    def jvp(ctx, *tangents):
        _refuse_second_derivative(ctx, *tangents)


def run_forward(backend: str, options: dict[str, object], tensors, differentiable: bool) -> Attended:
    """A forward, by whatever lets torch differentiate it as the surroundings ask for.

    Args:
        tensors: those of a `Problem`, which has checked them.

    Raises:
        NotImplementedError: a tensor has a tangent (forward-mode differentiation).
    """
    if torch.compiler.is_compiling():
        return _attended(forward_op(backend)(*tensors, **options))
    if torch._C._are_functorch_transforms_active():
        with checked:
            return _attended(TransformableForward.apply(backend, options, *tensors))
    if differentiable:
        return Attended(*EagerForward.apply(backend, options, *tensors))
    return _attended(_forward_past_autograd(backend, tensors, options))


def _attended(outputs: Sequence[Tensor | None]) -> Attended:
    return Attended(outputs[0], *outputs[-2:])


def _refuse_second_derivative(ctx, *grads):
    raise NotImplementedError(
        "quasi_attention can be differentiated once; for second derivatives compute the maps with " + PLAIN_PYTORCH
    )


def _register() -> None:
    for backend in BACKENDS:
        forward, backward = (f"{NAMESPACE}::{backend}_attention{suffix}" for suffix in ("", "_backward"))
        formula = partial(_differentiate, backend)
        torch.library.register_autograd(forward, formula, setup_context=_setup_context, lib=library)
        torch.library.register_autograd(backward, _refuse_second_derivative, lib=library)


_register()
