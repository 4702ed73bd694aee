"""The torch.library operators: one schema, one fake and one autograd formula for every backend.

`qacg::<backend>_attention` and `qacg::<backend>_attention_backward` exist for each name in BACKENDS; NAMESPACE says
when it is not `qacg`. A backend supplies only the two kernels. Absent tensors (a gate that was not given, a branch that
was not saved) come back with zero elements, because an operator cannot return None.
"""

import threading
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from qacg_kernels.raw_checks import check_gradients, check_inputs

# In order of preference; the reference takes everything and comes last.
BACKENDS = ("hopper", "gluon", "cuda", "triton", "cpu", "reference")

# On the Kernel Hub the package is imported by a name of each build's own, and several may be in one process. The hub
# wants the operators in a namespace of that name (distributions/hub_kernel.py).
_PACKAGE = __name__.partition(".")[0]
NAMESPACE = "qacg" if _PACKAGE == "qacg_kernels" else _PACKAGE

_INPUTS = """Tensor query, Tensor key, Tensor value, Tensor context_query, Tensor context_key,
    Tensor? gate_lambda, Tensor? gate_query, Tensor? gate_context_query, Tensor? gate_key,
    Tensor? gate_context_key, Tensor? gate_query_bias, Tensor? gate_key_bias,
    Tensor? attn_mask, Tensor? key_lengths, Tensor? cu_seqlens, Tensor? dropout_seed"""
_OPTIONS = """*, SymInt max_seqlen, bool is_causal, float dropout_p, float scale, float quasi_scale,
    float beta, float gamma, bool column_gate"""

# softmax_out is O1 = (Z o P) V and quasi_out is O2 = (Z o G) V of MATH.md. With O1 saved the backward
# needs no pass over a row to find delta; O2 gives the gate's gradient without a sum over the row.
# row_max and row_sum are what the softmax of each row was shifted and divided by, in units that only the
# backend's own backward reads; their joint logarithm would lose the digits that large scores leave.
FORWARD_SCHEMA = f"""({_INPUTS}, {_OPTIONS}, bool save_softmax_out=True, bool save_quasi_out=False)
    -> (Tensor out, Tensor softmax_out, Tensor quasi_out, Tensor row_max, Tensor row_sum, Tensor query_gate,
        Tensor key_gate)"""
BACKWARD_SCHEMA = f"""(Tensor grad_out, Tensor? grad_query_gate, Tensor? grad_key_gate, {_INPUTS},
    Tensor softmax_out, Tensor quasi_out, Tensor row_max, Tensor row_sum, Tensor query_gate, Tensor key_gate,
    {_OPTIONS})
    -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_context_query,
        Tensor grad_context_key, Tensor grad_lambda, Tensor grad_gate_query, Tensor grad_gate_context_query,
        Tensor grad_gate_key, Tensor grad_gate_context_key, Tensor grad_gate_query_bias,
        Tensor grad_gate_key_bias)"""


class ForwardOutputs(NamedTuple):
    """What the forward operator gives, in the schema's order; shapes are those of `_fake_forward`."""

    out: Tensor
    softmax_out: Tensor
    quasi_out: Tensor
    row_max: Tensor
    row_sum: Tensor
    query_gate: Tensor
    key_gate: Tensor


SAVE_NOTHING = {"save_softmax_out": False, "save_quasi_out": False}
_INPUT_COUNT = 16
_DIFFERENTIABLE = 12  # the first inputs; masks, lengths and the seed have no gradient


class _Library(torch.library.Library):
    """Whose autograd formulas refuse tangents: torch's own drop them, and the derivative would be 0 without a word."""

    def impl(self, op_name, fn, dispatch_key="", **options):
        if dispatch_key == "Autograd":
            formula = fn

            def fn(keyset, *args, **kwargs):
                if forward_ad._current_level >= 0 and any(map(_has_tangent, args)):
                    _refuse_forward_mode()
                return formula(keyset, *args, **kwargs)

        super().impl(op_name, fn, dispatch_key, **options)


def _new_library() -> _Library:
    try:
        return _Library(NAMESPACE, "DEF")
    except RuntimeError as error:
        raise ImportError(
            f"the operators torch.ops.{NAMESPACE} are already there: this process has imported another copy of the "
            f"package {_PACKAGE}, and one may be there by that name"
        ) from error


_library = _new_library()


def _has_tangent(t: object) -> bool:
    return isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None


class _Checked(threading.local):
    """Whether this thread is in a call whose tensors are known to fit together; a second look would slow short rows."""

    known = False

    def __enter__(self) -> None:
        self.known = True

    def __exit__(self, *_: object) -> None:
        self.known = False


_checked = _Checked()


