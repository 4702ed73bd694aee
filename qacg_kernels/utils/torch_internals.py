"""Every use of torch's private interfaces, each with its reason and what happens where torch lacks the name.

Tested with torch 2.10 to 2.13. The times are what a short call costs more without the name (`benchmarks.host_cost` on
one core of a server, Triton backend: 28 us for inference, 47 us for a forward that autograd records, 157 us with its
backward). A name that saves less than 5 us a call has no place here, unless nothing public gives its answer.
"""

import contextlib
import operator
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad


def _private(path: str) -> Callable | None:
    """A private function of torch, or None where this torch does not have it."""
    try:
        return operator.attrgetter(path)(torch)
    except AttributeError:
        return None


_dispatch_stack_length = _private("_C._len_torch_dispatch_stack")
_tracing_state = _private("_C._get_tracing_state")
_profiler_enabled = _private("autograd._profiler_enabled")
_below_autograd = _private("_C._AutoDispatchBelowAutograd")
_dispatch_keys = _private("_C._dispatch_keys")
_functorch_active = _private("_C._are_functorch_transforms_active")
_is_batched = _private("_C._functorch.is_batchedtensor")
_FakeTensor = _private("_subclasses.fake_tensor.FakeTensor") or ()

_HAS_DUAL_LEVEL = hasattr(forward_ad, "_current_level")
_PLAIN_TYPES = frozenset((Tensor, torch.nn.Parameter, type(None)))


def dual_level_active() -> bool:
    """Whether tensors may have tangents, in which case the operators' formulas must run, to raise an error.

    Saves 49 us of an inference and 167 us of a training step (C++ backend: 19 and 60 us), because both shortcuts below
    need the answer. Without the private name: True, so that the formulas always run.
    """
    return getattr(forward_ad, "_current_level", 0) >= 0


def can_bypass_dispatcher(tensors: tuple[Tensor | None, ...]) -> bool:
    """Whether a Python kernel may be called directly, because nothing observes the operator's call.

    The dispatcher packs and unpacks 26 arguments: 28 us of an inference, 100 us of a training step. Modes, profilers,
    tracers, tangents, subclasses and "meta" tensors must see the operator. Without the private names: False.
    """
    return (
        _dispatch_stack_length is not None
        and _profiler_enabled is not None
        and _tracing_state is not None
        and _HAS_DUAL_LEVEL
        and forward_ad._current_level < 0
        and _dispatch_stack_length() == 0
        and not _profiler_enabled()
        and _tracing_state() is None
        and _PLAIN_TYPES.issuperset(map(type, tensors))
        and not tensors[0].is_meta
    )


def below_autograd() -> contextlib.AbstractContextManager:
    """Skips the operators' autograd formulas, which torch runs in Python even where nothing is differentiated.

    Saves 15 us of an inference and 48 us of a training step of the C++ backend, whose calls pass the dispatcher.

    If torch lacks the private name, the formulas run, and this time is not saved.
    """
    if _below_autograd is None or dual_level_active():
        return contextlib.nullcontext()
    return _below_autograd()


def may_be_batched(tensors: tuple[Tensor | None, ...], like: Tensor) -> bool:
    """Whether gradients may be batches of gradients (`is_grads_batched`), which only their dispatch keys show.

    Saves 67 us of a training step. Without the private name: True, so that the operator is called.
    """
    if _dispatch_keys is None:
        return True
    keys = _dispatch_keys(like).raw_repr()
    return any(t is not None and _dispatch_keys(t).raw_repr() != keys for t in tensors)


def functorch_active() -> bool:
    """Whether a transform of torch.func is active, which requires autograd functions of another form.

    Without the private name: True, because that form works for every call (66 to 102 us slower, 140 to
    240 us with the backward).
    """
    return _functorch_active is None or _functorch_active()


def is_fake(t: Tensor) -> bool:
    """Whether a tensor has no values because torch only propagates shapes.

    Saves no time: torch has no public question for it. Without the private name: whether its type is not a plain
    tensor's.
    """
    return isinstance(t, _FakeTensor) if _FakeTensor else type(t) not in _PLAIN_TYPES


def has_values(t: Tensor) -> bool:
    """Whether a tensor's values can be read: not while compiling, in FakeTensorMode or under vmap.

    The question about vmap saves no time: torch has no public one. Without the private name: False under every
    transform of torch.func, so that values are checked by none of them.
    """
    if torch.compiler.is_compiling() or is_fake(t):
        return False
    return not functorch_active() if _is_batched is None else not _is_batched(t)


def values_readable(t: Tensor) -> bool:
    """Whether a tensor's values can be read without synchronising with a GPU. Kernels clamp those that cannot."""
    return t.device.type == "cpu" and has_values(t)


def constant_when_traced(function: Callable) -> Callable:
    """Marks a function whose result torch.compile takes as a constant, as torch.compiler.assume_constant_result does.

    The public function imports the compiler, which takes 1.1 s where the whole package takes 0.07 s. A torch that
    ignores the mark traces the function.
    """
    function._dynamo_marked_constant = True
    return function


def compiled_kernel(op: torch._ops.OpOverload) -> Callable:
    """An operator's compiled kernel, whose allocations a dispatch mode sees: it does not see the operator's own call.

    Nothing public calls one registered kernel. The self-check runs only where a compiled library is loaded; torch
    without `_op_dk` or `DispatchKey` raises AttributeError there, and the library is then reported as unusable.
    """
    keys = {"cpu": torch._C.DispatchKey.CPU, "cuda": torch._C.DispatchKey.CUDA}
    call = op._op_dk

    def run(*tensors: Tensor | None, **options: object) -> tuple[Tensor, ...]:
        return call(keys[tensors[0].device.type], *tensors, **options)

    return run
