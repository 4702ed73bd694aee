"""One call of an operator compared with the reference in float64, by the error rule, in parts that fit into memory.

Slices, one for each sequence and head, are independent of one another. A call of up to a budget of attention entries
is compared whole. Of a larger one these are compared: the first, the last, the longest, the shortest and some random
sequences, the first, the last and some random heads, and where a slice alone is beyond the budget, the first, the last
and some random rows of queries. A fault in one other slice, or one other row of such a slice, is not seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from qacg_kernels.call import equations
from qacg_kernels.call.masks import hides
from qacg_kernels.operators.schema import ForwardOutputs
from qacg_kernels.self_check.error_rule import SUM_BAND, Tally, Terms, squared_scales

MOST_ENTRIES = 1 << 28
# A smaller call than this is compared whole, a larger one in a quarter, so that the time stays near that of a few calls
# of eager PyTorch.
_WHOLE_ENTRIES = {"cuda": 1 << 23, "cpu": 1 << 21}
_SHARE = 4
# Attention entries that are computed at a time, in some 40 maps of 8 bytes each: 300 to 500 MiB in all.
_AT_A_TIME = {"cuda": 1 << 20, "cpu": 1 << 19}
_FEWEST_ROWS = 16
_TF32_EPS = 2.0**-10
# SUM_BAND was set by the tests' values. Those of a user may be larger: scores of some hundreds need twice as much.
_SUM_BAND = 4 * SUM_BAND

_WIDE = ("query", "key", "value", "context_query", "context_key")
_GATE = ("query", "context_query", "key", "context_key", "query_bias", "key_bias")
GRADIENTS = (*(f"grad {name}" for name in (*_WIDE, "lambda")), *(f"grad gate.{name}" for name in _GATE))
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
    """The inputs of an operator's call, padded or packed, read slice by slice.

    Args:
        inputs: the operator's first 16 tensors.
        options: the operator's options.
    """

    def __init__(self, inputs: tuple[Tensor | None, ...], options: dict[str, object]) -> None:
        self.inputs = inputs
        self.options = {k: v for k, v in options.items() if k != "max_seqlen" and not k.startswith("save_")}
        query, key = inputs[:2]
        self.device, self.heads = query.device, query.shape[1]
        lengths, offsets = inputs[13:15]
        self.packed = offsets is not None
        self.lengths = None if lengths is None else lengths.long()
        if self.packed:
            self.starts = offsets[:-1].long()
            self.lengths = offsets[1:].long() - self.starts
            self.sequences = len(self.starts)
            self.queries = self.keys = int(self.lengths.max()) if self.sequences else 0
        else:
            self.sequences, _, self.queries, _ = query.shape
            self.keys = key.shape[2]

    def is_well_formed(self) -> bool:
        """Whether the offsets of a packed call are those of its tokens; on a GPU nobody has looked before."""
        if not self.packed:
            return True
        ends = self.starts + self.lengths
        tokens = self.inputs[0].shape[0]
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

    def rows_of(self, t: Tensor, part: Part, rows: Tensor) -> Tensor:
        """(sequences, heads, rows, ...) of a tensor (B, H, N, ...), or (T, H, ...) when packed, whose padding is 0."""
        if not self.packed:
            return t[part.sequences[:, None], part.heads][:, :, rows]
        inside = self.inside(part, rows)
        tokens = (self.starts[part.sequences, None] + rows).clamp(max=t.shape[0] - 1)
        taken = t[tokens][:, :, part.heads].transpose(1, 2)
        return taken.masked_fill(~(inside if t.dim() == 2 else inside.unsqueeze(-1)), 0.0)

    def inside(self, part: Part, rows: Tensor) -> Tensor:
        """Whether a packed sequence has these rows: (sequences, 1, rows)."""
        return (rows < self.lengths[part.sequences, None]).unsqueeze(1)

    def index(self, part: Part, place: tuple[int, ...], rows: Tensor) -> tuple[int, ...]:
        """Where in the user's tensor an element of `rows_of` lies."""
        sequence, head, row, *rest = place
        sequence, head, row = int(part.sequences[sequence]), int(part.heads[head]), int(rows[row])
        return (int(self.starts[sequence]) + row, head, *rest) if self.packed else (sequence, head, row, *rest)

    def without_others(self, t: Tensor | None, part: Part, per_key: bool) -> Tensor | None:
        """An upstream gradient, one row or value per query (or key), that is 0 outside of a part."""
        if t is None:
            return None
        rows = torch.arange(self.keys, device=self.device) if per_key else part.rows
        kept = torch.zeros(t.shape[: 2 if self.packed else 3], dtype=torch.bool, device=self.device)
        if self.packed:
            tokens = (self.starts[part.sequences, None] + rows)[self.inside(part, rows)[:, 0]]
            kept[tokens[:, None], part.heads] = True
        else:
            kept[part.sequences[:, None, None], part.heads[:, None], rows] = True
        return t.masked_fill(~(kept.unsqueeze(-1) if t.dim() > kept.dim() else kept), 0.0)

    def dense(self, part: Part, rows: Tensor, dtype: torch.dtype) -> tuple:
        """A part as the arguments of `equations.dense_forward`."""
        every_key = torch.arange(self.keys, device=self.device)
        along = (rows, every_key, every_key, rows, every_key)
        wide = [self.rows_of(t, part, which).to(dtype) for t, which in zip(self.inputs[:5], along)]
        lam = None if self.inputs[5] is None else self.rows_of(self.inputs[5], part, rows).to(dtype)
        vectors = [
            None if t is None else (t[part.heads] if t.dim() == shared + 1 else t).to(dtype)
            for t, shared in zip(self.inputs[6:12], (1, 1, 1, 1, 0, 0))
        ]
        mask = self.inputs[12]
        if mask is not None:
            sequences, heads, along_rows = (
                index if size > 1 else torch.zeros_like(index[:1])
                for index, size in zip((part.sequences, part.heads, rows), mask.shape)
            )
            mask = mask[sequences[:, None], heads][:, :, along_rows]
        lengths = None if self.lengths is None else self.lengths[part.sequences]
        places = part.sequences[:, None] * self.heads + part.heads
        options = self.options | {"rows": rows, "places": places}
        return wide, lam, vectors, (mask, lengths, self.inputs[15]), options


