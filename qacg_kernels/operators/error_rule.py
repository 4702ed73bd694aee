"""The error rule: how far a result may be from the float64 result.

An element's error is its distance from the float64 result, divided by the larger of the element's rounding scale and
the absolute value of that result (`relative_errors`). The rounding scale is the size of the terms that are summed to
the element, before they cancel (`squared_scales`). An element near zero, a short row and a gate bias summed over ten
thousand rows are therefore measured alike. The rule applies to the largest error of a tensor and to the root mean
square of its errors:

    error(backend) <= factor * error(eager PyTorch in the same dtype)
                      + BAND * eps(dtype) + SUM_BAND * eps(float32)

with a factor of 2 for outputs and 3 for gradients; in float64 the last line is + FLOAT64_BAND * eps(float64). The
self-check instead uses eager's errors in float32 for every dtype, and a larger SUM_BAND (`self_check`). Half the
dtype's smallest positive number is subtracted from every distance, because results are rounded to multiples of that
number. Elements whose scale and float64 result are zero (masked out) must be exactly zero.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from qacg_kernels.call.equations import Maps, cleared, key_side, reduced
from qacg_kernels.call.problem import GATE_PARAMETERS, Problem, hides

OUTPUT_FACTOR = 2.0
GRADIENT_FACTOR = 3.0
# Eager's error may be 0 by chance (a row with one key, a tensor of few elements). The error of a backend that rounds
# correctly is then still a few units in the last place of the terms of an element.
BAND = 4.0
# Backends add in float32, in different orders. A plain sum of n terms has an error of about sqrt(n) / 5 units in the
# last place, and at worst three times as much. So 16 is the worst error of a sum of 700 terms.
SUM_BAND = 16.0
# A float64 backend is compared with another float64 result, which has rounding errors of the same size.
FLOAT64_BAND = 256.0


class Verdict(NamedTuple):
    """The errors of one tensor and the largest allowed ones (budgets), in units of the rounding scale."""

    error: float  # the largest error of an element
    budget: float
    rms_error: float  # the root mean square of the errors
    rms_budget: float
    worst: tuple[int, ...]  # index of the element with the largest error

    @property
    def ok(self) -> bool:
        return self.error <= self.budget and self.rms_error <= self.rms_budget


def relative_errors(got: Tensor, exact: Tensor, scale: Tensor) -> Tensor:
    """The distance of each element from `exact`, divided by the larger of `scale` and |exact|.

    Half the dtype's smallest positive number is first subtracted from the distance. The result is infinite if the
    divisor is 0 and the distance is not, or if the distance is NaN or infinite.
    """
    scale = torch.maximum(scale, exact.abs())
    # Divisors are at least eps times the largest scale, because exp may flush smaller elements to zero.
    floor = torch.finfo(got.dtype).eps * scale.max() if scale.numel() else 0.0
    distance = (got.double() - exact).abs()
    # Rounding a result to the dtype may change it by half of the smallest number: 3e-8 in float16, and negligible in
    # the other dtypes.
    info = torch.finfo(got.dtype)
    beyond = (distance - info.smallest_normal * info.eps / 2).clamp(min=0)
    errors = torch.where(beyond == 0, 0.0, beyond / scale.clamp(min=floor))
    errors = torch.where((scale == 0) & (distance != 0), torch.inf, errors)
    return errors.nan_to_num(nan=torch.inf, posinf=torch.inf)


class Tally:
    """Collects the errors of a tensor that is compared part by part, or of several tensors with a common budget.

    The factor of gradients applies if `name` begins with "grad". `eps` is the machine epsilon of the operands of
    products, such as that of TF32 (None: that of `dtype`), and `sum_band` the allowed error of sums in units of
    float32's; both have no effect in float64.
    """

    def __init__(self, name: str, dtype: torch.dtype, eps: float | None = None, sum_band: float = SUM_BAND) -> None:
        self.factor = GRADIENT_FACTOR if name.startswith("grad") else OUTPUT_FACTOR
        if dtype == torch.float64:
            self.band = FLOAT64_BAND * torch.finfo(torch.float64).eps
        else:
            self.band = BAND * (eps or torch.finfo(dtype).eps) + sum_band * torch.finfo(torch.float32).eps
        self.count = 0
        self.largest = self.largest_of_eager = self.squares = self.squares_of_eager = 0.0

    def add(self, got: Tensor, eager: Tensor, exact: Tensor, scale: Tensor) -> tuple[int, ...] | None:
        """Adds the errors of a part of the tensor; `scale` is the rounding scale of each element, in float64.

        Returns the index, within this part, of its largest error; None if an earlier part has one as large.
        """
        errors, of_eager = relative_errors(got, exact, scale), relative_errors(eager, exact, scale)
        if not errors.numel():
            return None
        of_eager = of_eager.masked_fill(of_eager.isinf(), 0.0)  # where eager overflows, it adds nothing to the budget
        found = torch.stack([errors.max(), of_eager.max(), errors.square().sum(), of_eager.square().sum()]).tolist()
        first, self.count = not self.count, self.count + errors.numel()
        self.largest_of_eager = max(self.largest_of_eager, found[1])
        self.squares += found[2]
        self.squares_of_eager += found[3]
        if not first and found[0] <= self.largest:
            return None
        self.largest = found[0]
        return tuple(int(n) for n in torch.unravel_index(errors.argmax(), errors.shape))

    def verdict(self) -> Verdict:
        """The Verdict over all parts, with an empty `worst`."""
        count = max(self.count, 1)
        return Verdict(
            error=self.largest,
            budget=self.factor * self.largest_of_eager + self.band,
            rms_error=(self.squares / count) ** 0.5,
            rms_budget=self.factor * (self.squares_of_eager / count) ** 0.5 + self.band,
            worst=(),
        )


def judge(
    name: str,
    got: Tensor,
    eager: Tensor,
    exact: Tensor,
    scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Verdict:
    """Applies the error rule to a backend's result; `name` selects the factor, as in `Tally`.

    `exact` and `scale`, each element's rounding scale, are in float64. If `scale` is None, it is the root mean square
    of `exact`. `dtype` is that of the call's query if `got` has another one, as float32 gradients of a gate may.
    """
    if got.shape != exact.shape:
        raise AssertionError(f"{name}: expected shape {tuple(exact.shape)}, got {tuple(got.shape)}")
    if scale is None:
        scale = exact.square().mean().sqrt().expand_as(exact) if exact.numel() else exact
    tally = Tally(name, dtype or got.dtype)
    worst = tally.add(got.detach(), eager.detach(), exact, scale)
    verdict = tally.verdict()
    return verdict if worst is None else verdict._replace(worst=worst)


# The results' names, in the order of `problem.Gradients`.
GRADIENTS = tuple(f"grad {name}" for name in ("query", "key", "value", "context_query", "context_key", "lambda"))
GRADIENTS += tuple(f"grad gate.{name.removeprefix('gate_')}" for name in GATE_PARAMETERS)


def squared_scales(
    maps: Maps,
    p: Problem,
    grad_out: Tensor | None = None,
    grad_query_gate: Tensor | None = None,
    grad_key_gate: Tensor | None = None,
    *,
    rows: Tensor | None = None,
    smallest: float = 0.0,
) -> dict[str, Tensor]:
    """Squared rounding scales of the results of a dense call, by name.

    For a result that is a sum of products a b, the square is the sum of a^2 b^2. If the rounding errors of the terms
    are independent, they add up to about eps times the root of this sum. A lambda that the kernel computes is itself
    such a sum: 1 - beta lq - gamma lk.

    All tensors are float64. Without `grad_out`, the results are those of a forward; with it, also those in GRADIENTS
    whose input the call has, and "grad lambda". `rows` are the positions in the whole call of the queries of `p`, at
    which a row gate reads the keys; None if `p` has all queries. Operands below `smallest` in absolute value have its
    rounding error.
    """
    query2, context_query2 = p.query.square(), p.context_query.square()
    key2, value2, context_key2 = (cleared(t, p.key_lengths).square() for t in (p.key, p.value, p.context_key))
    softmax, quasi, lam2 = maps.softmax, p.quasi_scale * maps.sigmoid, maps.gate.square()
    if maps.query_gate is not None:
        across = maps.key_gate.unsqueeze(-2 if p.column_gate else -1)
        lam2 = 1 + (p.beta * maps.query_gate.unsqueeze(-1)).square() + (p.gamma * across).square()

    # P and G also inherit the errors of the scores: dP = P (dT - sum P dT), dG = G (1 - G / alpha) dTc.
    bias2: Tensor | float = 0.0
    if p.attn_mask is not None and p.attn_mask.dtype != torch.bool:
        bias2 = p.attn_mask.double().masked_fill(hides(p.attn_mask), 0.0).square()
    scores2 = p.scale**2 * (query2 @ key2.transpose(-1, -2)) + bias2
    context2 = p.scale**2 * (context_query2 @ context_key2.transpose(-1, -2)) + bias2
    if p.quasi_bias is not None:
        context2 = context2 + p.quasi_bias.double().square().unsqueeze(-1)
    scores2_of_row = (softmax.square() * scores2).sum(-1, keepdim=True)
    softmax2 = softmax.square() * (1 + (1 - 2 * softmax) * scores2 + scores2_of_row)
    quasi2 = quasi.square() * (1 + (1 - maps.sigmoid).square() * context2)

    keep2 = 1.0 if maps.keep is None else maps.keep.square()
    softmax_rows2, quasi_rows2 = (_operand(keep2 * t, smallest) for t in (softmax2, lam2 * quasi2))
    squares = {
        "out": (softmax_rows2 + quasi_rows2) @ value2,
        "softmax_out": softmax_rows2 @ value2,
        "quasi_out": _operand(keep2 * quasi2, smallest) @ value2,
        "lambda": lam2.squeeze(-1),
    }
    if grad_out is None:
        return squares
    grad_out2 = grad_out.square()
    d_attention = keep2 * (grad_out2 @ value2.transpose(-1, -2))
    weighted = softmax2 * d_attention
    d_scores = _operand(weighted + softmax2 * weighted.sum(-1, keepdim=True), smallest) * p.scale**2
    # 1 - sigmoid is a difference too, and for large scores both of its terms are close to 1.
    d_context = _operand(lam2 * quasi2 * (1 + maps.sigmoid.square()) * d_attention, smallest) * p.scale**2
    d_gate = d_attention * quasi2
    squares |= {
        "grad query": d_scores @ key2,
        "grad key": d_scores.transpose(-1, -2) @ query2,
        "grad value": (softmax_rows2 + quasi_rows2).transpose(-1, -2) @ grad_out2,
        "grad context_query": d_context @ context_key2,
        "grad context_key": d_context.transpose(-1, -2) @ context_query2,
        "grad lambda": d_gate.sum(-1),
    }
    if p.gate_lambda is None:
        _add_gate_squares(squares, maps, p, d_gate, (grad_query_gate, grad_key_gate), rows)
    return squares


def _operand(squares: Tensor, smallest: float) -> Tensor:
    return torch.where(squares > 0, squares.clamp(min=smallest**2), 0.0) if smallest else squares


def _add_gate_squares(
    squares: dict[str, Tensor],
    maps: Maps,
    p: Problem,
    d_gate: Tensor,
    grad_gates: tuple[Tensor | None, Tensor | None],
    rows: Tensor | None,
) -> None:
    """Sets the entries of `squares` for the gradients of the gate's parameters.

    Also adds the gate's part to the entries for the gradients of query, key, context query and context key.
    """
    across = -2 if p.column_gate else -1
    of_query, of_key = (p.gate_query, p.gate_context_query), (p.gate_key, p.gate_context_key)
    sides = (
        ("query", p.beta, maps.query_gate, -1, (p.query, p.context_query), of_query),
        ("key", p.gamma, maps.key_gate, across, key_side(p, rows), of_key),
    )
    for (side, weight, lam, axis, operands, vectors), grad_gate in zip(sides, grad_gates):
        slope = (lam * (1 - lam)).square()
        logit = slope * (weight**2 * d_gate.sum(axis) + (0.0 if grad_gate is None else grad_gate.square()))
        at = rows if side == "key" and rows is not None and not p.column_gate else slice(None)
        for name, operand, vector in zip((side, f"context_{side}"), operands, vectors):
            per_row = vector.square().unsqueeze(1) if vector.dim() == 2 else vector.square()
            squares[f"grad {name}"][:, :, at] += logit.unsqueeze(-1) * per_row
            squares[f"grad gate.{name}"] = reduced(logit.unsqueeze(-1) * operand.square(), vector)
            bias = getattr(p, f"gate_{name}_bias")
            if bias is not None:
                squares[f"grad gate.{name}_bias"] = reduced(logit.unsqueeze(-1), bias)
