"""Compares the first call of every kernel variant with the reference, inside the operator.

A kernel variant is a group of calls that run the same compiled code on the same path (`variant_of`). The first call of
a variant in a process runs at least twice, once in guarded memory. Its result is compared with the float64 reference by
the error rule (`comparison`). If the result is right, the variant is not compared again. If the result is wrong, there
is one warning, and this call and all later calls of the variant return the reference's result. A call that cannot be
compared, such as one in a CUDA graph capture, runs unchecked; the next call of the variant is compared. Nothing is
stored on disk, no process is started, and no lock is held. The check cannot find a fault that depends on values which
the first call does not have.

The environment variable QACG_SELF_CHECK is read at a variant's first call: `first` (the default), `always` (checks
every call, also of a variant that was right, for debugging), `off` (checks no call), or `strict`. With `strict` a wrong
result raises RuntimeError. The backend `auto` then also raises RuntimeError where it would otherwise use the reference
on a GPU.
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

from qacg_kernels.call.problem import ForwardOutputs, Gradients, Problem, Residuals, Saved
from qacg_kernels.operators import registry, schema
from qacg_kernels.self_check.comparison import PER_KEY, Call, Comparison, forward_results, multiplies_in_tf32
from qacg_kernels.self_check.error_rule import GRADIENTS
from qacg_kernels.self_check.guarded_memory import GuardedMemory
from qacg_kernels.utils.torch_internals import compiled_kernel, is_fake

VARIABLE = "QACG_SELF_CHECK"
FIRST, ALWAYS, OFF, STRICT = "first", "always", "off", "strict"
CHOICES = (FIRST, ALWAYS, OFF, STRICT)
WAY_OUT = 'To run without these kernels, set QACG_BACKEND=reference or pass backend="reference"'
REFERENCE = "reference"  # the backend whose results replace wrong ones
_OPERATORS = schema.NAMESPACE.encode()  # a module variable, because compiled libraries keep a pointer to it

_switches: dict[str, Callable[[bytes], None]] = {}  # by backend, the function that turns on its library's check
_right: set[tuple] = set()
_wrong: dict[tuple, str] = {}  # wrong variants and the fault that was found

Others = Residuals | Saved  # the second argument of a forward and of a backward
Outputs = ForwardOutputs | Gradients


class SelfCheckError(RuntimeError):
    """A kernel variant has failed its check, and QACG_SELF_CHECK is "strict"."""


def requested_mode() -> str:
    """The value of QACG_SELF_CHECK, FIRST if it is unset or empty.

    Raises:
        ValueError: the value is not one of CHOICES.
    """
    value = os.environ.get(VARIABLE) or FIRST
    if value not in CHOICES:
        raise ValueError(f"{VARIABLE}: expected one of {', '.join(map(repr, CHOICES))}, got {value!r}")
    return value


def summary(device: torch.device) -> str | None:
    """A line on how many variants have been checked on a device in this process; None if there are none."""
    right, wrong = (sum(variant[2] == device for variant in found) for found in (_right, _wrong))
    return f"{right} kernel variants passed, {wrong} failed" if right or wrong else None


def forget() -> None:
    """Clears the results of all checks, for tests. Launch plans of Triton that have passed still run unchecked."""
    _right.clear()
    _wrong.clear()
    for switch in _switches.values():
        switch(_OPERATORS)


@dataclass(frozen=True)
class Kernel:
    """The forward or the backward of a backend, or both, with their self-check.

    Attributes:
        backend: the backend's name.
        run: runs a call without any check; its second argument is Residuals for a forward, Saved for a backward.
        row_max_of_empty: the `row_max` that the backend stores for a query row that sees no key; the row's `row_sum`
            is 0.
    """

    backend: str
    run: Callable[[Problem, Others], Outputs]
    row_max_of_empty: float = 0.0

    def first_call(self, problem: Problem, others: Others, mark_checked: Callable[[], None]) -> Outputs:
        """Runs a call, with the check if its variant has not passed it yet.

        Args:
            problem: the call.
            others: Residuals of a forward, Saved of a backward.
            mark_checked: a function without arguments, called if later calls of the variant need no check.

        Returns:
            The results of the call, from the reference if the variant is wrong.
        """
        mode = requested_mode()
        if mode == OFF:
            mark_checked()
            return self.run(problem, others)
        variant = variant_of(self.backend, problem, others)
        known = variant if variant in _wrong else self._wrong_forward_of(problem, others)
        if known is not None:
            return self._fall_back(known, mode, problem, others)
        if variant in _right and mode != ALWAYS:
            mark_checked()
            return self.run(problem, others)
        if not problem.query.numel() or not _can_check_now(problem.query):
            return self.run(problem, others)
        try:
            results, fault, compared = self._checked(problem, others)
        except torch.OutOfMemoryError:  # perhaps only the check lacks memory; a later call may have it
            return self.run(problem, others)
        if fault is None:
            if compared:
                _right.add(variant)
                if mode != ALWAYS:
                    mark_checked()
            return results
        if variant not in _wrong:
            _right.discard(variant)  # in mode ALWAYS an earlier call may have been right
            _wrong[variant] = fault
            if mode != STRICT:
                warnings.warn(
                    f"{_report(variant, fault)}. Calls of this kind return the reference's results from here on",
                    stacklevel=2,
                )
        return self._fall_back(variant, mode, problem, others)

    def _wrong_forward_of(self, problem: Problem, others: Others) -> tuple | None:
        """Returns the variant of a backward call's forward if that variant is wrong, else None.

        The backward of a wrong forward must use the reference too. For a forward call the result is None.
        """
        if isinstance(others, Residuals):
            return None
        saves = (t is not None and bool(t.numel()) for t in (others.softmax_out, others.quasi_out))
        _, *variant = variant_of(self.backend, problem, Residuals(*saves))
        followed = {"triton": ("triton", "hopper")}  # by backend of the backward, the possible backends of the forward
        backends = followed.get(self.backend, (self.backend,))
        return next((known for name in backends if (known := (name, *variant)) in _wrong), None)

    def _checked(self, problem: Problem, others: Others) -> tuple[Outputs, str | None, bool]:
        """Runs and checks a call.

        Returns:
            The results, a description of the fault (None if none was found), and whether there were values to compare.
        """
        device = problem.query.device
        _wait(device)  # so that errors of earlier kernels are not attributed to this one
        try:
            with torch.no_grad():
                with GuardedMemory() as memory:
                    first = self.run(problem, others)
                _wait(device)
                if memory.touched():
                    return first, "it wrote to memory outside of its outputs", True
                results = self.run(problem, others)
                _wait(device)
                if not all(
                    t is u or torch.allclose(t, u, rtol=0, atol=0, equal_nan=True) for t, u in zip(first, results)
                ):
                    return results, "the same call returned different results when it ran again", True
                return results, *self._compared(problem, others, results)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if type(error).__module__.startswith("triton."):  # does not compile, or requires too much shared memory
                first_line = str(error).strip().partition("\n")[0]
                return (), f"it does not run: {type(error).__name__}: {first_line}", True
            if isinstance(error, RuntimeError) and ("CUDA error" in str(error) or "[CUDA]" in str(error)):
                raise RuntimeError(f"backend {self.backend!r} failed: {error}. {WAY_OUT}") from error
            raise

    def _compared(self, problem: Problem, others: Others, results: Outputs) -> tuple[str | None, bool]:
        """Compares the results of a call with the equations.

        Returns:
            A description of the fault (None if none was found), and whether there were values to compare.
        """
        call = Call(problem)
        if not call.is_well_formed():
            return None, False
        comparison, (part, every_slice, every_row) = Comparison(call), call.sample()
        if isinstance(others, Residuals):
            got = forward_results(results, _row_max_unit(self.backend, problem.attn_mask))
        else:
            got = dict(zip(GRADIENTS, results))
        if isinstance(others, Saved) and not (every_slice and every_row):
            # Gradients that sum over rows or slices come from a second launch, whose upstream gradient is 0 outside of
            # the sample.
            others = call.upstream_in(part, others)
            for name, t in zip(GRADIENTS, self.run(problem, others)):
                if name.startswith("grad gate.") or (name in PER_KEY and not every_row):
                    got[name] = t
        with torch.autocast(call.device.type, enabled=False):
            comparison.add(part, others, got)
        return comparison.fault(), comparison.compared

    def _fall_back(self, variant: tuple, mode: str, problem: Problem, others: Others) -> Outputs:
        """Runs the reference, and converts a forward's `row_max` and `row_sum` to the units of this backend."""
        if mode == STRICT:
            raise SelfCheckError(f"{_report(variant, _wrong[variant])}. {WAY_OUT}")
        reference = schema.python_kernels[REFERENCE]
        if isinstance(others, Saved):
            return reference.backward(problem, others)
        outputs = reference.forward(problem, others)
        unit = _row_max_unit(self.backend, problem.attn_mask)
        exact = outputs.row_max.double() / unit
        row_max = exact.float()
        row_sum = (outputs.row_sum * torch.exp(unit * (exact - row_max))).to(outputs.row_sum.dtype)
        return outputs._replace(row_max=row_max.masked_fill(row_sum == 0, self.row_max_of_empty), row_sum=row_sum)


