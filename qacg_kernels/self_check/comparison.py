"""Comparison of one operator call with the equations in float64, by the error rule, in parts that fit into memory.

Slices, one for each sequence and head, are independent of one another. A call of up to a budget of attention entries
is compared whole. Of a larger one these are compared: the first, the last, the longest, the shortest and some random
sequences, the first, the last and some random heads, and where a slice alone is beyond the budget, the first, the last
and some random query rows. A fault in one other slice, or in one other row of such a slice, is not seen.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from qacg_kernels.call import equations
from qacg_kernels.call.equations import Position
from qacg_kernels.call.problem import ForwardOutputs, Problem, Saved
from qacg_kernels.self_check.error_rule import GRADIENTS, SUM_BAND, Tally, squared_scales

MOST_ENTRIES = 1 << 28
# A smaller call than this is compared whole, a larger one in a quarter, so that the time stays near that of a few calls
# of eager PyTorch.
_WHOLE_ENTRIES = {"cuda": 1 << 23, "cpu": 1 << 21}
_SHARE = 4
# Attention entries that are computed at a time, in some 40 maps of 8 bytes each: 300 to 500 MiB in all.
_AT_A_TIME = {"cuda": 1 << 20, "cpu": 1 << 19}
_FEWEST_ROWS = 16
_TF32_EPS = 2.0**-10
# SUM_BAND was set with the tests' values. A user's may be larger: scores of some hundreds need twice as much.
_SUM_BAND = 4 * SUM_BAND

PER_KEY = ("grad key", "grad value", "grad context_key")
_PER_QUERY_INPUTS = ("query", "context_query", "gate_lambda")
_PER_KEY_INPUTS = ("key", "value", "context_key")
_VECTORS = ("gate_query", "gate_context_query", "gate_key", "gate_context_key")
_BIASES = ("gate_query_bias", "gate_key_bias")


class Part(NamedTuple):
    """Some slices and query rows of a call, as int64 tensors."""

    sequences: Tensor
    heads: Tensor
    rows: Tensor


def multiplies_in_tf32(query: Tensor) -> bool:
    """Whether products of such tensors round their operands to TF32."""
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
        """Whether a packed call's offsets fit its tokens; on a GPU the validation does not read them."""
        if not self.problem.packed:
            return True
        ends = self.starts + self.lengths
        tokens = self.problem.query.shape[0]
        return bool((self.lengths >= 0).all() and self.starts[:1].eq(0).all() and ends[-1:].eq(tokens).all())

    def sample(self) -> tuple[Part, bool, bool]:
        """What is compared; whether that is every slice, and whether it is every row of its slices."""
        # An empty packed sequence has no row.
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
        """Index of (sequences, heads, rows) of a part in tensors (B, H, N, ...), or (T, H, ...) when packed.

        In place of rows that a packed sequence lacks it has the first one, which every part has.
        """
        if not self.problem.packed:
            return part.sequences[:, None, None], part.heads[:, None], rows
        inside = rows < self.lengths[part.sequences, None, None]
        return self.starts[part.sequences, None, None] + rows * inside, part.heads[:, None]

    def read(self, t: Tensor | None, part: Part, rows: Tensor) -> Tensor | None:
        """(sequences, heads, rows, ...) of a tensor that `index` fits, 0 in rows that a packed sequence lacks."""
        return None if t is None else self.where_inside(t[self.index(part, rows)], part, rows, 0.0)

    def where_inside(self, t: Tensor, part: Part, rows: Tensor, other: float) -> Tensor:
        """Rows (sequences, heads, rows, ...), with another value in those that a packed sequence lacks."""
        if not self.problem.packed:
            return t
        beyond = (rows >= self.lengths[part.sequences, None]).unsqueeze(1)
        return t.masked_fill(beyond if t.dim() == 3 else beyond.unsqueeze(-1), other)

    def without_others(self, t: Tensor | None, part: Part, per_key: bool = False) -> Tensor | None:
        """An upstream gradient, one row or value per query (or key), with 0 outside a part."""
        if t is None:
            return None
        index, kept = self.index(part, self.every_key if per_key else part.rows), torch.zeros_like(t)
        kept[index] = t[index]
        return kept

    def dense(self, part: Part, rows: Tensor, dtype: torch.dtype) -> tuple[Problem, Position]:
        """Some rows of a part as a dense problem in another dtype, with the gate's parameters for each head."""
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
        lengths = None if self.lengths is None else self.lengths[part.sequences]
        dense = replace(p, **tensors, key_lengths=lengths, cu_seqlens=None).to(dtype)
        return dense, Position(rows, part.sequences[:, None] * p.heads + part.heads)


