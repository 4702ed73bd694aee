"""Prepared launches: calls whose kernels a C++ library (csrc/launch) launches without Python. Imports no Triton.

The library has the operators of the backend for GPUs of NVIDIA, and `triton_run`, which takes few arguments and serves
ordinary eager calls. Calls that are not prepared run through `first_calls`, which prepares calls like them.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from qacg_kernels.backends.triton import tile_tables
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import (
    DIFFERENTIABLE,
    FORMS,
    GATE_PARAMETERS,
    ForwardOutputs,
    Gradients,
    Options,
    Problem,
    Residuals,
    Saved,
    Tensors,
)
from qacg_kernels.call.validation import finite_number, probability
from qacg_kernels.operators import self_check
from qacg_kernels.operators.autograd import (
    NO_GRADIENTS,
    EagerForward,
    call_gradients,
    define_first_calls,
)
from qacg_kernels.operators.schema import NAMESPACE, library
from qacg_kernels.utils import native_libraries
from qacg_kernels.utils.torch_internals import direct_apply, is_observed, may_be_batched, without_wrapper

NAME = "triton"
# Bits of the argument `present` (csrc/launch/launcher.cpp): of the fields of Tensors and Saved, and two more.
_FIELDS = (*Tensors._fields, *Saved._fields)
_BIT = {name: 1 << index for index, name in enumerate(_FIELDS)}
_BACKWARD, _TRAINING = 1 << 40, 1 << 41
_LAMBDA = sum(_BIT[name] for name in Tensors._fields[:6])
_VECTORS = sum(_BIT[name] for name in (*Tensors._fields[:5], *GATE_PARAMETERS[:4]))
_BIASES = [_BIT[name] for name in GATE_PARAMETERS[4:]]
_OTHERS = [_BIT[name] for name in Tensors._fields[len(DIFFERENTIABLE) :]]
_ROWS, _GATES = _BIT["row_max"] | _BIT["row_sum"], _BIT["query_gate"] | _BIT["key_gate"]
_BRANCHES = (0, _BIT["softmax_out"], _BIT["softmax_out"] | _BIT["quasi_out"])  # by their number
_ARGUMENTS = "(Tensor[] tensors, int present, int max_seqlen, int options"

_PLAIN = frozenset((Tensor, Parameter))
names: tuple[str, ...] = ()  # values of the argument `backend` for which calls may be prepared
_run = None  # qacg::triton_run
_runtime = None  # triton.knobs.runtime, once Triton is imported
_paused = False
_registered: list[str] = []  # torch's dispatch keys for which the library's operators are registered
_numbers: dict[tuple, int] = {}  # of options, and whether float32 products are in TF32
_options: list[Options] = []  # by number; scale is NaN for the default


@functools.cache
def _library() -> ctypes.CDLL | None:
    path = native_libraries.library("_launch")
    if path is None or native_libraries.why_not_loadable() is not None:
        return None
    loaded = ctypes.CDLL(str(path))
    loaded.qacg_launch_options.argtypes = [ctypes.c_bool, ctypes.c_bool, ctypes.c_int64, ctypes.c_double * 5]
    loaded.qacg_launch_options.restype = ctypes.c_int64
    loaded.qacg_launch_has_streams.restype = ctypes.c_bool
    for name in ("register", "check_in", "pause", "tf32"):
        getattr(loaded, f"qacg_launch_{name}").restype = None
    return loaded


def in_use(device: torch.device) -> bool:
    """Whether the library has the backend's operators for a device."""
    return device.type.upper() in _registered


def why_not() -> str | None:
    """The reason why the library cannot be used on this machine; None if it can."""
    if torch.version.cuda is None:
        return "torch was built without CUDA"
    try:
        loaded = _library()
    except OSError as error:  # as in a checkout without its large files
        return str(error)
    if loaded is None:
        return native_libraries.why_not_loadable() or native_libraries.why_not_built("_launch")
    return None if loaded.qacg_launch_has_streams() else "_launch.so does not find the streams of torch"


def register(key: str, auto: bool = True) -> None:
    """Registers the library's operators for a dispatch key of torch: "CUDA", or "CPU" with a replaced driver.

    `auto` states whether calls with backend "auto" may be prepared.
    """
    global names, _run
    loaded = _library()
    assert loaded is not None, "the compiled library is missing"
    if not _registered:
        library.define(f"{NAME}_run{_ARGUMENTS}) -> Tensor[]")
        library.define(f"{NAME}_has_plan{_ARGUMENTS}, int saves) -> bool")
        library.define(f"{NAME}_add_plan{_ARGUMENTS}, bool chosen, Tensor text) -> bool")
        define_first_calls(NAME, _first_call)
        self_check.compiled(NAME, loaded.qacg_launch_check_in)
        tile_tables.restarts.append(self_check.restarts[NAME])
    loaded.qacg_launch_register(NAMESPACE.encode(), key.encode())
    _registered.append(key)
    _run, names = without_wrapper(_operator("run")), (NAME, "auto") if auto else (NAME,)