def forward_op(backend: str):
    """The forward operator of a backend name."""
    return getattr(getattr(torch.ops, NAMESPACE), f"{backend}_attention")


def backward_op(backend: str):
    """The backward operator of a backend name."""
    return getattr(getattr(torch.ops, NAMESPACE), f"{backend}_attention_backward")


def _past_autograd(op, tensors, options: dict[str, object]):
    """The results of an operator that nothing will differentiate, in half the time that a call of few tokens takes.

    The operators' autograd formulas are Python, which torch runs even where it then only hands the call on. Where there
    may be tangents it has to: that is what refuses them.
    """
    if forward_ad._current_level >= 0:
        return op(*tensors, **options)
    with torch._C._AutoDispatchBelowAutograd():
        return op(*tensors, **options)


def register_kernels(backend: str, forward, backward) -> None:
    """Registers Python kernels of a backend, for every device. They get calls whose tensors fit together."""

    def checked_forward(*inputs, **options):
        if not _checked.known:
            check_inputs(inputs, **options)
        return forward(*inputs, **options)

    def checked_backward(grad_out, grad_query_gate, grad_key_gate, *tensors, **options):
        if not _checked.known:
            inputs, saved = tensors[:_INPUT_COUNT], tensors[_INPUT_COUNT:]
            check_inputs(inputs, **options)
            of_gates, of_rows = (grad_query_gate, grad_key_gate), row_dtype(inputs[0])
            check_gradients(inputs, grad_out, of_gates, saved, row_dtype=of_rows, column_gate=options["column_gate"])
        return backward(grad_out, grad_query_gate, grad_key_gate, *tensors, **options)

    _library.impl(f"{backend}_attention", checked_forward, "CompositeExplicitAutograd")
    _library.impl(f"{backend}_attention_backward", checked_backward, "CompositeExplicitAutograd")


def empty_dense_like(t: Tensor) -> Tensor:
    """Uninitialised tensor of t's shape, dense, with heads before or after rows in memory as t has them.

    A (B, H, L, D) view of a (B, L, H*D) projection so gives an output whose heads merge without a copy.
    """
    if t.dim() == 4 and t.stride(1) < t.stride(2):
        batch, heads, rows, head_dim = t.shape
        return t.new_empty((batch, rows, heads, head_dim)).transpose(1, 2)
    return t.new_empty(t.shape)


def may_exceed(length: int | torch.SymInt, limit: int) -> bool:
    """Whether a length is beyond a limit; of an exported program's dynamic length, whether it may ever be.

    There a comparison would bind the program to the one side of the limit that the example was on.
    """
    if torch.compiler.is_exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true  # it loads sympy

        return not statically_known_true(length <= limit)
    return length > limit


