"""Compares the first call of every kernel variant with the reference, inside the operator.

A kernel variant is a group of calls that run the same compiled code on the same path (`variant_of`). The first call of
a variant in a process runs at least twice, once in guarded memory. Its result is compared with the float64 reference by
the error rule (`Comparison`). If it is right, the variant is not compared again. If it is wrong, there is one warning,
and the backend is disabled on that device: "auto" no longer selects it, and this call and all later calls of its
operators return the reference's results. A call that cannot be compared, such as one in a CUDA graph capture, runs
unchecked; the next call of the variant is compared. Nothing is stored on disk, and no lock is held.

A slice is one head of one sequence; slices are independent of one another. Calls with many attention entries are
compared in a sample: the first, the last, the longest, the shortest and some random sequences; the first, the last and
some random heads; if necessary, the first, the last and some random query rows (`Call.sample`).

The environment variable QACG_SELF_CHECK is read at a variant's first call: `first` (the default), `always` (checks
every call), `off` (checks no call), or `strict`. With `strict` a wrong result raises RuntimeError, and so does "auto"
where it would otherwise use the reference on a GPU; the backend stays enabled.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qacg_kernels.call import equations
from qacg_kernels.call.equations import Position
from qacg_kernels.call.problem import GATE_PARAMETERS, ForwardOutputs, Gradients, Problem, Residuals, Saved
from qacg_kernels.operators import schema
from qacg_kernels.operators.error_rule import GRADIENTS, SUM_BAND, Tally, squared_scales
from qacg_kernels.utils.torch_internals import compiled_kernel, constant_when_traced, is_fake

VARIABLE = "QACG_SELF_CHECK"
CHOICES = FIRST, ALWAYS, OFF, STRICT = "first", "always", "off", "strict"
WAY_OUT = 'To run without these kernels, set QACG_BACKEND=reference or pass backend="reference"'
_OPERATORS = schema.NAMESPACE.encode()  # a module variable, because compiled libraries keep a pointer to it

Others = Residuals | Saved  # the second argument of a forward and of a backward
Outputs = ForwardOutputs | Gradients

_right: set[tuple] = set()  # variants
_wrong: set[tuple] = set()
_disabled: dict[tuple[str, torch.device], str] = {}  # by backend and device, the report on the variant that failed
# By name, functions that forget which calls need no check, and which backends are selected; called when a backend is
# disabled. A backend's function also covers calls that an earlier `first_call` has yet to mark as checked.
restarts: dict[str, Callable[[], object]] = {}


class SelfCheckError(RuntimeError):
    """A kernel variant has failed its check, and QACG_SELF_CHECK is "strict"."""


def requested_mode() -> str:
    """The value of QACG_SELF_CHECK, FIRST if it is unset or empty."""
    value = os.environ.get(VARIABLE) or FIRST
    if value not in CHOICES:
        raise ValueError(f"{VARIABLE}: expected one of {', '.join(map(repr, CHOICES))}, got {value!r}")
    return value


def summary(device: torch.device) -> str | None:
    """A line on how many variants have been checked on a device in this process; None if there are none."""
    right, wrong = (sum(variant[2] == device for variant in found) for found in (_right, _wrong))
    return f"{right} kernel variants passed, {wrong} failed" if right or wrong else None


@constant_when_traced
def why_disabled(backend: str, device: torch.device) -> list[str]:
    """Returns the reason why a backend is disabled on a device; empty if it is not."""
    if (backend, device) not in _disabled:
        return []
    return [f"self-check: expected right results on {device}, got wrong ones, as a warning has reported"]


def forget() -> None:
    """Clears the results of all checks and enables all backends, for tests."""
    for found in (_right, _wrong, _disabled):
        found.clear()
    _restart()


def _restart() -> None:
    for restart in restarts.values():
        restart()


@dataclass(frozen=True)
class Kernel:
    """The forward and backward of a backend with their self-check."""

    backend: str
    run: Callable[[Problem, Others], Outputs]  # runs a call without any check

    def first_call(self, problem: Problem, others: Others, mark_checked: Callable[[], None]) -> Outputs:
        """Runs a call, with the check if its variant has not passed it; by the reference if the backend is disabled.

        `mark_checked` is called if later calls of the variant need no check.
        """
        mode, device = requested_mode(), problem.query.device
        if (self.backend, device) in _disabled:
            return self._by_reference(problem, others, mode)
        if mode == OFF:
            mark_checked()
            return self.run(problem, others)
        variant = variant_of(self.backend, problem, others)
        if variant in _right and mode != ALWAYS:
            mark_checked()
            return self.run(problem, others)
        if not problem.query.numel() or not _can_check_now(problem.query):
            return self.run(problem, others)
        try:
            results, fault, compared = self._checked(problem, others)
        except torch.OutOfMemoryError:  # perhaps only the check lacks memory; a later call may have it
            return self.run(problem, others)
        if fault is not None:
            self._fail(variant, fault, mode)
            return self._by_reference(problem, others, mode)
        # If another thread has disabled the backend meanwhile, `mark_checked` marks what `_restart` has dropped.
        if compared:
            _right.add(variant)
            if mode != ALWAYS:
                mark_checked()
        return results

    def _fail(self, variant: tuple, fault: str, mode: str) -> None:
        """Disables the backend on the device of a wrong variant, with a warning; with "strict", raises an error."""
        report, device = _report(variant, fault), variant[2]
        if mode == STRICT:
            raise SelfCheckError(f"{report}. {WAY_OUT}")
        _right.discard(variant)  # in mode ALWAYS an earlier call may have been right
        _wrong.add(variant)
        _disabled[self.backend, device] = report
        _restart()
        warnings.warn(
            f"{report}. Backend {self.backend!r} is disabled on {device}: calls run in another backend or in the "
            "reference from here on",
            stacklevel=3,
        )

    def _by_reference(self, problem: Problem, others: Others, mode: str) -> Outputs:
        """Runs a call in the reference, whose backward reads no result of the forward."""
        if mode == STRICT:
            raise SelfCheckError(f"{_disabled[self.backend, problem.query.device]}. {WAY_OUT}")
        reference = schema.python_kernels["reference"]
        return reference.backward(problem, others) if isinstance(others, Saved) else reference.forward(problem, others)

    def _checked(self, problem: Problem, others: Others) -> tuple[Outputs, str | None, bool]:
        """Returns results of a call, their fault (None if none was found), and whether there were values to compare."""
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
                pairs = [(t, u) for t, u in zip(first, results) if t is not u]
                if not all(torch.allclose(t, u, rtol=0, atol=0, equal_nan=True) for t, u in pairs):
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
        """Compares results with the equations; returns the fault, and whether there were values to compare."""
        call = Call(problem)
        if not call.is_well_formed():
            return None, False
        comparison, (part, every_slice, every_row) = Comparison(call), call.sample()
        if isinstance(others, Residuals):
            # Without row_max and row_sum, whose unit depends on the backend: the check of its backward shows them.
            got = _forward_results(results)
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


def compiled(backend: str, switch: Callable[[bytes], None]) -> Kernel:
    """Returns the Kernel of a backend with compiled operators, and turns on its check.

    `switch` is the library's function `check_in` (csrc/common/first_calls.h).
    """
    restarts[backend] = lambda: switch(_OPERATORS)
    restarts[backend]()
    return Kernel(backend, lambda *call: launch_compiled(backend, *call))


def launch_compiled(backend: str, problem: Problem, others: Others) -> Outputs:
    """Runs a call of a compiled operator inside of a check, without a further check."""
    if isinstance(others, Saved):
        return schema.call_backward(compiled_kernel(schema.backward_op(backend).default), problem, others)
    return schema.call_forward(compiled_kernel(schema.forward_op(backend).default), problem, others)


def _forward_results(outputs: ForwardOutputs) -> dict[str, Tensor | None]:
    return {name: t for name, t in outputs._asdict().items() if name not in ("row_max", "row_sum")}


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
        # Not the whole device: that would break a CUDA graph capture of another thread.
        torch.cuda.current_stream(device).synchronize()


def _report(variant: tuple, fault: str) -> str:
    """A line with the variant, the fault, the machine and the versions, for a warning or an error."""
    kind, device = ", ".join(str(part) for part in variant[1:-3]), variant[2]
    found = [f"torch {torch.__version__}, python {platform.python_version()}, {platform.platform()}"]
    for name in ("triton", "qacg-kernels"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found.append(f"{properties.name}, compute capability {properties.major}.{properties.minor}")
    return f"backend {variant[0]!r} fails for this kind of call ({kind}): {fault}. {', '.join(found)}"


MOST_ENTRIES = 1 << 28
# Calls with at most this many attention entries are compared completely. Of a larger call the sample has this many
# entries or 1 / _SHARE of all, whichever is more, up to MOST_ENTRIES. So a check takes as long as a few eager calls.
_WHOLE_ENTRIES = {"cuda": 1 << 23, "cpu": 1 << 21}
_SHARE = 4
# Attention entries that are computed at a time. Each takes 8 bytes in each of about 40 maps.
_AT_A_TIME = {"cuda": 1 << 20, "cpu": 1 << 19}
_FEWEST_ROWS = 16
_TF32_EPS = 2.0**-10
# SUM_BAND suffices for the values in the tests. Users' values may be larger: scores of some hundreds require twice the
# band, and the factor 4 leaves a margin.
_SUM_BAND = 4 * SUM_BAND

PER_KEY = ("grad key", "grad value", "grad context_key")
_PER_QUERY_INPUTS = ("query", "context_query", "gate_lambda")
_PER_KEY_INPUTS = ("key", "value", "context_key")


class Part(NamedTuple):
    """A part of a call: the query rows `rows` of all `heads` of all `sequences`, given by int64 indices."""

    sequences: Tensor
    heads: Tensor
    rows: Tensor


def multiplies_in_tf32(query: Tensor) -> bool:
    """Whether matrix products of tensors like this one round their operands to TF32."""
    return query.dtype == torch.float32 and query.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32"


class Call:
    """The tensors of an operator's call, padded or packed, read slice by slice."""

    def __init__(self, problem: Problem) -> None:
        self.problem = p = problem
        self.device, self.lengths = p.query.device, None if p.key_lengths is None else p.key_lengths.long()
        if p.packed:
            self.starts = p.cu_seqlens[:-1].long()
            self.lengths = p.cu_seqlens[1:].long() - self.starts
            self.queries = self.keys = int(self.lengths.max()) if p.sequences else 0
        else:
            self.queries, self.keys = p.query.shape[2], p.key.shape[2]
        self.every_key = torch.arange(self.keys, device=self.device)

    def is_well_formed(self) -> bool:
        """Whether the offsets of a packed call go from 0 to T and never decrease; True for a padded call.

        On a GPU nothing else validates them.
        """
        offsets, tokens = self.problem.cu_seqlens, self.problem.query.shape[0]
        return offsets is None or bool((offsets.diff() >= 0).all() and offsets[0] == 0 and offsets[-1] == tokens)

    def sample(self) -> tuple[Part, bool, bool]:
        """Returns the part to compare, whether it has every slice, and whether it has every row of its slices."""
        # Empty packed sequences are left out, because they have no row.
        sequences = (
            self.lengths.nonzero()[:, 0].tolist() if self.problem.packed else list(range(self.problem.sequences))
        )
        all_slices = len(sequences) * self.problem.heads
        heads, rows, entries = range(self.problem.heads), range(self.queries), max(self.queries * self.keys, 1)
        budget = min(MOST_ENTRIES, max(_WHOLE_ENTRIES[self.device.type], all_slices * entries // _SHARE))
        draw = random.Random(0)
        if all_slices * entries > budget:
            by_length = [] if self.lengths is None else self.lengths[sequences].argsort()[[0, -1]].tolist()
            heads = _some(heads, budget // (4 * entries), [], draw)
            sequences = _some(sequences, budget // (len(heads) * entries), [sequences[n] for n in by_length], draw)
            rows = _some(rows, max(budget // (len(heads) * len(sequences) * max(self.keys, 1)), _FEWEST_ROWS), [], draw)
        part = Part(*(torch.tensor(list(t), dtype=torch.long, device=self.device) for t in (sequences, heads, rows)))
        return part, len(heads) * len(sequences) == all_slices, len(rows) == self.queries

    def index(self, part: Part, rows: Tensor) -> tuple[Tensor, ...]:
        """An index that reads some rows of (B, H, N, ...) or packed (T, H, ...) as (sequences, heads, rows, ...).

        For rows beyond the length of a packed sequence, it reads the sequence's first row.
        """
        if not self.problem.packed:
            return part.sequences[:, None, None], part.heads[:, None], rows
        inside = rows < self.lengths[part.sequences, None, None]
        return self.starts[part.sequences, None, None] + rows * inside, part.heads[:, None]

    def read(self, t: Tensor | None, part: Part, rows: Tensor) -> Tensor | None:
        """Reads some rows of a part as (sequences, heads, rows, ...); rows beyond a packed sequence's length are 0."""
        return None if t is None else self.where_inside(t[self.index(part, rows)], part, rows, 0.0)

    def where_inside(self, t: Tensor, part: Part, rows: Tensor, other: float) -> Tensor:
        """Returns t, (sequences, heads, rows, ...), with `other` in the rows beyond a packed sequence's length."""
        if not self.problem.packed:
            return t
        beyond = (rows >= self.lengths[part.sequences, None]).unsqueeze(1)
        return t.masked_fill(beyond if t.dim() == 3 else beyond.unsqueeze(-1), other)

    def upstream(self, saved: Saved, rows: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yields name, tensor and row positions of each upstream gradient: `rows`, or all keys for a column gate's."""
        of_keys = self.every_key if self.problem.column_gate else rows
        for name, at in (("grad_out", rows), ("grad_query_gate", rows), ("grad_key_gate", of_keys)):
            t = getattr(saved, name)
            if t is not None and t.numel():  # empty if the call has no gate vectors
                yield name, t, at

    def upstream_in(self, part: Part, saved: Saved) -> Saved:
        """Returns `saved` with upstream gradients that are 0 outside of a part."""
        for name, t, rows in self.upstream(saved, part.rows):
            index, kept = self.index(part, rows), torch.zeros_like(t)
            kept[index] = t[index]
            saved = saved._replace(**{name: kept})
        return saved

    def dense(self, part: Part, rows: Tensor, dtype: torch.dtype) -> tuple[Problem, Position]:
        """Returns some rows of a part as a dense problem with gate parameters per head, and their Position."""
        p = self.problem
        tensors = {name: self.read(getattr(p, name), part, rows) for name in _PER_QUERY_INPUTS}
        tensors |= {name: self.read(getattr(p, name), part, self.every_key) for name in _PER_KEY_INPUTS}
        for name, t in zip(GATE_PARAMETERS, p.gate_parameters):
            own = () if name.endswith("_bias") else (p.head_dim,)
            tensors[name] = None if t is None else t.expand(p.heads, *own)[part.heads]
        for name in ("attn_mask", "quasi_bias"):  # a dimension of size 1 is broadcast
            t = getattr(p, name)
            if t is not None:
                tensors[name] = t[tuple(at * (size > 1) for at, size in zip(self.index(part, rows), t.shape))]
        lengths = None if self.lengths is None else self.lengths[part.sequences]
        dense = p.replaced(**tensors, key_lengths=lengths, cu_seqlens=None).to(dtype)
        return dense, Position(rows, part.sequences[:, None] * p.heads + part.heads)


def _some(candidates: Sequence[int], count: int, others: list[int], draw: random.Random) -> Sequence[int]:
    """Chooses about `count` candidates: the first, the last, `others`, and at least one of the rest at random."""
    if count >= len(candidates):
        return candidates
    chosen = {candidates[0], candidates[-1], *others}
    left = [c for c in candidates if c not in chosen]
    return sorted(chosen | set(draw.sample(left, min(len(left), max(count - len(chosen), 1)))))


class Comparison:
    """Compares the results of a call with the equations, part by part, by the error rule.

    Attributes:
        compared: whether there was any finite value to compare.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._tallies: dict[str, Tally] = {}
        self._worst: dict[str, str] = {}
        self.compared = False
        p = call.problem
        self._eps = _TF32_EPS if multiplies_in_tf32(p.query) else None
        # Smaller float16 numbers have an absolute instead of a relative rounding error.
        self._smallest = torch.finfo(p.query.dtype).smallest_normal if p.query.dtype == torch.float16 else 0.0
        # If all rows are equal, as in a first call with torch.ones, their rounding errors are equal too and add up.
        some = [t[:, 0] if p.packed else t[0, 0] for t in p.wide]
        alike = any(bool((t - t[:1]).abs().max() <= 1e-3 * t.abs().max()) for t in some if len(t) > 1)
        self._alike = max(call.queries, call.keys) ** 2 if alike else 1

    @torch.no_grad()
    def add(self, part: Part, others: Residuals | Saved, got: Mapping[str, Tensor | None]) -> None:
        """Compares results by name, in a part of the call.

        If `got` has a result that is a sum over rows or slices, the upstream gradients in `others` must be 0 outside of
        the part.
        """
        got = {name: t for name, t in got.items() if t is not None and t.numel()}
        call, heads, of_gate = self._call, len(part.heads), {}
        most = _AT_A_TIME[call.device.type] // max(call.keys, 2 * call.problem.head_dim)  # rows
        for sequences in part.sequences.split(max(most // max(heads * len(part.rows), 1), 1)):
            group, of_keys = part._replace(sequences=sequences), {}
            for rows in part.rows.split(max(most // max(heads, 1), 1)):
                for name, sides in self._sides(group, rows, others, got).items():
                    if name.startswith("grad gate."):
                        of_gate[name] = of_gate.get(name, 0.0) + sides
                    elif name in PER_KEY:
                        of_keys[name] = of_keys.get(name, 0.0) + sides
                    else:
                        per_key = name == "key_gate" and call.problem.column_gate
                        self._add(name, got[name], sides, group, call.every_key if per_key else rows)
            for name, sides in of_keys.items():
                self._add(name, got[name], sides, group, call.every_key)
        for name, sides in of_gate.items():
            every_head = sides.new_zeros(3, call.problem.heads, *sides.shape[2:]).index_copy(1, part.heads, sides)
            sums = every_head.sum(1) if got[name].numel() == sides[0, 0].numel() else every_head
            # One Tally for all gate parameters, because a bias is a single number, in which eager's error may be small
            # by chance.
            self._tally("grad gate", name, got[name], sums.view(3, *got[name].shape))

    def fault(self) -> str | None:
        """A line on the first tensor that breaks the error rule; None if all tensors are within it."""
        for name, tally in self._tallies.items():
            verdict = tally.verdict()
            if not verdict.ok:
                errors = f"largest error {verdict.error:.3g}, allowed {verdict.budget:.3g}"
                squares = f"root mean square {verdict.rms_error:.3g}, allowed {verdict.rms_budget:.3g}"
                return f"{self._worst[name]} ({errors}; {squares})"
        return None

    def _sides(self, group: Part, rows: Tensor, others: Residuals | Saved, names: Collection[str]) -> dict[str, Tensor]:
        """Returns, for each of `names`, the eager result, the exact one and the squared rounding scale as one tensor.

        The eager result is computed in float32 for every dtype of the call, the exact result in float64.
        """
        sides, grads = [], ()
        for dtype in (torch.float32, torch.float64):
            problem, position = self._call.dense(group, rows, dtype)
            if isinstance(others, Residuals):
                outputs, maps = equations.dense_forward(problem, position)
                sides.append(_forward_results(outputs))
            else:
                upstream = self._upstream(others, group, rows, dtype)
                grads = upstream[:3]
                gradients, maps = equations.dense_backward(problem, upstream, position)
                sides.append(dict(zip(GRADIENTS, gradients)))
        squares = squared_scales(maps, problem, *grads, rows=rows, smallest=self._smallest)
        scales = (self._alike * squares[n] if n in squares else torch.ones_like(sides[1][n]) for n in names)
        return {n: torch.stack([sides[0][n].double(), sides[1][n], scale]) for n, scale in zip(names, scales)}

    def _upstream(self, saved: Saved, group: Part, rows: Tensor, dtype: torch.dtype) -> Saved:
        """Returns `saved` with the upstream gradients of some rows; chunks of rows share that of a column gate's lk."""
        found = dict.fromkeys(("grad_query_gate", "grad_key_gate"))
        for name, t, along in self._call.upstream(saved, rows):
            share = 1.0 if along is rows else len(rows) / len(group.rows)
            found[name] = share * self._call.read(t, group, along).to(dtype)
        return saved._replace(**found)

    def _add(self, name: str, t: Tensor, sides: Tensor, group: Part, rows: Tensor) -> None:
        """Compares some rows of the result `t` with `sides`, which `_sides` returned for it."""
        sides = torch.stack([self._call.where_inside(side, group, rows, torch.nan) for side in sides])
        self._tally(name, name, self._call.read(t, group, rows), sides, self._call.index(group, rows))

    def _tally(self, key: str, name: str, got: Tensor, sides: Tensor, index: tuple[Tensor, ...] = ()) -> None:
        """Adds a part of a tensor to its Tally; `index` gives the part's position in the user's tensor, for reports."""
        # Elements are compared if the eager result, the exact result and the scale are finite, and the exact result is
        # within the range of the dtype.
        judged = sides.isfinite().all(0) & (sides[1].abs() < torch.finfo(got.dtype).max)
        self.compared = self.compared or bool(judged.any())
        got, (eager, exact, squares) = torch.where(judged, got, 0.0), torch.where(judged, sides, 0.0)
        # Gradients in float32 of a gate beside 16-bit queries are sums of values of 16-bit precision.
        eps = torch.finfo(self._call.problem.query.dtype).eps if key == "grad gate" and not self._eps else self._eps
        tally = self._tallies.setdefault(key, Tally(key, got.dtype, eps, _SUM_BAND))
        place = tally.add(got, eager, exact, squares.sqrt())
        if place is not None:
            first = [int(at.expand(got.shape[:3])[place[:3]]) for at in index]
            where = [*first, *place[3:]] if index else list(place)
            self._worst[key] = f"{name}{where}: expected {exact[place].item():.6g}, got {got[place].item():.6g}"


_aten = torch.ops.aten
_ALLOCATORS = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}
_FILL = 0xFF
# Bytes of a zone: a multiple of every alignment that kernels require, and more than a row of 256 float32 values.
_ZONE = 1 << 14


class GuardedMemory(TorchDispatchMode):
    """A context manager that places every new uninitialised tensor between two guard zones.

    New tensors, also those of C++ code, and the zones are filled with 0xff bytes, which are NaN in the float types of
    kernels. So elements that the kernel does not write, and those that it reads in a zone, are NaN.
    """

    def __init__(self) -> None:
        super().__init__()
        self.zones: list[Tensor] = []  # views of bytes, two for each allocation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        t = func(*args, **(kwargs or {}))
        if func not in _ALLOCATORS or t.is_meta:  # tensors on "meta" have no memory
            return t
        size = t.element_size()
        extent = sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1 if t.numel() else 0
        used = extent * size
        memory = torch.full((2 * _ZONE + used + -used % 16,), _FILL, dtype=torch.uint8, device=t.device)
        self.zones += [memory[:_ZONE], memory[_ZONE + used :]]
        return memory.view(t.dtype).as_strided(t.shape, t.stride(), _ZONE // size)

    def touched(self) -> bool:
        """Whether any zone that was made since the last call of this method has changed."""
        zones, self.zones = self.zones, []
        return any(bool((zone != _FILL).any()) for zone in zones)
