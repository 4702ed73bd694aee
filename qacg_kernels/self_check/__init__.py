"""Compares the first call of every kernel variant with the reference, inside the operator.

A variant is all that selects compiled code or a path through it (`variant_of`). Its first call in a process runs twice,
once in guarded memory, and is compared with the float64 reference by the error rule (`comparison`). A variant that is
right is not looked at again. For one that is wrong there is one warning, and this call and all later ones of the
variant return the reference's result. Nothing is stored on disk, no process is started, and no lock is held. A fault
that depends on values which the first call does not have is not seen.

QACG_SELF_CHECK is `first` (the default), `always` (every call, for debugging), `off`, or `strict` (a wrong result
raises RuntimeError, and so does `auto` where it would take the reference on a GPU). It is read at a variant's first
call.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import torch
from torch import Tensor

from qacg_kernels.operators import schema
from qacg_kernels.self_check.comparison import GRADIENTS, PER_KEY, Call, Comparison, forward_results, multiplies_in_tf32
from qacg_kernels.self_check.guarded_memory import GuardedMemory

VARIABLE = "QACG_SELF_CHECK"
FIRST, ALWAYS, OFF, STRICT = "first", "always", "off", "strict"
CHOICES = (FIRST, ALWAYS, OFF, STRICT)
WAY_OUT = "QACG_BACKEND=reference runs without its kernels"
REFERENCE = "reference"  # the backend whose results replace wrong ones
_UPSTREAM = 3  # gradients that the backward operator takes, before the inputs
_MOST_SIGNATURES = 4096  # one for each number of tokens of packed calls, among others

_right: set[tuple] = set()
_wrong: dict[tuple, str] = {}  # with what was found

Outputs = tuple[Tensor | None, ...]


def asked_for() -> str:
    """The value of QACG_SELF_CHECK.

    Raises:
        ValueError: it is not one of CHOICES.
    """
    value = os.environ.get(VARIABLE, FIRST)
    if value not in CHOICES:
        raise ValueError(f"{VARIABLE}: expected one of {', '.join(map(repr, CHOICES))}, got {value!r}")
    return value


def summary(device: torch.device) -> str | None:
    """How many variants have been checked on a device in this process, in a line; None for none."""
    right, wrong = (sum(variant[2] == device for variant in found) for found in (_right, _wrong))
    return f"{right} kernel variants checked and right, {wrong} wrong" if right or wrong else None


def forget() -> None:
    """Forgets all outcomes: for tests."""
    _right.clear()
    _wrong.clear()


@dataclass(frozen=True)
class Kernel:
    """The forward or the backward of a backend, as it is before any check.

    Attributes:
        run: takes and returns what the operator does; None stands for absent tensors.
        row_max_of_empty: what the backend stores for a row that sees no key, beside a sum of 0.
    """

    backend: str
    is_backward: bool
    run: Callable[..., Outputs]
    row_max_of_empty: float = 0.0

    def first_call(self, tensors: tuple, options: dict[str, object], settle: Callable[[], None]) -> Outputs:
        """Runs a call of a variant that may not have been checked yet.

        Args:
            settle: called when calls like this one need not come here again.

        Raises:
            RuntimeError: the GPU reports an error, or the result is wrong and QACG_SELF_CHECK is "strict".
        """
        mode = asked_for()
        query = tensors[_UPSTREAM if self.is_backward else 0]
        if mode == OFF:
            settle()
            return self.run(*tensors, **options)
        variant = variant_of(self.backend, self.is_backward, tensors, options)
        for known in (variant, self._forward_of(tensors, options) if self.is_backward else variant):
            if known in _wrong:
                return self._fall_back(known, mode, tensors, options)
        if variant in _right and mode != ALWAYS:
            settle()
            return self.run(*tensors, **options)
        if not query.numel() or not _is_a_moment_for_it(query):
            return self.run(*tensors, **options)
        try:
            results, fault, compared = self._checked(tensors, options)
        except torch.OutOfMemoryError:  # of the check perhaps: another call may find the memory
            return self.run(*tensors, **options)
        if fault is None:
            if compared and mode != ALWAYS:
                _right.add(variant)
                settle()
            return results
        if variant not in _wrong:
            _wrong[variant] = fault
            if mode != STRICT:
                warnings.warn(f"{_told(variant, fault)}. It returns the reference's results from here on", stacklevel=2)
        return self._fall_back(variant, mode, tensors, options)

    def _forward_of(self, tensors: tuple, options: dict[str, object]) -> tuple | None:
        """The wrong forward variant in whose place the reference saved a backward's rows; None if there is none."""
        saved = tensors[_UPSTREAM + schema.INPUTS :]
        saves = {f"save_{name}": t is not None and t.numel() for name, t in zip(("softmax_out", "quasi_out"), saved)}
        found = variant_of(self.backend, False, tensors[_UPSTREAM : _UPSTREAM + schema.INPUTS], options | saves)
        others = {"triton": ("triton", "gluon")}.get(self.backend, (self.backend,))  # whose backward this is
        return next((variant for name in others if (variant := (name, *found[1:])) in _wrong), None)

    def _checked(self, tensors: tuple, options: dict[str, object]) -> tuple[Outputs, str | None, bool]:
        """The results of a call, what is wrong with them if anything is, and whether there was anything to compare."""
        device = tensors[_UPSTREAM].device
        _wait(device)  # an error of earlier kernels is not this one's
        try:
            with torch.no_grad():
                with GuardedMemory() as memory:
                    first = self.run(*tensors, **options)
                _wait(device)
                if memory.touched():
                    return first, "memory beside an output was written", True
                results = self.run(*tensors, **options)
                _wait(device)
                if not all(map(_same_bits, first, results)):
                    return results, "the same call gave other bits the second time", True
                return results, *self._compared(tensors, options, results)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if type(error).__module__.startswith(
                "triton."
            ):  # it does not compile, or the GPU has not the memory on chip
                first_line = str(error).strip().partition("\n")[0]
                return (), f"it does not run: {type(error).__name__}: {first_line}", True
            if isinstance(error, RuntimeError) and ("CUDA error" in str(error) or "[CUDA]" in str(error)):
                raise RuntimeError(f"backend {self.backend!r} failed: {error}; {WAY_OUT}") from error
            raise

    def _compared(self, tensors: tuple, options: dict[str, object], results: Outputs) -> tuple[str | None, bool]:
        """What is wrong with the results if anything is, and whether there was anything to compare."""
        inputs = tensors[_UPSTREAM : _UPSTREAM + schema.INPUTS] if self.is_backward else tensors
        call = Call(inputs, options)
        if not call.is_well_formed():
            return None, False
        comparison = Comparison(call)
        part, every_slice, every_row = call.sample()
        if not self.is_backward:
            unit = _row_max_unit(self.backend, inputs[12])
            upstream, got = None, forward_results(schema.ForwardOutputs(*results), unit)
        else:
            # Those of gates that are not there may be empty.
            upstream = tuple(t if t is not None and t.numel() else None for t in tensors[:_UPSTREAM])
            got = dict(zip(GRADIENTS, results))
            if not (every_slice and every_row):
                # What sums over rows or slices is compared in a launch whose upstream gradient is 0 outside the sample.
                of_keys = (False, False, bool(options["column_gate"]))
                upstream = tuple(call.without_others(t, part, keys) for t, keys in zip(upstream, of_keys))
                sampled = dict(zip(GRADIENTS, self.run(*upstream, *tensors[_UPSTREAM:], **options)))
                for name, t in sampled.items():
                    if name.startswith("grad gate.") or (name in PER_KEY and not every_row):
                        got[name] = t
        with torch.autocast(call.device.type, enabled=False):
            comparison.add(part, upstream, got)
        return comparison.fault(), comparison.compared

    def _fall_back(self, variant: tuple, mode: str, tensors: tuple, options: dict[str, object]) -> Outputs:
        """The reference's results; those of a forward in the units that this backend's own backward reads."""
        if mode == STRICT:
            raise RuntimeError(f"{_told(variant, _wrong[variant])}. {WAY_OUT}")
        if self.is_backward:
            return schema.in_python[REFERENCE].backward(*tensors, **options)
        outputs = schema.ForwardOutputs(*schema.in_python[REFERENCE].forward(*tensors, **options))
        unit = _row_max_unit(self.backend, tensors[12])
        exact = outputs.row_max.double() / unit
        row_max = exact.float()
        row_sum = (outputs.row_sum * torch.exp(unit * (exact - row_max))).to(outputs.row_sum.dtype)
        row_max = row_max.masked_fill(row_sum == 0, self.row_max_of_empty)
        return tuple(outputs._replace(row_max=row_max, row_sum=row_sum))


