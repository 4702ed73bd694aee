"""The error rule: how far a result may be from the float64 result.

An element's error is its distance from the float64 result, in units of that element's rounding scale
(`squared_scales`): the size that its terms have before they cancel. An element near zero, a short row and a gate bias
summed over ten thousand rows are therefore compared alike. For the largest error of a tensor and for the root mean
square of its errors,

    error(backend) <= factor * error(eager PyTorch in the same dtype)
                      + BAND * eps(dtype) + SUM_BAND * eps(float32)

with a factor of 2 for outputs and 3 for gradients. Half of the dtype's smallest number is no error, because results
are rounded to multiples of it. Elements whose scale is zero (masked out, by construction) must be exactly zero.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

OUTPUT_FACTOR = 2.0
GRADIENT_FACTOR = 3.0
# Eager may hit a value exactly by luck (a row with one key, a tensor of few elements); a correctly rounded
# backend is then still within a few units in the last place of each element's terms.
BAND = 4.0
# Backends add in float32, in orders of their own. A plain sum of n terms is off by about sqrt(n) / 5 units,
# and by three times that at worst: 16 is a sum of 700 terms.
SUM_BAND = 16.0
# The exact result is float64 too, so a float64 backend is compared with its equal, not with the truth.
FLOAT64_BAND = 256.0


class Verdict(NamedTuple):
    """How far one tensor is from exact, and how far it may be; both in units of the rounding scale."""

    error: float
    budget: float
    rms_error: float
    rms_budget: float
    bad_share: float
    worst: tuple[int, ...]

    @property
    def ok(self) -> bool:
        return self.error <= self.budget and self.rms_error <= self.rms_budget


def relative_errors(got: Tensor, exact: Tensor, scale: Tensor) -> Tensor:
    """The distance of each element from `exact`, in units of `scale`; infinite where it must be zero and is not."""
    scale = torch.maximum(scale, exact.abs())
    # Below eps of the largest, an element is judged by its absolute error: exp may flush it to zero.
    floor = torch.finfo(got.dtype).eps * scale.max() if scale.numel() else 0.0
    distance = (got.double() - exact).abs()
    # Half of the step between the dtype's smallest numbers is no error of a sum's: 3e-8 in float16, nothing in others.
    info = torch.finfo(got.dtype)
    beyond = (distance - info.smallest_normal * info.eps / 2).clamp(min=0)
    errors = torch.where(beyond == 0, 0.0, beyond / scale.clamp(min=floor))
    errors = torch.where((scale == 0) & (distance != 0), torch.inf, errors)
    return errors.nan_to_num(nan=torch.inf, posinf=torch.inf)


class Tally:
    """Errors of one tensor, added up part by part, for tensors that are compared in parts.

    Args:
        name: the tensor's; the names of gradients begin with "grad" and have the gradients' factor.
        dtype: of the result.
        eps: of the operands of the products where it is not the dtype's own (TF32).
        sum_band: in place of SUM_BAND.
    """

    def __init__(self, name: str, dtype: torch.dtype, eps: float | None = None, sum_band: float = SUM_BAND) -> None:
        self.factor = GRADIENT_FACTOR if name.startswith("grad") else OUTPUT_FACTOR
        if dtype == torch.float64:
            self.band = FLOAT64_BAND * torch.finfo(torch.float64).eps
        else:
            self.band = BAND * (eps or torch.finfo(dtype).eps) + sum_band * torch.finfo(torch.float32).eps
        self.count = 0
        self.largest = self.largest_of_eager = self.squares = self.squares_of_eager = 0.0

    def add(self, got: Tensor, eager: Tensor, exact: Tensor, scale: Tensor) -> int | None:
        """Adds a part; returns the flat index of its largest error where that is the largest so far."""
        errors, of_eager = relative_errors(got, exact, scale), relative_errors(eager, exact, scale)
        if not errors.numel():
            return None
        of_eager = of_eager.masked_fill(of_eager.isinf(), 0.0)  # where eager overflows, it earns no allowance
        found = torch.stack([errors.max(), of_eager.max(), errors.square().sum(), of_eager.square().sum()]).tolist()
        first, self.count = not self.count, self.count + errors.numel()
        self.largest_of_eager = max(self.largest_of_eager, found[1])
        self.squares += found[2]
        self.squares_of_eager += found[3]
        if not first and found[0] <= self.largest:
            return None
        self.largest = found[0]
        return int(errors.argmax())

    def verdict(self) -> Verdict:
        """The verdict on all parts; where the worst element is, the caller knows."""
        count = max(self.count, 1)
        return Verdict(
            error=self.largest,
            budget=self.factor * self.largest_of_eager + self.band,
            rms_error=(self.squares / count) ** 0.5,
            rms_budget=self.factor * (self.squares_of_eager / count) ** 0.5 + self.band,
            bad_share=0.0,
            worst=(),
        )


def judge(name: str, got: Tensor, eager: Tensor, exact: Tensor, scale: Tensor | None = None) -> Verdict:
    """Applies the error rule to one tensor.

    Args:
        name: the tensor's; the names of gradients begin with "grad" and have the gradients' factor.
        got, eager: the backend's and eager PyTorch's result in the same dtype.
        exact: the float64 result.
        scale: the tensor's rounding scale, in float64; the size of `exact` when None.

    Raises:
        AssertionError: `got` has another shape than `exact`.
    """
    if got.shape != exact.shape:
        raise AssertionError(f"{name}: expected shape {tuple(exact.shape)}, got {tuple(got.shape)}")
    if scale is None:
        scale = exact.square().mean().sqrt().expand_as(exact) if exact.numel() else exact
    tally = Tally(name, got.dtype)
    worst = tally.add(got.detach(), eager.detach(), exact, scale)
    verdict = tally.verdict()
    if worst is None:
        return verdict
    errors = relative_errors(got.detach(), exact, scale)
    return verdict._replace(
        bad_share=(errors > verdict.budget).double().mean().item(),
        worst=tuple(int(n) for n in torch.unravel_index(torch.tensor(worst), errors.shape)),
    )


class Maps(Protocol):
    """Maps of a dense call, in float64: P, the plain sigmoid, lambda, and the two gates of MATH.md, eq. 4."""

    softmax: Tensor
    sigmoid: Tensor
    gate: Tensor
    query_gate: Tensor | None
    key_gate: Tensor | None


class Terms(NamedTuple):
    """What `squared_scales` needs beside the maps, all in float64.

    Attributes:
        wide: query, key, value, context_query, context_key, (B, H, L or S, D).
        vectors: gate vectors of the query and of the key side, (D) or (H, D), in the operator's order; or None.
        key_rows: key and context_key where a row gate reads them; those of `wide` when None.
        bias: an additive mask, 0 where it hides; 0.0 without one.
        keep: squares of Z, eq. 7.
        grad_out: (B, H, L, D).
        grad_gates: squares of the upstream gradients of the two gates.
        smallest: the number below which operands of products have an absolute rounding error.
    """

    wide: tuple[Tensor, ...]
    vectors: tuple[Tensor, ...] | None
    bias: Tensor | float
    keep: Tensor | float
    scale: float
    quasi_scale: float
    beta: float
    gamma: float
    column_gate: bool
    grad_out: Tensor | None = None
    grad_gates: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)
    key_rows: tuple[Tensor, Tensor] | None = None
    smallest: float = 0.0


def _per_row(vector: Tensor) -> Tensor:
    return vector.unsqueeze(1) if vector.dim() == 2 else vector


def squared_scales(maps: Maps, terms: Terms) -> dict[str, Tensor]:
    """For every result of a dense call, the square of its rounding scale: sum a^2 b^2 for each sum of products a b.

    Independent rounding errors of the terms add up to about eps times its root. A lambda that the kernel computes is
    itself such a sum, 1 - beta lq - gamma lk. Gradients are among the results where `terms.grad_out` is given; those
    of gate vectors and biases are (B, H, D) and (B, H), not yet summed over what shares them.
    """
    query2, key2, value2, context_query2, context_key2 = (t.square() for t in terms.wide)
    softmax, quasi, lam2 = maps.softmax, terms.quasi_scale * maps.sigmoid, maps.gate.square()
    if maps.query_gate is not None:
        across = maps.key_gate.unsqueeze(-2 if terms.column_gate else -1)
        lam2 = 1 + (terms.beta * maps.query_gate.unsqueeze(-1)).square() + (terms.gamma * across).square()

    # exp and the sigmoid pass on the errors of the scores, whose terms count too: dP = P (dT - sum P dT).
    bias2 = terms.bias**2
    scores2 = terms.scale**2 * (query2 @ key2.transpose(-1, -2)) + bias2
    context2 = terms.scale**2 * (context_query2 @ context_key2.transpose(-1, -2)) + bias2
    scores2_of_row = (softmax.square() * scores2).sum(-1, keepdim=True)
    softmax2 = softmax.square() * (1 + (1 - 2 * softmax) * scores2 + scores2_of_row)
    quasi2 = quasi.square() * (1 + (1 - maps.sigmoid).square() * context2)

    softmax_rows2, quasi_rows2 = (_operand(terms.keep * t, terms.smallest) for t in (softmax2, lam2 * quasi2))
    squares = {
        "out": (softmax_rows2 + quasi_rows2) @ value2,
        "softmax_out": softmax_rows2 @ value2,
        "quasi_out": _operand(terms.keep * quasi2, terms.smallest) @ value2,
        "log_sum": 1 + scores2_of_row.squeeze(-1),
        "lambda": lam2.squeeze(-1),
    }
    if terms.grad_out is None:
        return squares
    grad_out2 = terms.grad_out.square()
    d_attention = terms.keep * (grad_out2 @ value2.transpose(-1, -2))
    weighted = softmax2 * d_attention
    d_scores = _operand(weighted + softmax2 * weighted.sum(-1, keepdim=True), terms.smallest) * terms.scale**2
    # 1 - sigmoid is a difference too: far out on the right, where it vanishes, its terms are both one.
    d_context = _operand(lam2 * quasi2 * (1 + maps.sigmoid.square()) * d_attention, terms.smallest) * terms.scale**2
    d_gate = d_attention * quasi2
    squares |= {
        "grad query": d_scores @ key2,
        "grad key": d_scores.transpose(-1, -2) @ query2,
        "grad value": (softmax_rows2 + quasi_rows2).transpose(-1, -2) @ grad_out2,
        "grad context_query": d_context @ context_key2,
        "grad context_key": d_context.transpose(-1, -2) @ context_query2,
        "grad lambda": d_gate.sum(-1),
    }
    return squares if terms.vectors is None else squares | _of_gate(maps, terms, d_gate, squares)


def _operand(squares: Tensor, smallest: float) -> Tensor:
    return torch.where(squares > 0, squares.clamp(min=smallest**2), 0.0) if smallest else squares


def _of_gate(maps: Maps, terms: Terms, d_gate: Tensor, squares: dict[str, Tensor]) -> dict[str, Tensor]:
    """The squares of what depends on gate vectors; "added key" is per row of `terms.key_rows` where those are given."""
    query, key, _, context_query, context_key = terms.wide
    if terms.key_rows is not None:
        key, context_key = terms.key_rows
    found = {}
    for number, (side, weight, lam, axis, operands) in enumerate((
        ("query", terms.beta, maps.query_gate, -1, (query, context_query)),
        ("key", terms.gamma, maps.key_gate, -2 if terms.column_gate else -1, (key, context_key)),
    )):  # fmt: skip
        slope = (lam * (1 - lam)).square()
        logit = slope * (weight**2 * d_gate.sum(axis) + terms.grad_gates[number])
        for name, operand, vector in zip(
            (side, f"context_{side}"), operands, terms.vectors[2 * number : 2 * number + 2]
        ):
            found[f"added {name}"] = logit.unsqueeze(-1) * _per_row(vector.square())
            found[f"grad gate.{name}"] = (logit.unsqueeze(-1) * operand.square()).sum(-2)
        found[f"grad gate.{side}_bias"] = logit.sum(-1)
    return found
