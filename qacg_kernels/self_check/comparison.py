"""Compares one operator call with the equations in float64, by the error rule, in parts that fit into memory.

A slice is one head of one sequence; slices are independent of one another. If all attention entries of a call fit into
a budget, the call is compared completely. Otherwise a sample is compared: the first, the last, the longest, the
shortest and some random sequences; the first, the last and some random heads; and if these slices still exceed the
budget, the first, the last and some random query rows. A fault outside of the sample is not found.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qacg_kernels.call import equations
from qacg_kernels.call.equations import Position
from qacg_kernels.call.problem import ForwardOutputs, Problem, Residuals, Saved
from qacg_kernels.self_check.error_rule import GRADIENTS, SUM_BAND, Tally, squared_scales

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
_VECTORS = ("gate_query", "gate_context_query", "gate_key", "gate_context_key")
_BIASES = ("gate_query_bias", "gate_key_bias")


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
        """Yields name, tensor and row positions of each upstream gradient.

        The positions are `rows`. For the gradient of a column gate's lk, they are all keys.
        """
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
        """Returns some rows of a part as a dense problem in another dtype, and their Position in the call.

        The problem has separate gate parameters per head.
        """
        p = self.problem
        tensors = {name: self.read(getattr(p, name), part, rows) for name in _PER_QUERY_INPUTS}
        tensors |= {name: self.read(getattr(p, name), part, self.every_key) for name in _PER_KEY_INPUTS}
        for name in (*_VECTORS, *_BIASES):
            t = getattr(p, name)
            own = t.shape[-1:] if name in _VECTORS and t is not None else ()
            tensors[name] = None if t is None else t.expand(p.heads, *own)[part.heads]
        if p.attn_mask is not None:
            index = zip(self.index(part, rows), p.attn_mask.shape)
            tensors["attn_mask"] = p.attn_mask[tuple(at * (size > 1) for at, size in index)]
        if p.quasi_bias is not None:
            index = zip(self.index(part, rows), p.quasi_bias.shape)
            bias = p.quasi_bias[tuple(at * (size > 1) for at, size in index)]
            tensors["quasi_bias"] = self.where_inside(bias, part, rows, 0.0)
        lengths = None if self.lengths is None else self.lengths[part.sequences]
        dense = p.replaced(**tensors, key_lengths=lengths, cu_seqlens=None).to(dtype)
        return dense, Position(rows, part.sequences[:, None] * p.heads + part.heads)


def _some(candidates: Sequence[int], count: int, others: list[int], draw: random.Random) -> Sequence[int]:
    """Chooses about `count` candidates: the first, the last, `others`, and at least one of the rest at random.

    Returns the chosen candidates in rising order, or all candidates if there are at most `count`.
    """
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
        """Compares the results in a part of the call with those of the equations.

        Args:
            part: the slices and rows to compare.
            others: Residuals of a forward, Saved of a backward. If `got` has a result that is a sum over rows or
                slices, the upstream gradients in Saved must be 0 outside of `part`.
            got: results by the names of `forward_results` or GRADIENTS; None or empty if absent.
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
            shared = every_head.dim() - 1 > got[name].dim()
            # One Tally for all gate parameters, because a bias is a single number, in which eager's error may be small
            # by chance.
            self._tally("grad gate", name, got[name], every_head.sum(1) if shared else every_head)

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
        """Returns a tensor for each of `names`, for some rows of the slices of `group`.

        The tensor stacks the eager result, the exact result and the squared rounding scale. The eager result is
        computed in float32 for every dtype of the call, the exact result in float64.
        """
        sides, grads = [], ()
        for dtype in (torch.float32, torch.float64):
            problem, position = self._call.dense(group, rows, dtype)
            if isinstance(others, Residuals):
                outputs, maps = equations.dense_forward(problem, position)
                sides.append(forward_results(outputs))
            else:
                upstream = self._upstream(others, group, rows, dtype)
                grads = upstream[:3]
                gradients, maps = equations.dense_backward(problem, upstream, position)
                sides.append(dict(zip(GRADIENTS, gradients)))
        squares = squared_scales(maps, problem, maps.keep, *grads, rows=rows, smallest=self._smallest)
        scales = (self._alike * squares[n] if n in squares else torch.ones_like(sides[1][n]) for n in names)
        return {n: torch.stack([sides[0][n].double(), sides[1][n], scale]) for n, scale in zip(names, scales)}

    def _upstream(self, saved: Saved, group: Part, rows: Tensor, dtype: torch.dtype) -> Saved:
        """Returns `saved` with the upstream gradients of some rows.

        The gradient of a column gate's lk is divided among the chunks of rows, because results of chunks are added.
        """
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
        tally = self._tallies.setdefault(key, Tally(key, got.dtype, self._eps, _SUM_BAND))
        place = tally.add(got, eager, exact, squares.sqrt())
        if place is not None:
            first = [int(at.expand(got.shape[:3])[place[:3]]) for at in index]
            where = [*first, *place[3:]] if index else list(place)
            self._worst[key] = f"{name}{where}: expected {exact[place].item():.6g}, got {got[place].item():.6g}"


def forward_results(outputs: ForwardOutputs, unit: float = 1.0) -> dict[str, Tensor | None]:
    """The results of a forward by name, with one `log_sum` in place of `row_max` and `row_sum`.

    `log_sum` is the natural logarithm of the sum of exp(score) over the visible keys of a row. It is 0 for a row that
    sees no key.

    Args:
        outputs: the results.
        unit: the unit of `row_max`, as `self_check._row_max_unit` returns it.
    """
    results = outputs._asdict()
    row_max, row_sum = results.pop("row_max"), results.pop("row_sum")
    return results | {"log_sum": torch.where(row_sum == 0, 0.0, unit * row_max + row_sum.log())}