def _row_max_unit(backend: str, attn_mask: Tensor | None) -> float:
    """The unit in which a backend stores `row_max`, in natural logarithms.

    Kernels compute powers of two; the CPU's compute powers of e with an additive mask (csrc/cpu/masking.h, scale_row).
    """
    return 1.0 if backend == "cpu" and attn_mask is not None and attn_mask.is_floating_point() else math.log(2)


def guard_compiled(backend: str, row_max_of_empty: float, library: torch.library.Library = schema.library) -> None:
    """Puts the check in front of a backend's compiled operators, for every caller of these.

    The dispatch key lies above that of the compiled kernels and below autograd and tracing.
    """
    operators = (schema.forward_op(backend).default, schema.backward_op(backend).default)
    kernels = (Kernel(backend, bool(n), _compiled(op), row_max_of_empty) for n, op in enumerate(operators))
    schema.register_kernels(backend, *map(_Front, kernels), "BackendSelect", library)


def _compiled(operator: torch._ops.OpOverload) -> Callable[..., Outputs]:
    """The compiled kernel of an operator, called past what stands in front of it."""
    dispatch_key = torch._C.DispatchKey
    keys = {"cpu": dispatch_key.CPU, "cuda": dispatch_key.CUDA, "meta": dispatch_key.Meta}
    saved = _UPSTREAM + schema.INPUTS

    def run(*tensors: Tensor | None, **options: object) -> Outputs:
        some = tensors[_UPSTREAM]
        if len(tensors) > saved:  # a forward in Python leaves out what is absent
            tensors = (*tensors[:saved], *schema.none_absent(tensors[saved:], query=some))
        return operator._op_dk(keys[some.device.type], *tensors, **options)

    return run