def _some(candidates: Sequence[int], count: int, others: list[int], draw: random.Random) -> Sequence[int]:
    """`count` of the candidates, or a few more: the first, the last, `others`, and random ones."""
    if count >= len(candidates):
        return candidates
    chosen = {candidates[0], candidates[-1], *others}
    left = [c for c in candidates if c not in chosen]
    return sorted(chosen | set(draw.sample(left, min(len(left), max(count - len(chosen), 1)))))


class Comparison:
    """Results of a call compared with the equations, by the error rule.

    Attributes:
        compared: whether any finite value was there to compare.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._tallies: dict[str, Tally] = {}
        self._worst: dict[str, str] = {}
        self.compared = False
        p = call.problem
        self._eps = _TF32_EPS if multiplies_in_tf32(p.query) else None
        # Below it a number of this type has an absolute rounding error.
        self._smallest = torch.finfo(p.query.dtype).smallest_normal if p.query.dtype == torch.float16 else 0.0
        # Where rows are alike, as in a first trial with ones, so are their rounding errors: they add up.
        some = [t[:, 0] if p.packed else t[0, 0] for t in p.wide]
        alike = any(bool((t - t[:1]).abs().max() <= 1e-3 * t.abs().max()) for t in some if len(t) > 1)
        self._alike = max(call.queries, call.keys) ** 2 if alike else 1

    @torch.no_grad()
    def add(self, part: Part, saved: Saved | None, got: Mapping[str, Tensor | None]) -> None:
        """Compares results with those of the equations.

        Args:
            saved: of a backward, whose upstream gradients are 0 outside `part` where a result sums over rows or slices.
            got: tensors by the names of `forward_results`, or of GRADIENTS; None or empty for absent ones.
        """
        got = {name: t for name, t in got.items() if t is not None and t.numel()}
        call, of_gate = self._call, {}
        for group, chunks in self._groups(part):
            of_keys: dict[str, Tensor] = {}
            for rows in chunks:
                for name, sides in self._sides(group, rows, saved, got).items():
                    if name.startswith("grad gate."):
                        sums = sides.new_zeros(len(sides), call.problem.heads, *sides.shape[2:])
                        of_gate.setdefault(name, sums)[:, group.heads] += sides
                    elif name in PER_KEY:
                        of_keys[name] = of_keys.get(name, 0.0) + sides
                    else:
                        per_key = name == "key_gate" and call.problem.column_gate
                        self._add(name, got[name], sides, group, call.every_key if per_key else rows)
            for name, sides in of_keys.items():
                self._add(name, got[name], sides, group, call.every_key)
        for name, sides in of_gate.items():
            shared = sides.dim() - 1 > got[name].dim()
            # All under one name: a bias is a single number, in which eager's error would be a matter of luck.
            self._tally("grad gate", name, got[name], sides.sum(1) if shared else sides)

    def fault(self) -> str | None:
        """The first tensor that breaks the error rule, in a line; None if all are within it."""
        for name, tally in self._tallies.items():
            verdict = tally.verdict()
            if not verdict.ok:
                errors = f"error {verdict.error:.3g} of {verdict.budget:.3g} allowed"
                squares = f"root mean square {verdict.rms_error:.3g} of {verdict.rms_budget:.3g}"
                return f"{self._worst[name]} ({errors}, {squares})"
        return None

    def _groups(self, part: Part) -> Iterator[tuple[Part, tuple[Tensor, ...]]]:
        """The part in groups of slices, each with its rows in chunks that are computed at a time."""
        width = max(self._call.keys, 2 * self._call.problem.head_dim)
        most = max(_AT_A_TIME[self._call.device.type] // width, 1)  # rows
        pairs = max(most // max(len(part.rows), 1), 1)
        heads = min(pairs, max(len(part.heads), 1))
        for sequences in part.sequences.split(max(pairs // heads, 1)):
            for some_heads in part.heads.split(heads):
                yield Part(sequences, some_heads, part.rows), part.rows.split(most)

    def _sides(self, group: Part, rows: Tensor, saved: Saved | None, names: Collection[str]) -> dict[str, Tensor]:
        """For some rows of a group the eager results, the exact ones and the squares of their rounding scales."""
        sides, upstream, squared_grads = [], None, (0.0, 0.0)
        for dtype in (torch.float32, torch.float64):
            problem, position = self._call.dense(group, rows, dtype)
            if saved is None:
                outputs, maps = equations.dense_forward(problem, position)
                sides.append(forward_results(outputs))
            else:
                upstream = self._upstream(saved, group, rows, dtype)
                gradients, maps = equations.dense_backward(problem, upstream, position)
                sides.append(dict(zip(GRADIENTS, gradients)))
        if upstream is not None:
            grads = (upstream.grad_query_gate, upstream.grad_key_gate)
            squared_grads = tuple(0.0 if t is None else t.square() for t in grads)
        squares = squared_scales(
            maps,
            problem,
            1.0 if maps.keep is None else maps.keep.square(),
            None if upstream is None else upstream.grad_out,
            squared_grads,
            rows=rows,
            smallest=self._smallest,
        )
        scale = {
            name: self._alike * squares[name] if name in squares else torch.ones_like(sides[1][name]) for name in names
        }
        return {name: torch.stack([sides[0][name].double(), sides[1][name], scale[name]]) for name in names}

    def _upstream(self, saved: Saved, group: Part, rows: Tensor, dtype: torch.dtype) -> Saved:
        """Upstream gradients of some rows; each chunk of rows gets its share of a column gate's key gradient."""
        along, share = rows, 1.0
        if self._call.problem.column_gate:
            along, share = self._call.every_key, len(rows) / len(group.rows)
        index = {"grad_out": rows, "grad_query_gate": rows, "grad_key_gate": along}
        found = {name: self._call.read(getattr(saved, name), group, at) for name, at in index.items()}
        found = {name: None if t is None else t.to(dtype) for name, t in found.items()}
        if found["grad_key_gate"] is not None:
            found["grad_key_gate"] *= share
        return saved._replace(**found)

    def _add(self, name: str, t: Tensor, sides: Tensor, group: Part, rows: Tensor) -> None:
        """Compares some rows of a tensor."""
        sides = torch.stack([self._call.where_inside(side, group, rows, torch.nan) for side in sides])
        self._tally(name, name, self._call.read(t, group, rows), sides, self._call.index(group, rows))

    def _tally(self, key: str, name: str, got: Tensor, sides: Tensor, index: tuple[Tensor, ...] = ()) -> None:
        """Adds a part of a tensor, whose first dimensions have an index in the user's tensor."""
        # No claim where the inputs' NaN or infinities come through, or where the dtype has no such number.
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
    """The outputs of a forward by name, with the logarithm of each row's sum of exponentials, 0 where no key is seen.

    Args:
        unit: of the row's maximum, in natural logarithms.
    """
    results = outputs._asdict()
    row_max, row_sum = results.pop("row_max"), results.pop("row_sum")
    return results | {"log_sum": torch.where(row_sum == 0, 0.0, unit * row_max + row_sum.log())}
