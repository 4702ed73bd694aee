"""The torch.library operators: one schema and one fake for every backend; `autograd.py` has their derivatives.

`qacg::<backend>_attention` and `qacg::<backend>_attention_backward` exist for each name in BACKENDS; NAMESPACE says
when it is not `qacg`. A backend supplies only the two kernels. Absent tensors (a gate that was not given, a branch that
was not saved) come back from an operator with zero elements, because it cannot return None; kernels in Python give and
take None.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from qacg_kernels.operators.raw_checks import check_gradients, check_inputs

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
    """What a forward gives, in the schema's order; shapes are those of `_fake_forward`, or None for what is absent."""

    out: Tensor
    softmax_out: Tensor | None
    quasi_out: Tensor | None
    row_max: Tensor
    row_sum: Tensor
    query_gate: Tensor | None
    key_gate: Tensor | None


INPUTS = 16
GATE_VECTORS = 6  # the place of the first of them among the inputs; without them all there is gate_lambda
DIFFERENTIABLE = 12  # the first inputs; masks, lengths and the seed have no gradient


class _Library(torch.library.Library):
    """Whose autograd formulas refuse tangents: torch's own drop them, and the derivative would be 0 without a word."""

    def impl(self, op_name, fn, dispatch_key="", **options):
        if dispatch_key == "Autograd":
            formula = fn

            def fn(keyset, *args, **kwargs):
                if forward_ad._current_level >= 0 and any(map(_has_tangent, args)):
                    refuse_forward_mode()
                return formula(keyset, *args, **kwargs)

        super().impl(op_name, fn, dispatch_key, **options)


PLAIN_PYTORCH = "qacg_kernels.attention_maps, which is plain PyTorch"


def refuse_forward_mode():
    """What tangents meet, in whatever way they come."""
    raise NotImplementedError(
        "quasi_attention is differentiated in reverse mode only (backward, torch.func.grad, vjp, jacrev); for "
        "torch.func.jvp, jacfwd and dual tensors compute the maps with " + PLAIN_PYTORCH
    )


def _new_library() -> _Library:
    try:
        return _Library(NAMESPACE, "DEF")
    except RuntimeError as error:
        raise ImportError(
            f"the operators torch.ops.{NAMESPACE} are already there: this process has imported another copy of the "
            f"package {_PACKAGE}, and one may be there by that name"
        ) from error


library = _new_library()


def _has_tangent(t: object) -> bool:
    return isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None


class _Checked(threading.local):
    """Whether this thread is in a call whose tensors are known to fit together; a second look would slow short rows."""

    known = False

    def __enter__(self) -> None:
        self.known = True

    def __exit__(self, *_: object) -> None:
        self.known = False


checked = _Checked()


def forward_op(backend: str):
    """The forward operator of a backend name."""
    return getattr(getattr(torch.ops, NAMESPACE), f"{backend}_attention")


def backward_op(backend: str):
    """The backward operator of a backend name."""
    return getattr(getattr(torch.ops, NAMESPACE), f"{backend}_attention_backward")


class Kernels(NamedTuple):
    """A backend's kernels that are Python."""

    forward: Callable[..., tuple[Tensor | None, ...]]
    backward: Callable[..., tuple[Tensor | None, ...]]


# By backend; those of the others are in compiled libraries.
in_python: dict[str, Kernels] = {}


def none_absent(saved: Sequence[Tensor | None], query: Tensor) -> Sequence[Tensor]:
    """The outputs of a forward beside `out`, with empty tensors for absent ones, as operators give and take them."""
    if all(t is not None for t in saved):
        return saved
    dtypes = [query.dtype] * 2 + [row_dtype(query)] * 4
    return tuple(query.new_empty((0,), dtype=dtype) if t is None else t for t, dtype in zip(saved, dtypes))


def register_kernels(
    backend: str, forward, backward, key: str = "CompositeExplicitAutograd", registry: torch.library.Library = library
) -> None:
    """Registers Python kernels of a backend, for every device. They get calls whose tensors fit together.

    Both may give None for what is absent; the backward may be handed it for what its forward left out. With the key
    "BackendSelect" they stand in front of compiled ones.
    """
    in_python[backend] = Kernels(forward, backward)

    def checked_forward(*inputs, **options):
        if not checked.known:
            check_inputs(inputs, **options)
        out, *saved = forward(*inputs, **options)
        return out, *none_absent(saved, query=inputs[0])

    def checked_backward(grad_out, grad_query_gate, grad_key_gate, *tensors, **options):
        if not checked.known:
            inputs, saved = tensors[:INPUTS], tensors[INPUTS:]
            check_inputs(inputs, **options)
            of_gates, of_rows = (grad_query_gate, grad_key_gate), row_dtype(inputs[0])
            check_gradients(inputs, grad_out, of_gates, saved, row_dtype=of_rows, column_gate=options["column_gate"])
        grads = backward(grad_out, grad_query_gate, grad_key_gate, *tensors, **options)
        return tuple(grad_out.new_empty((0,)) if grad is None else grad for grad in grads)

    registry.impl(f"{backend}_attention", checked_forward, key)
    registry.impl(f"{backend}_attention_backward", checked_backward, key)


def empty_dense_like(t: Tensor) -> Tensor:
    """Uninitialised tensor of t's shape, dense, with heads before or after rows in memory as t has them.

    A (B, H, L, D) view of a (B, L, H*D) projection so gives an output whose heads merge without a copy.
    """
    if t.dim() == 4 and t.stride(1) < t.stride(2):
        _, heads, rows, head_dim = t.shape
        # Not a view of another tensor: autograd would refuse to have the output changed in place.
        return t.new_empty_strided(t.shape, (rows * heads * head_dim, head_dim, heads * head_dim, 1))
    return torch.empty_like(t, memory_format=torch.contiguous_format)


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
    tensors = args[:DIFFERENTIABLE]
    wide = [empty_dense_like(t) for t in tensors[:5]]
    return *wide, *(grad_out.new_empty((0,)) if t is None else t.new_empty(t.shape) for t in tensors[5:])


def _define() -> None:
    for backend in BACKENDS:
        forward, backward = f"{backend}_attention", f"{backend}_attention_backward"
        for name, schema in ((forward, FORWARD_SCHEMA), (backward, BACKWARD_SCHEMA)):
            # The schema parser wants one line.
            library.define(name + " ".join(schema.split()), tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.register_fake(f"{NAMESPACE}::{forward}", _fake_forward, lib=library)
        torch.library.register_fake(f"{NAMESPACE}::{backward}", _fake_backward, lib=library)


_define()