def use_hooks_of(runtime: object) -> None:
    """Makes `is_hooked` read Triton's launch hooks; `runtime` is triton.knobs.runtime."""
    global _runtime  # noqa: PLW0603
    _runtime = runtime


def is_hooked() -> bool:
    """Whether Triton's launch hooks are in use, which only launches from Python call; pauses the library meanwhile."""
    global _paused  # noqa: PLW0603
    if _runtime is None:
        return False
    enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
    hooked = bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))
    if hooked is not _paused:
        _paused = hooked
        _library().qacg_launch_pause(hooked)
    return hooked


def _first_call(*call):
    from qacg_kernels.backends.triton import first_calls  # here, because it imports Triton

    return first_calls.CHECK.first_call(*call)


@functools.cache
def _operator(name: str):
    return getattr(getattr(torch.ops, NAMESPACE), f"{NAME}_{name}").default


def _number(is_causal, dropout_p, scale, quasi_scale, beta, gamma, form, tf32) -> int | None:
    """Returns the number of validated options, which may be new; None if there are too many, or for a wrong form."""
    if form not in FORMS:
        return None
    numbers = (
        probability("dropout_p", dropout_p),
        math.nan if scale is None else finite_number("scale", scale),
        finite_number("quasi_scale", quasi_scale),
        finite_number("gate.beta", beta),
        finite_number("gate.gamma", gamma),
    )
    form_index = FORMS.index(form)
    number = _library().qacg_launch_options(is_causal, tf32, form_index, (ctypes.c_double * 5)(*numbers))
    if number < 0:
        return None
    _options.extend([None] * (number + 1 - len(_options)))
    _options[number] = Options(0, is_causal, *numbers, form_index)
    _numbers[is_causal, dropout_p, scale, quasi_scale, beta, gamma, form, tf32] = number
    return number


class Call(NamedTuple):
    """The arguments of the compact operators."""

    tensors: list[Tensor]
    present: int
    max_seqlen: int
    options: int
    saves: int  # branch outputs of a forward: 1 for O1, 2 for O2

    @classmethod
    def of(cls, problem: Problem, others: Residuals | Saved, tf32: bool) -> "Call | None":
        """Returns the arguments for a validated call; None if there are too many options."""
        max_seqlen, *options, form = problem.options
        arguments = (*options, FORMS[form], tf32)
        number = _numbers.get(arguments)
        if number is None:
            number = _number(*arguments)
        if number is None:
            return None
        if isinstance(others, Residuals):
            values, bits, saves = problem.tensors, 0, others.save_softmax_out + 2 * others.save_quasi_out
        else:
            # An absent result of the forward is None or has the shape (0,).
            results = [t if t is not None and (t.dim() > 1 or t.numel()) else None for t in others]
            values, bits, saves = (*problem.tensors, *results), _BACKWARD, 0
        present = bits + sum(bit for bit, t in zip(_BIT.values(), values) if t is not None)
        return cls([t for t in values if t is not None], present, max_seqlen, number, saves)

    def is_prepared(self) -> bool:
        return _operator("has_plan")(*self)

    def prepare(self, text: str, chosen: bool) -> bool:
        """Prepares launches; `chosen` states that the backend chooses these branch outputs for calls like this one."""
        return _operator("add_plan")(*self[:4], chosen, torch.tensor(list(text.encode()), dtype=torch.uint8))


def launch(problem: Problem, others: Residuals | Saved, tf32: bool) -> ForwardOutputs | Gradients:
    """Runs a prepared call inside of a check, through the operators."""
    _library().qacg_launch_tf32(tf32)
    return self_check.launch_compiled(NAME, problem, others)


