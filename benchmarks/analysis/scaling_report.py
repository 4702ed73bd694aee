"""How cost grows, against the model: which rows, the models of them, and what they say in words."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks import rows
from benchmarks.analysis.cost_model import Model, fit, too_few
from benchmarks.cases.case import FULL, MAIN_SHAPES, MODES, PACKED, Case
from benchmarks.rows.selection import at_most_threads, require_one_origin, threads_of


def of_one_thread_number(measured: Iterable[rows.TimeRow]) -> list[rows.TimeRow]:
    """The rows with the most threads, of each case the latest."""
    return list({row.case: row for row in at_most_threads(list(measured))}.values())


def select(measured: Sequence[rows.Row], provider: str, dtype: str) -> list[rows.TimeRow]:
    """The times of a provider in a type, without dropout.

    Raises:
        ValueError: there are none, or they differ in more than threads.
    """
    found = [
        row
        for row in measured
        if isinstance(row, rows.TimeRow) and (row.provider, row.dtype) == (provider, dtype) and not row.dropout
    ]
    if not found:
        raise ValueError(f"no row has times of {provider!r} in {dtype}")
    apart_from_threads = [
        replace(row, origin=replace(row.origin, machine=row.origin.machine | {"threads": None})) for row in found
    ]
    require_one_origin(apart_from_threads)
    return found


def models(times: Sequence[rows.TimeRow]) -> dict[str, Model]:
    """The model of each pass that has cases enough, at the most threads."""
    found = {}
    for mode in MODES:
        here = of_one_thread_number(row for row in times if row.mode == mode and row.lengths == FULL)
        if too_few([row.case for row in here]) is None:
            found[mode] = fit(here)
    return found


def report(times: Sequence[rows.TimeRow], by_mode: dict[str, Model]) -> list[str]:
    """The constants, where the time goes, the model's word on packed sentences, and how well threads share the work."""
    lines = [f"{mode}: {model}" for mode, model in by_mode.items()]
    dtype = times[0].dtype
    lines += [_where(model, Case(shape, dtype, mode)) for mode, model in by_mode.items() for shape in MAIN_SHAPES]
    for row in of_one_thread_number(row for row in times if row.lengths == PACKED):
        if row.mode in by_mode:
            predicted = 1e3 * by_mode[row.mode].seconds(row.case)
            lines.append(f"{row.case}: {row.median_ms:.4g} ms, by the model {predicted:.4g} ms")
    for case, by_threads in times_by_threads(times).items():
        most = max(by_threads)
        if 1 in by_threads and most > 1:
            efficiency = by_threads[1].median_ms / by_threads[most].median_ms / most
            lines.append(f"{case}: {most} threads do {efficiency:.0%} of {most} times what one does")
    return lines


def _where(model: Model, case: Case) -> str:
    parts, total = model.parts(case), model.seconds(case)
    return f"{case} by the model: " + ", ".join(f"{name} {part / total:.0%}" for name, part in parts.items())


def times_by_threads(times: Iterable[rows.TimeRow]) -> dict[Case, dict[int, rows.TimeRow]]:
    found: dict[Case, dict[int, rows.TimeRow]] = {}
    for row in times:
        if row.lengths == FULL:
            found.setdefault(row.case, {})[threads_of(row)] = row
    return {case: by_threads for case, by_threads in found.items() if len(by_threads) > 1}