def _row_max_unit(backend: str, attn_mask: Tensor | None) -> float:
    """The unit in which a backend stores `row_max`: 1 for natural logarithms, log(2) for binary ones.

    Kernels compute powers of two. Only the CPU kernels compute powers of e, if the call has an additive mask
    (`scale_row` in csrc/cpu/masking.h).
    """
    return 1.0 if backend == "cpu" and attn_mask is not None and attn_mask.is_floating_point() else math.log(2)


def guard_compiled(backend: str, row_max_of_empty: float, switch: Callable[[bytes], None]) -> None:
    """Turns on the check of a backend with compiled operators, for public functions and direct operator calls.

    Args:
        backend: the backend's name.
        row_max_of_empty: the `row_max` that the backend stores for a row that sees no key.
        switch: the library's function `check_in` (csrc/common/first_calls.h), which turns the check on.
    """
    kernel = Kernel(backend, lambda *call: _launch_compiled(backend, *call), row_max_of_empty)
    registry.define_first_calls(backend, kernel.first_call)
    _switches[backend] = switch
    switch(_OPERATORS)


def _launch_compiled(backend: str, problem: Problem, others: Others) -> Outputs:
    if isinstance(others, Saved):
        return schema.call_backward(compiled_kernel(schema.backward_op(backend).default), problem, others)
    return schema.call_forward(compiled_kernel(schema.forward_op(backend).default), problem, others)