def attend(
    query, key, value, context_query, context_key, gate, attn_mask, key_lengths, cu_seqlens, max_seqlen,
    is_causal, dropout_p, scale, quasi_scale, quasi_bias, dropout_seed,
) -> Tensor | None:  # fmt: skip
    """Runs a call of the public functions; returns None for one that is not ordinary, valid and prepared.

    Its arguments have not been validated: the library refuses what it cannot run.
    """
    if torch.compiler.is_compiling():
        return None
    tensors, present, beta, gamma, form = (
        [query, key, value, context_query, context_key, gate],
        _LAMBDA,
        1.0,
        1.0,
        "row",
    )
    if gate.__class__ is GateParameters:
        tensors[5:] = gate.query, gate.context_query, gate.key, gate.context_key
        present, beta, gamma, form = _VECTORS, gate.beta, gate.gamma, gate.form
        first, second, third, fourth = gate.query_bias, gate.context_query_bias, gate.key_bias, gate.context_key_bias
        if first is not None or second is not None or third is not None or fourth is not None:
            present |= _append_present(tensors, (first, second, third, fourth), _BIASES)
    differentiable = len(tensors)
    has_bias = quasi_bias.__class__ is not float or quasi_bias
    if attn_mask is not None or key_lengths is not None or cu_seqlens is not None or dropout_p or has_bias:
        others = (
            attn_mask,
            key_lengths,
            cu_seqlens,
            dropout_seed if dropout_p else None,
            quasi_bias if has_bias else None,
        )
        present |= _append_present(tensors, others, _OTHERS)
    if (
        not _PLAIN.issuperset(map(type, tensors))
        or not (query.is_cuda or "CPU" in _registered)
        or (dropout_seed is not None and not dropout_p)  # not part of the call, but validated
        or (len(tensors) > differentiable and True in [t.requires_grad for t in tensors[differentiable:]])
        or (is_causal is not False and is_causal is not True)
        or max_seqlen.__class__ is not int
        or is_observed()
        or is_hooked()
    ):
        return None
    tf32 = query.dtype is torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    options = is_causal, dropout_p, scale, quasi_scale, beta, gamma, form, tf32
    try:
        number = _numbers.get(options)
    except TypeError:  # not hashable, so no number
        return None
    if number is None and (number := _number(*options)) is None:
        return None
    arguments = ()
    if torch.is_grad_enabled() and (query.requires_grad or any(t.requires_grad for t in tensors)):
        # Autograd cannot save a tensor of inference mode.
        if any(t.is_inference() for t in tensors[differentiable:]):
            return None
        arguments = present, max_seqlen, number, tensors, *tensors
    try:
        if arguments:
            return _apply(*arguments)
        results = _run(tensors, present, max_seqlen, number)
    except NotImplementedError:  # torch has no such kernel for a sparse or nested tensor
        return None
    return results[0] if results else None


def _append_present(to: list[Tensor], tensors: tuple[Tensor | None, ...], bits: list[int]) -> int:
    """Appends the tensors that are present; returns their bits."""
    present = 0
    for t, bit in zip(tensors, bits):
        if t is not None:
            to.append(t)
            present |= bit
    return present


class PreparedForward(torch.autograd.Function):
    """`triton_run` with its autograd formula; returns None if the call is not prepared.

    Saves the same tensors as EagerForward, because of the two forwards of activation checkpointing one may be the first
    call of its kind.
    """

    @staticmethod
    def forward(ctx, present, max_seqlen, number, tensors, *_):
        results = _run(tensors, present | _TRAINING, max_seqlen, number)
        if not results:
            return None
        ctx.save_for_backward(*tensors, *results[1:])
        rows = _ROWS if present & _BIT["gate_lambda"] else _ROWS | _GATES
        branches = _BRANCHES[len(results) - 1 - rows.bit_count()]
        ctx.call = present, rows | branches, max_seqlen, number
        return results[0]

    @staticmethod
    def backward(ctx, grad_out):
        present, of_results, max_seqlen, number = ctx.call
        tensors = list(ctx.saved_tensors)
        tensors.insert(present.bit_count(), grad_out)  # after the inputs
        present |= of_results | _BIT["grad_out"]
        grads = None
        observed = torch.compiler.is_compiling() or torch.is_grad_enabled() or is_observed()
        if not observed and not may_be_batched((grad_out,), tensors[0]):
            grads = _run(tensors, present | _BACKWARD, max_seqlen, number)
        if not grads:
            grads = _gradients(tensors, present, max_seqlen, number)
        return None, None, None, None, *grads, *NO_GRADIENTS

    jvp = EagerForward.jvp


_apply = direct_apply(PreparedForward)


def _gradients(tensors: Sequence[Tensor], present: int, max_seqlen: int, number: int) -> list[Tensor]:
    """Returns the gradients of a call that is not prepared or not ordinary."""
    given = iter(tensors)
    values = [next(given) if present & bit else None for bit in _BIT.values()]
    inputs, saved = Tensors(*values[: len(Tensors._fields)]), Saved(*values[len(Tensors._fields) :])
    options = _options[number]._replace(max_seqlen=max_seqlen)
    if math.isnan(options.scale):
        options = options._replace(scale=inputs.query.shape[-1] ** -0.5)
    return [g for g in call_gradients(NAME, Problem(inputs, options), saved) if g is not None]
