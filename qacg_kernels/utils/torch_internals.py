"""Functions that use private names of torch, each with its behaviour without the name.

Tested with torch 2.10, 2.13 and 2.15. "Saves 15 us" means that without the private function the host would take 15 us
more for a short call (`benchmarks.host_cost` on one core of a server). A private function must save at least 5 us or a
tenth of the host's time, unless no public one gives its answer.
"""

import contextlib
import operator
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad


def _private(path: str) -> Callable | None:
    """A private function of torch by its path below `torch`; None if this torch does not have it."""
    try:
        return operator.attrgetter(path)(torch)
    except AttributeError:
        return None


_dispatch_stack_length = _private("_C._len_torch_dispatch_stack")
_tracing_state = _private("_C._get_tracing_state")
_below_autograd = _private("_C._AutoDispatchBelowAutograd")
_dispatch_keys = _private("_C._dispatch_keys")
_functorch_active = _private("_C._are_functorch_transforms_active")
_is_batched = _private("_C._functorch.is_batchedtensor")
_is_wrapped = _private("_C._functorch.is_functorch_wrapped_tensor")
_unwrapped = _private("_C._functorch.get_unwrapped")
_FakeTensor = _private("_subclasses.fake_tensor.FakeTensor") or ()

_HAS_DUAL_LEVEL = hasattr(forward_ad, "_current_level")
_PLAIN_TYPES = frozenset((Tensor, torch.nn.Parameter, type(None)))


def dual_level_active() -> bool:
    """Whether tensors may have tangents, for which the operators' autograd formulas raise an error.

    Saves 19 us in inference and 60 us in a training step, because `below_autograd` depends on it. Returns True without
    the private name.
    """
    return getattr(forward_ad, "_current_level", 0) >= 0


def is_observed() -> bool:
    """Whether a mode, a tracer, a tangent or a transform of torch.func may observe operators in this thread.

    Without it no call could be prepared (backends/triton/prepared.py): an operator takes 2.4 times the instructions of
    a prepared call in inference. Returns True without the private names.
    """
    return (
        _dispatch_stack_length is None
        or _tracing_state is None
        or not _HAS_DUAL_LEVEL
        or _functorch_active is None
        or _dispatch_stack_length() > 0
        or _tracing_state() is not None
        or forward_ad._current_level >= 0
        or _functorch_active()
    )


def below_autograd() -> contextlib.AbstractContextManager:
    """A context manager that skips the operators' autograd formulas, which torch calls even in inference.

    Saves 15 us in inference and 48 us in a training step of the C++ backend. Without the private name, and while
    tensors may have tangents, the context manager does nothing.
    """
    if _below_autograd is None or dual_level_active():
        return contextlib.nullcontext()
    return _below_autograd()


def may_be_batched(tensors: tuple[Tensor | None, ...], like: Tensor) -> bool:
    """Whether gradients may be batched (`is_grads_batched`): their dispatch keys differ from those of `like`.

    The operator must then be called. Saves 67 us in a training step. Returns True without the private name.
    """
    if _dispatch_keys is None:
        return True
    keys = _dispatch_keys(like).raw_repr()
    return any(t is not None and _dispatch_keys(t).raw_repr() != keys for t in tensors)


def is_exporting() -> bool:
    """Whether torch.export traces this code.

    Up to torch 2.11 the public function, which is used without the private name, also returns True under torch.compile.
    """
    flag = getattr(torch.compiler, "_is_exporting_flag", None)
    return torch.compiler.is_exporting() if flag is None else flag


def surely_one(size: int | torch.SymInt) -> bool:
    """Whether a traced size is 1; False for a size that depends on data, for which a comparison raises an error."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # here, because it imports sympy

    return statically_known_true(size == 1)


def functorch_active() -> bool:
    """Whether a transform of torch.func is active, which requires autograd functions in another form.

    Returns True without the private name. The other form takes 66 to 102 us more, or 140 to 240 us with the backward.
    """
    return _functorch_active is None or _functorch_active()


def is_fake(t: Tensor) -> bool:
    """Whether a tensor is a FakeTensor, which has a shape but no values; False for plain tensors on "meta".

    Without the private name, every subclass of Tensor except Parameter counts as fake.
    """
    return isinstance(t, _FakeTensor) if _FakeTensor else type(t) not in _PLAIN_TYPES


def has_values(t: Tensor) -> bool:
    """Whether a tensor's values can be read: not while compiling or under vmap, and not of meta or fake tensors.

    Without a private name, the result is False under every transform of torch.func.
    """
    if torch.compiler.is_compiling():
        return False
    if _is_batched is not None and _is_wrapped is not None and _unwrapped is not None:
        while _is_wrapped(t):  # several times, for example under vmap and torch.func.grad
            if _is_batched(t):
                return False
            t = _unwrapped(t)
    elif functorch_active():
        return False
    return not (t.is_meta or is_fake(t))


def values_readable(t: Tensor) -> bool:
    """Whether lengths or offsets can be read without synchronising with a GPU. If not, kernels clamp them."""
    return t.device.type == "cpu" and has_values(t)


def constant_when_traced(function: Callable) -> Callable:
    """Marks a function whose result torch.compile may treat as a constant, like torch.compiler.assume_constant_result.

    The public function imports the compiler, which takes 1.1 s. If torch ignored the mark, it would trace the function.
    """
    function._dynamo_marked_constant = True
    return function


def without_wrapper(op: torch._ops.OpOverload) -> Callable:
    """An operator as torch's C++ function, or the operator itself without the private name.

    With it, torch resolves no overload and runs no Python code.
    """
    return getattr(op, "_op", op)


def direct_apply(function: type[torch.autograd.Function]) -> Callable:
    """`function.apply` without the search of all arguments for wrappers that a transform of torch.func has left behind.

    For calls outside of transforms. Saves a tenth of a training step.
    """
    return super(torch.autograd.Function, function).apply


def compiled_kernel(op: torch._ops.OpOverload) -> Callable:
    """A function that calls an operator's compiled kernel directly, for the self-check.

    A dispatch mode then sees the kernel's allocations, but not the call of the operator. Without the private names, the
    first call of a kernel variant raises AttributeError.
    """
    keys = {"cpu": torch._C.DispatchKey.CPU, "cuda": torch._C.DispatchKey.CUDA}
    call = op._op_dk

    def run(first: Tensor, *others: object) -> tuple[Tensor, ...]:
        return call(keys[first.device.type], first, *others)

    return run