class _Front:
    """What stands in front of a compiled kernel, and aside once a variant is checked."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._run, self._settled = kernel, kernel.run, set()

    def __call__(self, *tensors: Tensor | None, **options: object) -> Outputs:
        # What calls of one variant may share, and is quick to find. The shapes of the others follow.
        first = _UPSTREAM if self._kernel.is_backward else 0
        query, key, mask, offsets = (tensors[first + n] for n in (0, 1, 12, 14))
        facts = [None if t is None else (t.stride(), t.data_ptr() & 15) for t in tensors]
        others = [None if t is None else (t.shape, t.dtype) for t in (query, key, mask, offsets)]
        signature = (query.device, torch._C._get_deterministic_algorithms(), *options.values(), *others, *facts)
        if signature in self._settled or query.is_meta:
            return self._run(*tensors, **options)
        if len(self._settled) >= _MOST_SIGNATURES:
            self._settled.clear()
        return self._kernel.first_call(tensors, options, lambda: self._settled.add(signature))


def variant_of(backend: str, is_backward: bool, tensors: tuple, options: dict[str, object]) -> tuple:
    """All that selects compiled code or a path through it; of sizes the power of two that they are in."""
    inputs = tensors[_UPSTREAM : _UPSTREAM + schema.INPUTS] if is_backward else tensors
    query, key, cu_seqlens = inputs[0], inputs[1], inputs[14]
    heads, head_dim = query.shape[1], query.shape[-1]
    if cu_seqlens is None:
        sequences, _, queries, _ = query.shape
        keys, tokens = key.shape[2], 0
    else:
        sequences, tokens = cu_seqlens.shape[0] - 1, query.shape[0]
        queries = keys = options["max_seqlen"]
    return (
        backend,
        "backward" if is_backward else "forward",
        query.device,
        str(query.dtype).removeprefix("torch."),
        f"D={head_dim}",
        *(f"{name}<={_bucket(n)}" for name, n in (("L", queries), ("S", keys), ("B*H", sequences * heads))),
        f"tokens<={_bucket(tokens)}" if tokens else "padded",
        *(name for name in ("is_causal", "column_gate", "save_softmax_out", "save_quasi_out") if options.get(name)),
        *(("dropout",) if options["dropout_p"] > 0 else ()),
        *(f"{name}<0" for name in ("scale", "quasi_scale") if options[name] < 0),
        *(("TF32",) if multiplies_in_tf32(query) else ()),
        *(("deterministic",) if torch.are_deterministic_algorithms_enabled() else ()),
        # What Triton compiles for, and whether a last block of keys is there in part.
        tuple(_divisor(n, 16) for n in (heads, queries, tokens)),
        _divisor(keys, 128),
        tuple(None if t is None or not t.numel() else _layout(t) for t in tensors),
    )


def _bucket(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _divisor(n: int, most: int) -> int:
    """The largest power of two up to `most` that divides a number; 0 for 0, and for 1 what no other number has."""
    return -1 if n == 1 else min(n & -n, most)


def _layout(t: Tensor) -> tuple:
    strides = (0 if size == 1 else stride for size, stride in zip(t.shape, t.stride()))
    return t.dtype, t.data_ptr() % 16, tuple(_divisor(stride, 16) for stride in strides)


def _is_a_moment_for_it(query: Tensor) -> bool:
    """Whether values can be looked at now: not on "meta", and not while a CUDA graph is captured."""
    if query.is_meta or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return False
    return query.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _told(variant: tuple, fault: str) -> str:
    words = ", ".join(str(part) for part in variant[1:-3])
    return f"backend {variant[0]!r} is wrong for this kind of call ({words}): {fault}. {environment(variant[2])}"


def environment(device: torch.device) -> str:
    """The machine and versions in a line, for a report."""
    found = [f"torch {torch.__version__}, python {platform.python_version()}, {platform.platform()}"]
    for name in ("triton", "qacg-kernels"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found.append(f"{properties.name}, compute capability {properties.major}.{properties.minor}")
    return ", ".join(found)