def _some(candidates: list[int], count: int, others: list[int], draw: random.Random) -> list[int]:
    """`count` of the candidates, or a few more: the first, the last, `others`, and random ones."""
    if count >= len(candidates):
        return candidates
    chosen = {candidates[0], candidates[-1], *others}
    left = [c for c in candidates if c not in chosen]
    return sorted(chosen | set(draw.sample(left, min(len(left), max(count - len(chosen), 1)))))


class Comparison:
    """Results of a call beside the reference's, by the error rule.

    Attributes:
        compared: whether any finite value was there to compare.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._tallies: dict[str, Tally] = {}
        self._worst: dict[str, tuple[str, float, float]] = {}
        self.compared = False
        query = call.inputs[0]
        self._eps = _TF32_EPS if multiplies_in_tf32(query) else None
        # Below it a number of this type has an absolute rounding error.
        self._smallest = torch.finfo(query.dtype).smallest_normal if query.dtype == torch.float16 else 0.0
        # Where rows are alike, as in a first trial with ones, so are their rounding errors: they add up.
        some = [t[:, 0] if call.packed else t[0, 0] for t in call.inputs[:5]]
        alike = any(bool((t - t[:1]).abs().max() <= 1e-3 * t.abs().max()) for t in some if len(t) > 1)
        self._alike = max(call.queries, call.keys) ** 2 if alike else 1

    @torch.no_grad()
    def add(self, part: Part, upstream: tuple | None, got: Mapping[str, Tensor | None]) -> None:
        """Compares results with the reference's.

        Args:
            upstream: in a backward, the gradients of the output and the two gates, 0 outside of `part` where a result
                sums over rows or slices.
            got: tensors by the names of `forward_results`, or of GRADIENTS; None or empty for absent ones.
        """
        got = {name: t for name, t in got.items() if t is not None and t.numel()}
        every_key = torch.arange(self._call.keys, device=self._call.device)
        of_gate: list[dict[str, Tensor]] = [{}, {}, {}]
        for group in self._groups(part):
            of_keys: list[dict[str, Tensor]] = [{}, {}, {}]
            for rows in self._rows(group):
                sides = self._sides(group, rows, upstream)
                for name, t in got.items():
                    if name.startswith("grad gate."):
                        self._add_gate(name, of_gate, sides, group.heads)
                    elif name in PER_KEY:
                        for total, side in zip(of_keys, sides):
                            total[name] = total.get(name, 0.0) + side[name]
                    elif name == "key_gate" and self._call.options["column_gate"]:
                        self._add(name, t, [side[name] for side in sides], group, every_key)
                    else:
                        self._add(name, t, [side[name] for side in sides], group, rows)
            for name in of_keys[0]:
                self._add(name, got[name], [total[name] for total in of_keys], group, every_key)
        for name in of_gate[0]:
            # All under one name: a bias is a single number, by which eager's error would be a matter of luck.
            self._tally("grad gate", name, got[name], *(total[name] for total in of_gate))

    def fault(self) -> str | None:
        """The first tensor that breaks the error rule, in a line; None if all hold."""
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
        return max(self._call.keys, 2 * self._call.inputs[0].shape[-1])

    def _sides(self, group: Part, rows: Tensor, upstream: tuple | None) -> list[dict[str, Tensor]]:
        """Eager results for some rows of a group, exact ones and the squares of their rounding scales."""
        sides = []
        for dtype in (torch.float32, torch.float64):
            arguments = self._call.dense(group, rows, dtype)
            if upstream is None:
                grads = [None] * 3
                out, softmax_out, quasi_out, maps = equations.dense_forward(*arguments)
                outputs = (out, softmax_out, quasi_out, maps.row_max, maps.row_sum, maps.query_gate, maps.key_gate)
                sides.append(forward_results(ForwardOutputs(*outputs)))
            else:
                grads = self._upstream(upstream, group, rows, dtype)
                sides.append(dict(zip(GRADIENTS, equations.dense_backward(*grads, *arguments))))
        wide, lam, vectors, masks, options = arguments
        column = options["column_gate"]
        if upstream is not None:
            maps = equations.maps(*wide[:2], *wide[3:], lam, *vectors, *masks, **options)
        bias: Tensor | float = 0.0
        if masks[0] is not None and masks[0].dtype != torch.bool:
            bias = masks[0].double().masked_fill(hides(masks[0]), 0.0)
        seen = [t if n in (0, 3) else equations.cleared(t, masks[1]) for n, t in enumerate(wide)]
        terms = Terms(
            wide=tuple(seen),
            vectors=None if vectors[0] is None else tuple(vectors[:4]),
            bias=bias,
            keep=1.0 if maps.keep is None else maps.keep.square(),
            **{name: options[name] for name in ("scale", "quasi_scale", "beta", "gamma", "column_gate")},
            grad_out=grads[0],
            grad_gates=tuple(0.0 if t is None else t.square() for t in grads[1:]),
            key_rows=None if column else tuple(t[:, :, rows] if lam is None else t for t in (wide[1], wide[4])),
            smallest=self._smallest,
        )
        squares = {name: self._alike * t for name, t in squared_scales(maps, terms).items()}
        for name in ("query", "context_query", "key", "context_key"):
            if f"added {name}" in squares:
                at = slice(None) if column or name.endswith("query") else rows
                squares[f"grad {name}"][:, :, at] += squares[f"added {name}"]
        gates = {name: torch.ones_like(t) for name, t in sides[1].items() if name.endswith("_gate") and t is not None}
        return [*sides, squares | gates]

    def _upstream(self, upstream: tuple, group: Part, rows: Tensor, dtype: torch.dtype) -> list[Tensor | None]:
        """Of some rows; the gradient of a column gate's key side, which comes in once, is shared among all rows."""
        found = [None if t is None else self._call.rows_of(t, group, rows).to(dtype) for t in upstream[:2]]
        of_keys = upstream[2]
        if of_keys is not None and self._call.options["column_gate"]:
            every_key = torch.arange(self._call.keys, device=self._call.device)
            share = len(rows) / len(group.rows)
            return [*found, share * self._call.rows_of(of_keys, group, every_key).to(dtype)]
        return [*found, None if of_keys is None else self._call.rows_of(of_keys, group, rows).to(dtype)]

    def _add_gate(self, name: str, totals: list[dict[str, Tensor]], sides: list[dict], heads: Tensor) -> None:
        """Adds a group's share to the gradient of a parameter of the gate."""
        parameter = self._call.inputs[6 + _GATE.index(name.removeprefix("grad gate."))]
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
        if self._call.packed:
            inside = self._call.inside(group, rows)
            sides = [side.masked_fill(~(inside if side.dim() == 3 else inside.unsqueeze(-1)), 0.0) for side in sides]
        place = self._tally(name, name, got, *sides)
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
