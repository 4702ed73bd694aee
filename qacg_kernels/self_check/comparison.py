"""Comparison of one operator call with the equations in float64, by the error rule, in parts that fit into memory.

Slices, one for each sequence and head, are independent of one another. A call of up to a budget of attention entries
is compared whole. Of a larger one these are compared: the first, the last, the longest, the shortest and some random
sequences, the first, the last and some random heads, and where a slice alone is beyond the budget, the first, the last
and some random query rows. A fault in one other slice, or in one other row of such a slice, is not seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
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
        self.device, self.heads, self.sequences = p.query.device, p.heads, p.sequences
        self.lengths = None if p.key_lengths is None else p.key_lengths.long()
        if p.packed:
            self.starts = p.cu_seqlens[:-1].long()
            self.lengths = p.cu_seqlens[1:].long() - self.starts
            self.queries = self.keys = int(self.lengths.max()) if self.sequences else 0
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
        whole = self.sequences * self.heads * self.queries * self.keys
        budget = min(MOST_ENTRIES, max(_WHOLE_ENTRIES[self.device.type], whole // _SHARE))
        entries = max(self.queries * self.keys, 1)
        draw = random.Random(0)
        heads, sequences, rows = list(range(self.heads)), list(range(self.sequences)), list(range(self.queries))
        if whole > budget:
            by_length = [] if self.lengths is None else self.lengths.argsort()[[0, -1]].tolist()
            heads = _some(heads, budget // (4 * entries), [], draw)
            sequences = _some(sequences, budget // (len(heads) * entries), by_length, draw)
            pairs = len(heads) * len(sequences)
            if pairs * entries > budget:
                rows = _some(rows, max(budget // (pairs * self.keys), _FEWEST_ROWS), [], draw)
        part = Part(*(torch.tensor(t, device=self.device) for t in (sequences, heads, rows)))
        return part, len(heads) * len(sequences) == self.heads * self.sequences, len(rows) == self.queries

    def rows_of(self, t: Tensor | None, part: Part, rows: Tensor) -> Tensor | None:
        """(sequences, heads, rows, ...) of a tensor (B, H, N, ...), or (T, H, ...) when packed, whose padding is 0."""
        if t is None:
            return None
        if not self.problem.packed:
            return t[part.sequences[:, None], part.heads][:, :, rows]
        tokens = (self.starts[part.sequences, None] + rows).clamp(max=t.shape[0] - 1)
        return self.without_padding(t[tokens][:, :, part.heads].transpose(1, 2), part, rows)

    def inside(self, part: Part, rows: Tensor) -> Tensor:
        """Whether a packed sequence has these rows: (sequences, 1, rows)."""
        return (rows < self.lengths[part.sequences, None]).unsqueeze(1)

    def without_padding(self, t: Tensor, part: Part, rows: Tensor) -> Tensor:
        """Rows (sequences, heads, rows, ...) with 0 in those that a packed sequence does not have."""
        if not self.problem.packed:
            return t
        inside = self.inside(part, rows)
        return t.masked_fill(~(inside if t.dim() == 3 else inside.unsqueeze(-1)), 0.0)

    def index(self, part: Part, place: tuple[int, ...], rows: Tensor) -> tuple[int, ...]:
        """The index in the user's tensor of an element of `rows_of`."""
        sequence, head, row, *rest = place
        sequence, head, row = int(part.sequences[sequence]), int(part.heads[head]), int(rows[row])
        return (int(self.starts[sequence]) + row, head, *rest) if self.problem.packed else (sequence, head, row, *rest)

    def without_others(self, t: Tensor | None, part: Part, per_key: bool) -> Tensor | None:
        """An upstream gradient, one row or value per query (or key), with 0 outside a part."""
        if t is None:
            return None
        rows, packed = self.every_key if per_key else part.rows, self.problem.packed
        kept = torch.zeros(t.shape[: 2 if packed else 3], dtype=torch.bool, device=self.device)
        if packed:
            tokens = (self.starts[part.sequences, None] + rows)[self.inside(part, rows)[:, 0]]
            kept[tokens[:, None], part.heads] = True
        else:
            kept[part.sequences[:, None, None], part.heads[:, None], rows] = True
        return t.masked_fill(~(kept.unsqueeze(-1) if t.dim() > kept.dim() else kept), 0.0)

    def dense(self, part: Part, rows: Tensor, dtype: torch.dtype) -> tuple[Problem, Position]:
        """Some rows of a part as a dense problem in another dtype."""
        p = self.problem
        per_query, per_key = ("query", "context_query", "gate_lambda"), ("key", "value", "context_key")
        tensors = {name: self.rows_of(getattr(p, name), part, rows) for name in per_query}
        tensors |= {name: self.rows_of(getattr(p, name), part, self.every_key) for name in per_key}
        for name in GATE_FIELDS:
            t = getattr(p, name)
            per_head = t is not None and t.dim() == (1 if name.endswith("bias") else 2)
            tensors[name] = t[part.heads] if per_head else t
        if p.attn_mask is not None:
            sequences, heads, along_rows = (
                index if size > 1 else torch.zeros_like(index[:1])
                for index, size in zip((part.sequences, part.heads, rows), p.attn_mask.shape)
            )
            tensors["attn_mask"] = p.attn_mask[sequences[:, None], heads][:, :, along_rows]
        lengths = None if self.lengths is None else self.lengths[part.sequences]
        dense = replace(p, **tensors, key_lengths=lengths, cu_seqlens=None).to(dtype)
        return dense, Position(rows, part.sequences[:, None] * self.heads + part.heads)


