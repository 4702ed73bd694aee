"""The cost model of MATH.md ("Work"), with constants fitted to measured times.

    t = call + element * B H L D + entry * B H L S + flop * F B H L S D

The four terms are:

- call: the fixed cost of a call;
- element: reading, packing and writing the B H L rows of D elements;
- entry: computing each entry of the two attention maps, without matrix products;
- flop: matrix products, with F FLOP per entry and feature by FLOP_CONVENTION.

If the sequences have different lengths, B L and B L S are sums over the sequences.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from benchmarks import records
from benchmarks.cases import FULL, Case

_TERMS = 4


@dataclass(frozen=True)
class Model:
    """The constants of one implementation in one dtype, pass and thread count; none is negative.

    Attributes:
        call: seconds of a call.
        element: seconds per element of a row.
        entry: seconds per attention entry, without its products.
        flop: seconds per floating-point operation of the products.
        flops_per_entry: F, the FLOP per entry and feature in the fitted cases.
        error: median of |model / measured - 1| over the fitted cases.
        cases: number of fitted cases.
        head_dims: number of head sizes among the fitted cases. With a single one, `entry` and `flop` cannot be
            separated.
    """

    call: float
    element: float
    entry: float
    flop: float
    flops_per_entry: int
    error: float
    cases: int
    head_dims: int

    def seconds(self, case: Case) -> float:
        """Predicts the time of a case that has the dtype, pass and thread count of the fitted cases."""
        return sum(self.parts(case).values())

    def parts(self, case: Case) -> dict[str, float]:
        """The time of each term in seconds, by name: call, elements, entries and products."""
        constants = {"call": self.call, "elements": self.element, "entries": self.entry, "products": self.flop}
        return {name: c * x for (name, c), x in zip(constants.items(), _features(case, self.flops_per_entry))}

    def __str__(self) -> str:
        rate = f"{1e-9 / self.flop:.4g} GFLOP/s" if self.flop else "nothing"
        apart = "" if self.head_dims > 1 else ", one head size cannot separate products from entries"
        return (
            f"call {1e6 * self.call:.3g} us, element {1e9 * self.element:.3g} ns, entry {1e9 * self.entry:.3g} ns, "
            f"products {rate}; median error {self.error:.0%} over {self.cases} cases{apart}"
        )


def _features(case: Case, flops_per_entry: int) -> tuple[float, ...]:
    """Returns the factors of `call`, `element`, `entry` and `flop` in a case's time."""
    _, heads, _, head_dim = case.shape
    elements = heads * head_dim * sum(case.sequence_lengths)
    return 1.0, float(elements), case.products / head_dim, float(flops_per_entry * case.products)


def too_few(cases: Collection[Case]) -> str | None:
    """Returns the reason why `cases` do not determine the constants; None if they do.

    A single head size gives None, although it cannot separate `entry` from `flop` (`Model.head_dims`).
    """
    if len(cases) <= _TERMS:
        return f"cases: expected more than {_TERMS}, the number of constants, got {len(cases)}"
    lengths = {case.shape.length for case in cases}
    if len(lengths) < 2:
        return f"lengths: expected at least two, got {lengths}. One length cannot separate `element` from `flop`."
    return None


def fit(measured: Sequence[records.TimeRecord]) -> Model:
    """Fits the non-negative constants to measured times, by least squares of the relative error.

    Args:
        measured: records with full lengths and without dropout, all of the same implementation, dtype, pass, device,
            thread count and FLOP per entry.

    Raises:
        ValueError: there are too few cases or lengths, or the records differ in implementation, dtype, pass, device,
            thread count or FLOP per entry, or a record has dropout or lengths that are not full.
    """
    kinds = {
        (one.implementation, one.dtype, one.mode, one.device, one.origin.machine.get("threads"), one.flops_per_entry)
        for one in measured
    }
    if len(kinds) > 1 or any(one.dropout or one.lengths != FULL for one in measured):
        raise ValueError(
            "records: expected the same implementation, dtype, mode, device, thread count and FLOP per entry in all "
            f"records, the lengths 'full' and no dropout, got {sorted(map(str, kinds))}"
        )
    latest = {one.case: one for one in measured}
    why = too_few(latest)
    if why:
        raise ValueError(why)
    flops = measured[0].flops_per_entry
    times = torch.tensor([1e-3 * one.median_ms for one in latest.values()], dtype=torch.float64)
    features = torch.tensor([_features(case, flops) for case in latest], dtype=torch.float64)
    constants = _non_negative(features / times[:, None])
    errors = (features @ constants / times - 1).abs()
    head_dims = len({case.shape.head_dim for case in latest})
    return Model(*constants.tolist(), flops, errors.median().item(), len(latest), head_dims)


def _non_negative(relative: torch.Tensor) -> torch.Tensor:
    """Returns the x >= 0 that minimises the norm of relative @ x - 1.

    Solves the least-squares problem for every set of terms; the other terms are 0.

    Args:
        relative: the features of each case divided by its measured time, (cases, terms) float64.

    Returns:
        The constants, (terms,) float64.
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
