"""What a call costs by the model of MATH.md ("Work"): its terms, and their constants from measured times.

    t = call + element * B H L D + cell * B H L S + flop * F B H L S D

A call has a fixed part, reads, packs and writes rows of D elements, makes two maps a cell at a time, and multiplies:
F FLOP per cell and feature by the convention of the rows. Over sequences of different lengths L and L S are sums.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from benchmarks import rows
from benchmarks.cases.case import FULL, Case

_TERMS = 4


@dataclass(frozen=True)
class Model:
    """The constants of one provider in one type, pass and thread number; none is negative.

    Attributes:
        call: seconds of a call.
        element: seconds for an element of a row.
        cell: seconds for a cell, beside its products.
        flop: seconds for a floating-point operation of the products.
        flops_per_cell: F, for which the constants hold.
        error: median of |model / measured - 1| over the cases of the fit.
        cases: how many there were.
        head_dims: how many head sizes these had: of one alone, cells and products cannot be told apart.
    """

    call: float
    element: float
    cell: float
    flop: float
    flops_per_cell: int
    error: float
    cases: int
    head_dims: int

    def seconds(self, case: Case) -> float:
        """The model's time for a case of the same type, pass and thread number."""
        return sum(self.parts(case).values())

    def parts(self, case: Case) -> dict[str, float]:
        """Seconds of each term: where the time of a case goes, by the model."""
        constants = {"call": self.call, "elements": self.element, "cells": self.cell, "products": self.flop}
        return {name: c * x for (name, c), x in zip(constants.items(), _features(case, self.flops_per_cell))}

    def __str__(self) -> str:
        rate = f"{1e-9 / self.flop:.4g} GFLOP/s" if self.flop else "nothing"
        apart = "" if self.head_dims > 1 else ", products and cells not told apart by one head size"
        return (
            f"call {1e6 * self.call:.3g} us, element {1e9 * self.element:.3g} ns, cell {1e9 * self.cell:.3g} ns, "
            f"products {rate}; off by {self.error:.0%} in the median of {self.cases} cases{apart}"
        )


def _features(case: Case, flops_per_cell: int) -> tuple[float, ...]:
    """What each constant is multiplied by."""
    _, heads, _, head_dim = case.shape
    elements = heads * head_dim * sum(case.sequence_lengths)
    return 1.0, float(elements), case.products / head_dim, float(flops_per_cell * case.products)


def too_few(cases: Collection[Case]) -> str | None:
    """Why these cases do not settle the constants; None: they do, but for head sizes (see `Model.head_dims`)."""
    if len(cases) <= _TERMS:
        return f"cases: got {len(cases)}, wanted more than the {_TERMS} constants"
    lengths = {case.shape.length for case in cases}
    if len(lengths) < 2:
        return f"lengths: got {lengths} alone, wanted two at least: elements and cells grow alike with anything else"
    return None


def fit(measured: Sequence[rows.TimeRow]) -> Model:
    """The constants with the least squared relative error, none negative.

    Args:
        measured: rows of one provider, type, pass and thread number, of sequences of one length, without dropout.

    Raises:
        ValueError: the cases are too few, or there are rows of other kinds among them.
    """
    kinds = {
        (row.provider, row.dtype, row.mode, row.device, row.origin.machine.get("threads"), row.flops_per_cell)
        for row in measured
    }
    if len(kinds) > 1 or any(row.dropout or row.lengths != FULL for row in measured):
        raise ValueError(f"rows: got {sorted(map(str, kinds))}, wanted one kind, of full length and without dropout")
    latest = {row.case: row for row in measured}
    why = too_few(latest)
    if why:
        raise ValueError(why)
    flops = measured[0].flops_per_cell
    times = torch.tensor([1e-3 * row.median_ms for row in latest.values()], dtype=torch.float64)
    features = torch.tensor([_features(case, flops) for case in latest], dtype=torch.float64)
    constants = _non_negative(features / times[:, None])
    errors = (features @ constants / times - 1).abs()
    head_dims = len({case.shape.head_dim for case in latest})
    return Model(*constants.tolist(), flops, errors.median().item(), len(latest), head_dims)


def _non_negative(relative: torch.Tensor) -> torch.Tensor:
    """The x >= 0 with the least |relative x - 1|: the best of all choices of which elements are 0.

    Args:
        relative: (cases, terms) float64.

    Returns:
        (terms,) float64.
    """
    scales = relative.norm(dim=0)
    scaled, ones = relative / scales, torch.ones(len(relative), dtype=torch.float64)
    best, least = torch.zeros(relative.shape[1], dtype=torch.float64), ones.norm()
    for count in range(1, relative.shape[1] + 1):
        for chosen in combinations(range(relative.shape[1]), count):
            columns = list(chosen)
            found = torch.linalg.lstsq(scaled[:, columns], ones[:, None], driver="gelsd").solution[:, 0]
            residual = (scaled[:, columns] @ found - ones).norm()
            if (found >= 0).all() and residual < least:
                best, least = torch.zeros_like(best), residual
                best[columns] = found
    return best / scales