GATE_FIELDS = ("gate_query", "gate_context_query", "gate_key", "gate_context_key", "gate_query_bias", "gate_key_bias")


def _some(candidates: list[int], count: int, others: list[int], draw: random.Random) -> list[int]:
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
        self._worst: dict[str, tuple[str, float, float]] = {}
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
        of_gate: list[dict[str, Tensor]] = [{}, {}, {}]
        for group in self._groups(part):
            of_keys: list[dict[str, Tensor]] = [{}, {}, {}]
            for rows in self._rows(group):
                sides = self._sides(group, rows, saved)
                for name, t in got.items():
                    if name.startswith("grad gate."):
                        self._add_gate(name, of_gate, sides, group.heads)
                    elif name in PER_KEY:
                        for total, side in zip(of_keys, sides):
                            total[name] = total.get(name, 0.0) + side[name]
                    else:
                        per_key = name == "key_gate" and self._call.problem.column_gate
                        along = self._call.every_key if per_key else rows
                        self._add(name, t, [side[name] for side in sides], group, along)
            for name in of_keys[0]:
                self._add(name, got[name], [total[name] for total in of_keys], group, self._call.every_key)
        for name in of_gate[0]:
            # All under one name: a bias is a single number, in which eager's error would be a matter of luck.
            self._tally("grad gate", name, got[name], *(total[name] for total in of_gate))

    def fault(self) -> str | None:
        """The first tensor that breaks the error rule, in a line; None if all are within it."""
        for name, tally in self._tallies.items():
            verdict = tally.verdict()
            if not verdict.ok:
                where, got, exact = self._worst[name]
                errors = f"error {verdict.error:.3g} of {verdict.budget:.3g} allowed"
                squares = f"root mean square {verdict.rms_error:.3g} of {verdict.rms_budget:.3g}"
                return f"{where}: expected {exact:.6g}, got {got:.6g} ({errors}, {squares})"
        return None

    def _groups(self, part: Part) -> Iterator[Part]:
        """The part in groups of slices, of which some rows at least are computed at a time."""
        pairs = max(_AT_A_TIME[self._call.device.type] // max(len(part.rows) * self._width(), 1), 1)
        heads = min(pairs, max(len(part.heads), 1))
        for sequences in part.sequences.split(max(pairs // heads, 1)):
            for some_heads in part.heads.split(heads):
                yield Part(sequences, some_heads, part.rows)

    def _rows(self, group: Part) -> tuple[Tensor, ...]:
        pairs = len(group.sequences) * len(group.heads)
        return group.rows.split(max(_AT_A_TIME[self._call.device.type] // (pairs * self._width()), 1))

    def _width(self) -> int:
        return max(self._call.keys, 2 * self._call.problem.head_dim)

    def _sides(self, group: Part, rows: Tensor, saved: Saved | None) -> list[dict[str, Tensor]]:
        """Eager results for some rows of a group, exact ones and the squares of their rounding scales."""
        sides, grads, squared_grads = [], None, [0.0, 0.0]
        for dtype in (torch.float32, torch.float64):
            problem, position = self._call.dense(group, rows, dtype)
            if saved is None:
                outputs, maps = equations.dense_forward(problem, position)
                sides.append(forward_results(outputs))
            else:
                grads = self._upstream(saved, group, rows, dtype)
                squared_grads = [0.0 if t is None else t.square() for t in (grads.grad_query_gate, grads.grad_key_gate)]
                gradients, maps = equations.dense_backward(problem, grads, position)
                sides.append(dict(zip(GRADIENTS, gradients)))
        squares = squared_scales(
            maps,
            problem,
            1.0 if maps.keep is None else maps.keep.square(),
            None if grads is None else grads.grad_out,
            tuple(squared_grads),
            rows=rows,
            smallest=self._smallest,
        )
        gates = {name: torch.ones_like(t) for name, t in sides[1].items() if name.endswith("_gate") and t is not None}
        return [*sides, {name: self._alike * t for name, t in squares.items()} | gates]

    def _upstream(self, saved: Saved, group: Part, rows: Tensor, dtype: torch.dtype) -> Saved:
        """Upstream gradients of some rows; each group of rows gets its share of a column gate's key gradient."""
        along, share = rows, 1.0
        if self._call.problem.column_gate:
            along, share = self._call.every_key, len(rows) / len(group.rows)
        found = {
            name: self._call.rows_of(getattr(saved, name), group, rows) for name in ("grad_out", "grad_query_gate")
        }
        of_keys = self._call.rows_of(saved.grad_key_gate, group, along)
        found["grad_key_gate"] = None if of_keys is None else share * of_keys
        return saved._replace(**{name: None if t is None else t.to(dtype) for name, t in found.items()})

    def _add_gate(self, name: str, totals: list[dict[str, Tensor]], sides: list[dict], heads: Tensor) -> None:
        """Adds a group's share to the gradient of a parameter of the gate."""
        parameter = getattr(self._call.problem, name.removeprefix("grad ").replace(".", "_"))
        own = 0 if name.endswith("bias") else 1
        per_head = parameter.dim() > own
        for total, side in zip(totals, sides):
            share = side[name]
            if share.dim() > own + 1:  # squares of scales, of every slice
                share = share.sum(0) if per_head else share.sum((0, 1))
            sums = total.setdefault(name, torch.zeros(parameter.shape, dtype=share.dtype, device=share.device))
            sums[heads if per_head else ...] += share

    def _add(self, name: str, t: Tensor, sides: list[Tensor], group: Part, rows: Tensor) -> None:
        got = self._call.rows_of(t, group, rows)
        place = self._tally(name, name, got, *(self._call.without_padding(side, group, rows) for side in sides))
        if place is not None:
            _, *values = self._worst[name]
            self._worst[name] = (f"{name}{list(self._call.index(group, place, rows))}", *values)

    def _tally(self, key, name, got, eager, exact, squares) -> tuple[int, ...] | None:
        """Adds a part of a tensor; returns the place of its worst element where that is the worst so far."""
        # No claim where the inputs' NaN or infinities come through, or where the dtype has no such number.
        judged = exact.isfinite() & eager.isfinite() & squares.isfinite() & (exact.abs() < torch.finfo(got.dtype).max)
        self.compared = self.compared or bool(judged.any())
        got, eager, exact, squares = (torch.where(judged, t, 0.0) for t in (got, eager, exact, squares))
        tally = self._tallies.setdefault(key, Tally(key, got.dtype, self._eps, _SUM_BAND))
        flat = tally.add(got, eager, exact, squares.sqrt())
        if flat is None:
            return None
        place = tuple(int(n) for n in torch.unravel_index(torch.tensor(flat), got.shape))
        self._worst[key] = (f"{name}{list(place)}", got[place].item(), exact[place].item())
        return place


def forward_results(outputs: ForwardOutputs, unit: float = 1.0) -> dict[str, Tensor | None]:
    """The outputs of a forward by name, with the logarithm of each row's sum of exponentials, 0 where no key is seen.

    Args:
        unit: of the row's maximum, in natural logarithms.
    """
    results = outputs._asdict()
    row_max, row_sum = results.pop("row_max"), results.pop("row_sum")
    return results | {"log_sum": torch.where(row_sum == 0, 0.0, unit * row_max + row_sum.log())}
