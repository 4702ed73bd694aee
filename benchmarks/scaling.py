"""Compares times with the cost model: `python -m benchmarks.scaling FILES -o scaling.svg`. Requires matplotlib.

Reads records of `benchmarks.suite` of one machine and commit, with all thread counts. Prints the model's constants, the
share of each term in the model's time for the main shapes, and the efficiency of threads. It also prints the model's
predictions for packed sentences, which were not used for the fit.

Draws the time over length, head size, batch, heads and threads. Dots are medians with their quartiles. Lines are the
times of the model. In the panel over threads, lines show ideal scaling from the measured time with the fewest threads.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from benchmarks import records
from benchmarks.cases import BACKWARD, DTYPES, FORWARD, FORWARD_BACKWARD, FULL, MAIN_SHAPES, MODES, PACKED, Case
from benchmarks.command import exit_status
from benchmarks.cost_model import Model, fit, too_few
from benchmarks.implementations.registry import IMPLEMENTATIONS
from benchmarks.plot import pyplot, save

_COLOURS = ("#0b6e6e", "#c8553d", "#4a3f8f", "#8a6d1a", "#6b7683")
_DRAWN = (FORWARD, BACKWARD, FORWARD_BACKWARD)
Series = dict[object, list[records.TimeRecord]]


def select(measured: Sequence[records.Record], implementation: str, dtype: str) -> list[records.TimeRecord]:
    """Selects the times of an implementation in a dtype, without dropout.

    Raises:
        ValueError: there are none, or their origins differ in more than the number of threads.
    """
    found = [
        one
        for one in measured
        if isinstance(one, records.TimeRecord)
        and (one.implementation, one.dtype) == (implementation, dtype)
        and not one.dropout
    ]
    if not found:
        raise ValueError(
            f"records: expected times of {implementation!r} in {dtype} without dropout, got none. Pass files with such "
            "records."
        )
    records.require_one_origin(
        [replace(one, origin=replace(one.origin, machine=one.origin.machine | {"threads": None})) for one in found]
    )
    return found


def with_most_threads(measured: Iterable[records.TimeRecord]) -> list[records.TimeRecord]:
    """The latest record of each case, among the records with the largest number of threads on their machine."""
    return list({one.case: one for one in records.at_most_threads(list(measured))}.values())


def models(times: Sequence[records.TimeRecord]) -> dict[str, Model]:
    """Fits a model for each pass that has enough cases, to the records with the most threads."""
    found = {}
    for mode in MODES:
        here = with_most_threads(one for one in times if one.mode == mode and one.lengths == FULL)
        if too_few([one.case for one in here]) is None:
            found[mode] = fit(here)
    return found


def times_by_threads(times: Iterable[records.TimeRecord]) -> dict[Case, dict[int, records.TimeRecord]]:
    """Returns the latest record of each case and thread count.

    Only cases with full lengths that were measured with at least two thread counts are included.
    """
    found: dict[Case, dict[int, records.TimeRecord]] = {}
    for one in times:
        if one.lengths == FULL:
            found.setdefault(one.case, {})[records.threads_of(one)] = one
    return {case: by_threads for case, by_threads in found.items() if len(by_threads) > 1}


def report(times: Sequence[records.TimeRecord], by_mode: dict[str, Model]) -> list[str]:
    """Lines of text: constants, shares of the terms, predictions for packed sentences, and efficiency of threads."""
    lines = [f"{mode}: {model}" for mode, model in by_mode.items()]
    dtype = times[0].dtype
    lines += [_shares(model, Case(shape, dtype, mode)) for mode, model in by_mode.items() for shape in MAIN_SHAPES]
    for one in with_most_threads(one for one in times if one.lengths == PACKED):
        if one.mode in by_mode:
            predicted = 1e3 * by_mode[one.mode].seconds(one.case)
            lines.append(f"{one.case}: measured {one.median_ms:.4g} ms, predicted {predicted:.4g} ms")
    for case, by_threads in times_by_threads(times).items():
        most = max(by_threads)
        if 1 in by_threads and most > 1:
            efficiency = by_threads[1].median_ms / by_threads[most].median_ms / most
            lines.append(f"{case}: {most} threads have an efficiency of {efficiency:.0%}")
    return lines


def _shares(model: Model, case: Case) -> str:
    parts, total = model.parts(case), model.seconds(case)
    return f"{case} by the model: " + ", ".join(f"{name} {part / total:.0%}" for name, part in parts.items())


def draw(measured: Sequence[records.Record], implementation: str, dtype: str, path: str) -> list[str]:
    """Draws a row of panels for each pass, and returns the report; the suffix of `path` is the format.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there are no times to select, their origins differ, or no pass has enough cases for the model.
    """
    times = select(measured, implementation, dtype)
    by_mode = models(times)
    if not by_mode:
        raise ValueError(
            f"records: expected enough cases and lengths of {implementation!r} in {dtype} to fit the model, got too "
            "few. Pass files with more cases."
        )
    plt = pyplot()
    shown = [mode for mode in _DRAWN if mode in by_mode]
    figure, axes = plt.subplots(len(shown), 5, figsize=(19, 0.9 + 3.1 * len(shown)), squeeze=False)
    for line, mode in zip(axes, shown):
        here = [one for one in times if one.mode == mode and one.lengths == FULL]
        now, model = with_most_threads(here), by_mode[mode]
        _panel(line[0], _grouped(now, "head_dim", "length"), "length", model, _per_query, "D = {}")
        _panel(line[1], _grouped(now, "length", "head_dim"), "head_dim", model, _per_query, "L = {}")
        _panel(line[2], _varying(now, "batch"), "batch", model, lambda one: 1.0, "{}")
        _panel(line[3], _varying(now, "heads"), "heads", model, lambda one: 1.0, "{}")
        _threads_panel(line[4], here)
        line[0].set_ylabel(f"{mode}\nus per query row and head", fontsize=8)
        line[2].set_ylabel("ms", fontsize=8)
    for axis, what in zip(axes[0], ("length L", "head size D", "batch B", "heads H", "threads")):
        axis.set_title(f"over {what}", fontsize=9)
    source = str(records.at_most_threads(times)[0].origin)
    footer = " ".join([f"{implementation}, {dtype}.", source, *records.contention_note(times)])
    figure.text(0.5, 0.01, footer, ha="center", fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    save(figure, path)
    return report(times, by_mode)


def _per_query(record: records.TimeRecord) -> float:
    """The factor that converts milliseconds per call to microseconds per query row and head."""
    return 1e3 / (record.batch * record.heads * record.length)


def _grouped(measured: Sequence[records.TimeRecord], by: str, along: str) -> Series:
    """Groups records into series by the field `by`; a series has one record for each value of the field `along`.

    Of several records with the same values of both fields, a series has the record with the largest batch times heads.
    Series of one record are left out. If there are more series than colours, evenly spaced series are kept.
    """
    best: dict[tuple, records.TimeRecord] = {}
    for one in sorted(measured, key=lambda one: one.batch * one.heads):
        best[getattr(one, by), getattr(one, along)] = one
    groups: Series = {}
    for (value, _), one in sorted(best.items()):
        groups.setdefault(value, []).append(one)
    lines = sorted(value for value, group in groups.items() if len(group) > 1)
    step = max(1, -(-len(lines) // len(_COLOURS)))
    return {value: groups[value] for value in lines[::step]}


def _varying(measured: Sequence[records.TimeRecord], along: str) -> Series:
    """The largest group of records that differ in the field `along` only, as a single series."""
    groups: dict[Case, list[records.TimeRecord]] = {}
    for one in measured:
        groups.setdefault(replace(one.case, shape=one.case.shape._replace(**{along: 0})), []).append(one)
    case, largest = max(groups.items(), key=lambda item: len(item[1]))
    if len(largest) < 2:
        return {}
    name = ",".join("·" if field == along else str(size) for field, size in case.shape._asdict().items())
    return {f"({name})": sorted(largest, key=lambda one: getattr(one, along))}


def _panel(
    axis, series: Series, along: str, model: Model, unit: Callable[[records.TimeRecord], float], label: str
) -> None:
    """Draws dots and the model's line of each series; `unit` returns the factor for a record's milliseconds."""
    for (value, measured), colour in zip(series.items(), _COLOURS):
        places = [getattr(one, along) for one in measured]
        _dots(axis, places, measured, unit, colour, label.format(value))
        axis.plot(places, [1e3 * model.seconds(one.case) * unit(one) for one in measured], color=colour, linewidth=1)
    _finish(axis, sorted({getattr(one, along) for measured in series.values() for one in measured}))


def _threads_panel(axis, times: Sequence[records.TimeRecord]) -> None:
    shared = times_by_threads(times)
    for (case, by_threads), colour in zip(shared.items(), _COLOURS):
        places = sorted(by_threads)
        measured = [by_threads[threads] for threads in places]
        _dots(axis, places, measured, lambda one: 1.0, colour, str(case.shape))
        single = measured[0].median_ms * places[0]
        axis.plot(places, [single / threads for threads in places], color=colour, linewidth=1)
    _finish(axis, sorted({threads for by_threads in shared.values() for threads in by_threads}))


def _dots(axis, places, measured, unit, colour: str, label: str) -> None:
    axis.plot(places, [one.median_ms * unit(one) for one in measured], "o", ms=4, color=colour, label=label)
    for place, one in zip(places, measured):
        axis.plot([place, place], [one.q1_ms * unit(one), one.q3_ms * unit(one)], color=colour, linewidth=1)


def _finish(axis, places: list[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xticks(places, [str(place) for place in places], fontsize=7)
    axis.margins(y=0.2)
    axis.tick_params(axis="y", which="both", labelsize=7)
    if places:
        axis.legend(fontsize=7, frameon=False)
    else:
        axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes, fontsize=8, color="#555555")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description="Compares times with the cost model."
    )
    parser.add_argument("files", nargs="+", help="files of records of one machine and commit")
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS, default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("-o", "--output", default="scaling.svg", help="an .svg, .png or .pdf file")
    options = parser.parse_args(arguments)

    def run() -> int:
        print("\n".join(draw(records.load(options.files), options.implementation, options.dtype, options.output)))
        return 0

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
