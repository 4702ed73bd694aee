"""Times of one case, providers in turn, as rows."""

from benchmarks import rows
from benchmarks.cases.case import Case
from benchmarks.cases.inputs import Inputs, draw_sets
from benchmarks.measure import timing, verify
from benchmarks.measure.ceiling import Product
from benchmarks.measure.disturbance import Disturbance
from benchmarks.providers.names import EAGER
from benchmarks.providers.registry import PROVIDERS, Call, Provider, chosen


def measure_case(
    case: Case, names: list[str], effort: timing.Effort, source: rows.Origin, product: Product | None = None
) -> list[rows.TimeRow]:
    """Checks that the providers agree on the case, times them in turn, and returns a row for each.

    With a product, whose rate is the ceiling, each figure's share of it is known.

    Raises:
        benchmarks.measure.verify.ParityError: a provider computes something else.
        RuntimeError, ValueError: a provider does not take the case, or there is none of that name.
    """
    providers = chosen(names, case)
    calls = {name: provider.build(case) for name, provider in providers.items()}
    sets = draw_sets(case)
    quasi = {name: call for name, call in calls.items() if providers[name].computes_quasi}
    verify.require_agreement(quasi, case, sets[0])
    return time_calls(case, calls, sets, effort, source, product)


def time_calls(
    case: Case,
    calls: dict[str, Call],
    sets: list[Inputs],
    effort: timing.Effort,
    source: rows.Origin,
    product: Product | None = None,
) -> list[rows.TimeRow]:
    """Times calls that are known to be right, in turn, the product among them; a row for each call."""
    steps = {name: timing.make_step(call, case, sets) for name, call in calls.items()}
    if product is not None:
        steps[product.name] = product.step
    disturbance = Disturbance()
    taken = timing.interleave(steps, effort)
    peak = None
    if product is not None:
        peak = product.gflops(rows.Spread.of(taken.pop(product.name)).median)
    providers = {name: PROVIDERS[name] for name in calls}
    return time_rows(case, providers, taken, disturbance.share(), source, peak)


def time_rows(
    case: Case,
    providers: dict[str, Provider],
    taken: dict[str, list[float]],
    others_share: float | None,
    source: rows.Origin,
    matrix_peak_gflops: float | None = None,
) -> list[rows.TimeRow]:
    """Rows of one case from the seconds that `timing.interleave` returned."""
    found = []
    for name, seconds in taken.items():
        spread = rows.Spread.of([1e3 * s for s in seconds])
        ratio = paired = None
        if EAGER in taken:
            ratio = 1e3 * rows.Spread.of(taken[EAGER]).median / spread.median
            paired = rows.Spread.of([eager / own for eager, own in zip(taken[EAGER], seconds)])
        flops_per_cell = providers[name].flops_per_cell(case)
        found.append(
            rows.TimeRow(
                origin=source,
                **rows.case_fields(case),
                provider=name,
                median_ms=rows.figure(spread.median),
                min_ms=rows.figure(spread.least),
                q1_ms=rows.figure(spread.q1),
                q3_ms=rows.figure(spread.q3),
                repeats=len(seconds),
                others_share=others_share if others_share is None else round(others_share, 3),
                flops_per_cell=flops_per_cell,
                gflops=rows.figure(flops_per_cell * case.products / spread.median / 1e6),
                ratio_to_eager=ratio and rows.figure(ratio),
                ratio_q1=paired and rows.figure(paired.q1),
                ratio_q3=paired and rows.figure(paired.q3),
                matrix_peak_gflops=matrix_peak_gflops and rows.figure(matrix_peak_gflops),
            )
        )
    return found
