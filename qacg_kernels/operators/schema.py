"""The torch.library operators: one schema and one fake implementation for all backends.

`autograd.define_operators` makes `qacg::<backend>_attention` and `qacg::<backend>_attention_backward` from them;
NAMESPACE replaces `qacg` where the package has another name. An operator cannot return None, so each absent result is
an empty tensor: the gates if the call is given lambda, branch outputs that are not saved, and gradients of absent
inputs. Python kernels may return None for these results.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from qacg_kernels.call.problem import (
    DIFFERENTIABLE,
    ForwardOutputs,
    Gradients,
    Options,
    Problem,
    Residuals,
    Saved,
    Tensors,
    row_dtype,
)
from qacg_kernels.utils.torch_internals import dual_level_active, is_exporting, is_observed, without_wrapper

# On the Kernel Hub every build of the package has another name, and a process may import several. The hub requires the
# operators in a namespace of that name (distributions/hub_kernel.py).
_PACKAGE = __name__.partition(".")[0]
NAMESPACE = "qacg" if _PACKAGE == "qacg_kernels" else _PACKAGE

_INPUTS = """Tensor query, Tensor key, Tensor value, Tensor context_query, Tensor context_key,
    Tensor? gate_lambda, Tensor? gate_query, Tensor? gate_context_query, Tensor? gate_key,
    Tensor? gate_context_key, Tensor? gate_query_bias, Tensor? gate_context_query_bias,
    Tensor? gate_key_bias, Tensor? gate_context_key_bias, Tensor? attn_mask,
    Tensor? key_lengths, Tensor? cu_seqlens, Tensor? dropout_seed, Tensor? quasi_bias"""
# Not keyword-only: torch takes 2 us longer to read the options by name.
_OPTIONS = """SymInt max_seqlen, bool is_causal, float dropout_p, float scale, float quasi_scale,
    float beta, float gamma, int gate_form"""

# gate_form is an index of `problem.FORMS`. If softmax_out is saved, the backward computes delta without a pass over the
# row; if quasi_out is saved, the same holds for the gate's gradient. row_max and row_sum are saved separately, because
# one logarithm in their place would be rounded too coarsely for large scores (MATH.md, Backward).
FORWARD_SCHEMA = f"""({_INPUTS}, {_OPTIONS}, bool save_softmax_out=True, bool save_quasi_out=False)
    -> (Tensor out, Tensor softmax_out, Tensor quasi_out, Tensor row_max, Tensor row_sum, Tensor query_gate,
        Tensor key_gate)"""
BACKWARD_SCHEMA = f"""(Tensor grad_out, Tensor? grad_query_gate, Tensor? grad_key_gate, {_INPUTS},
    Tensor softmax_out, Tensor quasi_out, Tensor row_max, Tensor row_sum, Tensor query_gate, Tensor key_gate,
    {_OPTIONS})
    -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_context_query,
        Tensor grad_context_key, Tensor grad_lambda, Tensor grad_gate_query, Tensor grad_gate_context_query,
        Tensor grad_gate_key, Tensor grad_gate_context_key, Tensor grad_gate_query_bias,
        Tensor grad_gate_context_query_bias, Tensor grad_gate_key_bias, Tensor grad_gate_context_key_bias)"""


_Named = TypeVar("_Named", bound=tuple)


class _Library(torch.library.Library):
    """A torch library whose autograd formulas raise an error for tangents (forward-mode differentiation).

    The formulas that torch registers ignore tangents, so that the derivative would silently be 0.
    """

    def impl(self, op_name, fn, dispatch_key="", **options):
        if dispatch_key == "Autograd":
            formula = fn

            def fn(keyset, *args, **kwargs):
                if dual_level_active() and any(map(_has_tangent, args)):
                    refuse_forward_mode()
                return formula(keyset, *args, **kwargs)

        super().impl(op_name, fn, dispatch_key, **options)


PLAIN_PYTORCH = "qacg_kernels.attention_maps, which is plain PyTorch"


def refuse_forward_mode():
    """Raises NotImplementedError for forward-mode differentiation."""
    raise NotImplementedError(
        "quasi_attention: expected reverse-mode differentiation (backward, torch.func.grad, vjp, jacrev), got a "
        f"tangent. For torch.func.jvp, jacfwd and dual tensors compute the maps with {PLAIN_PYTORCH}"
    )


def _new_library() -> _Library:
    try:
        return _Library(NAMESPACE, "DEF")
    except RuntimeError as error:
        raise ImportError(
            f"torch.ops.{NAMESPACE}: expected no operators yet, got those of another copy of {_PACKAGE}. "
            "Import the package from one place only"
        ) from error


library = _new_library()


def _has_tangent(t: object) -> bool:
    return isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None


class _Validated(threading.local):
    """A context manager that marks this thread's operator calls as validated, so that Python kernels skip the checks.

    `error` is an exception that Python code raised when a compiled kernel called it. The kernel passes on its text
    only, so the exception itself is raised again at the end of the block.
    """

    active = False
    error: BaseException | None = None

    def __enter__(self) -> None:
        self.active, self.error = True, None

    def __exit__(self, *_: object) -> None:
        self.active = False
        if self.error is not None:
            try:
                raise self.error from None
            finally:
                self.error = None


validated = _Validated()


def forward_op(backend: str):
    return getattr(getattr(torch.ops, NAMESPACE), f"{backend}_attention")


def backward_op(backend: str):
    return getattr(getattr(torch.ops, NAMESPACE), f"{backend}_attention_backward")


@functools.cache
def eager_op(op: Callable, backend: str) -> Callable:
    """Returns `forward_op` or `backward_op` of a backend for calls that torch.compile does not trace."""
    return without_wrapper(op(backend).default)


class Kernels(NamedTuple):
    """The two Python kernels of a backend. Both may return None for absent results."""

    forward: Callable[[Problem, Residuals], ForwardOutputs]
    backward: Callable[[Problem, Saved], Gradients]


# By name of the backend; backends without an entry have compiled kernels.
python_kernels: dict[str, Kernels] = {}


def call_forward(op: Callable, problem: Problem, residuals: Residuals) -> ForwardOutputs:
    """Calls a forward operator, or a function with the same arguments; returns the results as ForwardOutputs."""
    return ForwardOutputs(*op(*problem.tensors, *problem.options, *residuals))


def call_backward(op: Callable, problem: Problem, saved: Saved) -> Gradients:
    """Calls a backward operator, or a function with the same arguments; returns the results as Gradients."""
    upstream = (saved.grad_out, saved.grad_query_gate, saved.grad_key_gate)
    shared = not torch.compiler.is_compiling() and not is_observed()
    results = without_none(saved[len(upstream) :], problem.tensors.query, shared)
    return Gradients(*op(*upstream, *problem.tensors, *results, *problem.options))


# Torch passes the arguments of an operator, and the tensors that autograd saves, by position.
def split(values: Sequence[Any], kind: type[_Named]) -> tuple[_Named, Sequence[Any]]:
    """Returns the named tuple `kind` of the first values, and the values that are left."""
    count = len(kind._fields)
    return kind(*values[:count]), values[count:]


def of_forward(arguments: Sequence[Any]) -> tuple[Problem, Residuals]:
    """Returns the arguments of a forward operator as a Problem and Residuals, without validation.

    Torch may omit the last arguments if they have their default values, which are those of Residuals.
    """
    tensors, others = split(arguments, Tensors)
    options, residuals = split(others, Options)
    return Problem(tensors, options), Residuals(*residuals)


def of_backward(arguments: Sequence[Any]) -> tuple[Problem, Saved]:
    """Returns the arguments of a backward operator as a Problem and a Saved, without validation."""
    grad_out, grad_query_gate, grad_key_gate, *others = arguments
    tensors, others = split(others, Tensors)
    results, options = others[: -len(Options._fields)], others[-len(Options._fields) :]
    return Problem(tensors, Options(*options)), Saved(grad_out, grad_query_gate, grad_key_gate, *results)


def without_none(results: Sequence[Tensor | None], query: Tensor, shared: bool = False) -> Sequence[Tensor]:
    """Returns the results of a forward after `out`, with an empty tensor in place of each None for operators.

    `shared` allows the same empty tensor in all calls.
    """
    if all(t is not None for t in results):
        return results
    dtypes = [query.dtype] * 2 + [row_dtype(query)] * 4
    device, empty = query.device, _shared_empty if shared else _empty
    return tuple(empty(device, dtype) if t is None else t for t, dtype in zip(results, dtypes))


def _empty(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty((0,), dtype=dtype, device=device)


_shared_empty = functools.cache(_empty)


def empty_dense_like(t: Tensor) -> Tensor:
    """An uninitialised dense tensor of t's shape; if t is (B, H, L, D), heads and rows keep their order in memory.

    So heads of a view of a (B, L, H * D) projection can be merged without a copy.
    """
    if t.dim() == 4 and t.stride(1) < t.stride(2):
        _, heads, rows, head_dim = t.shape
        # Not a view of another tensor: autograd forbids in-place changes of a view that a custom function returns.
        return t.new_empty_strided(t.shape, (rows * heads * head_dim, head_dim, heads * head_dim, 1))
    return torch.empty_like(t, memory_format=torch.contiguous_format)


def may_exceed(length: int | torch.SymInt, limit: int) -> bool:
    """Whether a length exceeds a limit; while exporting, whether a dynamic length can exceed it.

    A plain comparison would restrict the exported program to lengths on the same side of the limit as the example's.
    """
    if is_exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true  # here, because it imports sympy

        return not statically_known_true(length <= limit)
    return length > limit


def fake_forward(*arguments):
    """Fake implementation of the forward: empty tensors with the shapes, strides and dtypes of its results."""
    p, residuals = of_forward(arguments)
    has_vectors = p.gate_query is not None
    per_row = dict(dtype=row_dtype(p.query))
    rows, key_rows = p.query.shape[:-1], (p.key if p.column_gate else p.query).shape[:-1]
    return (
        empty_dense_like(p.query),
        empty_dense_like(p.query) if residuals.save_softmax_out else p.query.new_empty((0,)),
        empty_dense_like(p.query) if residuals.save_quasi_out else p.query.new_empty((0,)),
        p.query.new_empty(rows, **per_row),
        p.query.new_empty(rows, **per_row),
        p.query.new_empty(rows if has_vectors else (0,), **per_row),
        p.query.new_empty(key_rows if has_vectors else (0,), **per_row),
    )


def fake_backward(*arguments):
    """Fake implementation of the backward: empty tensors with the shapes, strides and dtypes of its results."""
    problem, saved = of_backward(arguments)
    inputs = (getattr(problem, name) for name in DIFFERENTIABLE)
    return tuple(saved.grad_out.new_empty((0,)) if t is None else empty_dense_like(t) for t in inputs)