def row_dtype(query: Tensor) -> torch.dtype:
    """Type of everything kept per row (the softmax's maximum and sum, gates): float32, float64 for float64 inputs."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _fake_forward(
    query,
    key,
    value,
    context_query,
    context_key,
    gate_lambda,
    gate_query,
    gate_context_query,
    gate_key,
    gate_context_key,
    gate_query_bias,
    gate_key_bias,
    attn_mask,
    key_lengths,
    cu_seqlens,
    dropout_seed,
    *,
    max_seqlen,
    is_causal,
    dropout_p,
    scale,
    quasi_scale,
    beta,
    gamma,
    column_gate,
    save_softmax_out=True,
    save_quasi_out=False,
):
    nothing = query.new_empty((0,))
    rows = dict(dtype=row_dtype(query))
    key_rows = key.shape[:-1] if column_gate else query.shape[:-1]
    no_rows = query.new_empty((0,), **rows)
    return (
        empty_dense_like(query),
        empty_dense_like(query) if save_softmax_out else nothing,
        empty_dense_like(query) if save_quasi_out else query.new_empty((0,)),
        query.new_empty(query.shape[:-1], **rows),
        query.new_empty(query.shape[:-1], **rows),
        no_rows if gate_query is None else query.new_empty(query.shape[:-1], **rows),
        query.new_empty((0,), **rows) if gate_query is None else query.new_empty(key_rows, **rows),
    )


def _fake_backward(grad_out, grad_query_gate, grad_key_gate, *args, **options):
    tensors = args[:_DIFFERENTIABLE]
    wide = [empty_dense_like(t) for t in tensors[:5]]
    return *wide, *(grad_out.new_empty((0,)) if t is None else t.new_empty(t.shape) for t in tensors[5:])


def _setup_context(ctx, inputs, keyword_only_inputs, output):
    o = ForwardOutputs(*output)
    # grad_out may be absent (a loss on lambda alone); its stand-in needs only out's geometry.
    residuals = (o.softmax_out, o.quasi_out, o.row_max, o.row_sum)
    ctx.save_for_backward(*inputs, *residuals, o.query_gate, o.key_gate, o.out)
    ctx.options = {k: v for k, v in keyword_only_inputs.items() if not k.startswith("save_")}
    ctx.mark_non_differentiable(*residuals)
    ctx.set_materialize_grads(False)


def _differentiate(backend, ctx, grad_out, _softmax_out, _quasi_out, _max, _sum, grad_query_gate, grad_key_gate):
    *saved, out = ctx.saved_tensors
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    arguments = (grad_out, grad_query_gate, grad_key_gate, *saved)
    with _checked:  # by the forward, and what autograd hands on by autograd
        if torch._C._are_functorch_transforms_active():
            grads = TransformableBackward.apply(backend, ctx.options, *arguments)
        elif torch.is_grad_enabled() or torch.compiler.is_compiling():
            # With create_graph a second derivative has to find its refusal.
            grads = backward_op(backend)(*arguments, **ctx.options)
        else:
            grads = _past_autograd(backward_op(backend), arguments, ctx.options)
    present = [g if t is not None else None for g, t in zip(grads, saved[:_DIFFERENTIABLE])]
    return *present, *[None] * (_INPUT_COUNT - _DIFFERENTIABLE)


class EagerForward(torch.autograd.Function):
    """The forward operator with its autograd formula, for calls outside a graph that is being made.

    The formula registered with an operator costs torch a look through its whole schema at every call, several times
    what a short row takes. `apply` takes the name of the backend, the options and the tensors.
    """

    @staticmethod
    def forward(ctx, backend, options, *tensors):
        outputs = _past_autograd(forward_op(backend), tensors, options)
        ctx.backend = backend
        _setup_context(ctx, tensors, options, outputs)
        return outputs

    @staticmethod
    def backward(ctx, *grads):
        return None, None, *_differentiate(ctx.backend, ctx, *grads)

    @staticmethod
    def jvp(ctx, *tangents):
        _refuse_forward_mode()


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

    backward = EagerForward.backward
    jvp = EagerForward.jvp


class TransformableBackward(torch.autograd.Function):
    """The backward operator under torch.func: it can be mapped, not differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(backend, options, *tensors):
        return backward_op(backend)(*tensors, **options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        _refuse_second_derivative(ctx, *grads)

    @staticmethod
    def jvp(ctx, *tangents):
        _refuse_second_derivative(ctx, *tangents)


def run_forward(backend: str, options: dict[str, object], tensors, differentiable: bool) -> ForwardOutputs:
    """The outputs of the forward operator, by whatever lets torch differentiate them as the surroundings ask for.

    Args:
        tensors: those of a `Problem`, which has checked them.

    Raises:
        NotImplementedError: a tensor has a tangent (forward-mode differentiation).
    """
    if torch.compiler.is_compiling():
        return ForwardOutputs(*forward_op(backend)(*tensors, **options))
    with _checked:
        if torch._C._are_functorch_transforms_active():
            return ForwardOutputs(*TransformableForward.apply(backend, options, *tensors))
        if differentiable:
            return ForwardOutputs(*EagerForward.apply(backend, options, *tensors))
        return ForwardOutputs(*_past_autograd(forward_op(backend), tensors, options))


_PLAIN_PYTORCH = "qacg_kernels.attention_maps, which is plain PyTorch"


def _refuse_second_derivative(ctx, *grads):
    raise NotImplementedError(
        "quasi_attention can be differentiated once; for second derivatives compute the maps with " + _PLAIN_PYTORCH
    )


def _refuse_forward_mode():
    raise NotImplementedError(
        "quasi_attention is differentiated in reverse mode only (backward, torch.func.grad, vjp, jacrev); for "
        "torch.func.jvp, jacfwd and dual tensors compute the maps with " + _PLAIN_PYTORCH
    )


def _define() -> None:
    for backend in BACKENDS:
        forward, backward = f"{backend}_attention", f"{backend}_attention_backward"
        for name, schema in ((forward, FORWARD_SCHEMA), (backward, BACKWARD_SCHEMA)):
            # The schema parser wants one line.
            _library.define(name + " ".join(schema.split()), tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.register_fake(f"{NAMESPACE}::{forward}", _fake_forward, lib=_library)
        torch.library.register_fake(f"{NAMESPACE}::{backward}", _fake_backward, lib=_library)
        torch.library.register_autograd(
            f"{NAMESPACE}::{forward}", partial(_differentiate, backend), setup_context=_setup_context, lib=_library
        )
        torch.library.register_autograd(f"{NAMESPACE}::{backward}", _refuse_second_derivative, lib=_library)


_define()