def variant_of(backend: str, p: Problem, others: Others) -> tuple:
    """The key of a call's kernel variant: everything that selects compiled code or a path through it.

    Sizes except D are rounded up to a power of two.
    """
    is_backward, tokens = isinstance(others, Saved), p.query.shape[0] if p.packed else 0
    queries, keys = (p.max_seqlen,) * 2 if p.packed else (p.query.shape[2], p.key.shape[2])
    tensors = (*others, *p.tensors) if is_backward else p.tensors
    return (
        backend,
        "backward" if is_backward else "forward",
        p.query.device,
        str(p.query.dtype).removeprefix("torch."),
        f"D={p.head_dim}",
        *(f"{name}<={_bucket(n)}" for name, n in (("L", queries), ("S", keys), ("B*H", p.sequences * p.heads))),
        f"tokens<={_bucket(tokens)}" if tokens else "padded",
        f"gate {p.gate_form}",
        *(("is_causal",) if p.is_causal else ()),
        *(() if is_backward else (name for name, saves in others._asdict().items() if saves)),
        *(("dropout",) if p.dropout_p > 0 else ()),
        *(f"{name}<0" for name in ("scale", "quasi_scale") if getattr(p, name) < 0),
        *(("TF32",) if multiplies_in_tf32(p.query) else ()),
        *(("deterministic",) if torch.are_deterministic_algorithms_enabled() else ()),
        # Triton specialises kernels on multiples of 16; the number of keys decides whether the last block is partial.
        tuple(_divisor(n, 16) for n in (p.heads, queries, tokens)),
        _divisor(keys, 128),
        tuple(None if t is None or not t.numel() else _layout(t) for t in tensors),
    )


def _bucket(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _divisor(n: int, most: int) -> int:
    """The largest power of two up to `most` that divides n; 0 for n = 0, and -1 for n = 1, which Triton specialises."""
    return -1 if n == 1 else min(n & -n, most)


def _layout(t: Tensor) -> tuple:
    strides = (0 if size == 1 else stride for size, stride in zip(t.shape, t.stride()))
    return t.dtype, t.data_ptr() % 16, tuple(_divisor(stride, 16) for stride in strides)


def _can_check_now(query: Tensor) -> bool:
    """Whether values can be read now: the tensor is not on "meta" or fake, and no CUDA graph is being captured."""
    if query.is_meta or is_fake(query):
        return False
    return query.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _report(variant: tuple, fault: str) -> str:
    kind = ", ".join(str(part) for part in variant[1:-3])
    return f"backend {variant[0]!r} fails for this kind of call ({kind}): {fault}. {environment(variant[2])}"


def environment(device: torch.device) -> str:
    """A line with the machine and the versions, for a warning or an error."""
    found = [f"torch {torch.__version__}, python {platform.python_version()}, {platform.platform()}"]
    for name in ("triton", "qacg-kernels"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found.append(f"{properties.name}, compute capability {properties.major}.{properties.minor}")
    return ", ".join(found)
