"""Time over length, head size, batch, heads and threads.

Dots are medians with their quartiles, lines the model; over threads they are the time of one thread shared out evenly.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks import rows
from benchmarks.analysis.cost_model import Model
from benchmarks.analysis.plot_file import pyplot, save
from benchmarks.analysis.scaling_report import models, of_one_thread_number, report, select, times_by_threads
from benchmarks.cases.case import BACKWARD, FORWARD, FORWARD_BACKWARD, FULL, Case
from benchmarks.rows.selection import at_most_threads, disturbance_note

_COLOURS = ("#0b6e6e", "#c8553d", "#4a3f8f", "#8a6d1a", "#6b7683")
_DRAWN = (FORWARD, BACKWARD, FORWARD_BACKWARD)
_SERIES = len(_COLOURS)
Series = dict[object, list[rows.TimeRow]]


def _per_row(row: rows.TimeRow) -> float:
    """Microseconds for a row of one head, from milliseconds of the call."""
    return 1e3 / (row.batch * row.heads * row.length)


def _grouped(measured: Sequence[rows.TimeRow], by: str, along: str) -> Series:
    """Rows by the value of one field; along another the fullest machine: the largest batch times heads."""
    best: dict[tuple, rows.TimeRow] = {}
    for row in sorted(measured, key=lambda row: row.batch * row.heads):
        best[getattr(row, by), getattr(row, along)] = row
    groups: Series = {}
    for (value, _), row in sorted(best.items()):
        groups.setdefault(value, []).append(row)
    lines = sorted(value for value, rows_of_one in groups.items() if len(rows_of_one) > 1)
    step = max(1, -(-len(lines) // _SERIES))
    return {value: groups[value] for value in lines[::step]}


def _alone(measured: Sequence[rows.TimeRow], along: str) -> Series:
    """The rows that differ in one field alone, of all such sets the largest."""
    groups: dict[Case, list[rows.TimeRow]] = {}
    for row in measured:
        groups.setdefault(replace(row.case, shape=row.case.shape._replace(**{along: 0})), []).append(row)
    case, largest = max(groups.items(), key=lambda item: len(item[1]))
    if len(largest) < 2:
        return {}
    name = ",".join("·" if field == along else str(size) for field, size in case.shape._asdict().items())
    return {f"({name})": sorted(largest, key=lambda row: getattr(row, along))}


def draw(measured: Sequence[rows.Row], provider: str, dtype: str, path: str) -> list[str]:
    """Draws a line of panels for each pass, and returns the report; the suffix of `path` is the format.

    Raises:
        ValueError: see `select`, or no pass has cases enough for the model.
    """
    times = select(measured, provider, dtype)
    by_mode = models(times)
    if not by_mode:
        raise ValueError(f"{provider!r} in {dtype} has too few cases or lengths in every pass to fit the model")
    plt = pyplot()
    shown = [mode for mode in _DRAWN if mode in by_mode]
    figure, axes = plt.subplots(len(shown), 5, figsize=(19, 0.9 + 3.1 * len(shown)), squeeze=False)
    for line, mode in zip(axes, shown):
        here = [row for row in times if row.mode == mode and row.lengths == FULL]
        now, model = of_one_thread_number(here), by_mode[mode]
        _panel(line[0], _grouped(now, "head_dim", "length"), "length", model, _per_row, "D = {}")
        _panel(line[1], _grouped(now, "length", "head_dim"), "head_dim", model, _per_row, "L = {}")
        _panel(line[2], _alone(now, "batch"), "batch", model, lambda row: 1.0, "{}")
        _panel(line[3], _alone(now, "heads"), "heads", model, lambda row: 1.0, "{}")
        _threads_panel(line[4], here)
        line[0].set_ylabel(f"{mode}\nus for a row of one head", fontsize=8)
        line[2].set_ylabel("ms", fontsize=8)
    for axis, what in zip(axes[0], ("length L", "head size D", "batch B", "heads H", "threads")):
        axis.set_title(f"over {what}", fontsize=9)
    source = rows.source_line(at_most_threads(times)[0].origin)
    footer = " ".join([f"{provider}, {dtype}.", source, *disturbance_note(times)])
    figure.text(0.5, 0.01, footer, ha="center", fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    save(figure, path)
    return report(times, by_mode)


def _panel(axis, series: Series, along: str, model: Model, unit: Callable[[rows.TimeRow], float], label: str) -> None:
    """Dots and the model's lines of each series; `unit` turns a call's milliseconds into what is shown."""
    for (value, measured), colour in zip(series.items(), _COLOURS):
        places = [getattr(row, along) for row in measured]
        _dots(axis, places, measured, unit, colour, label.format(value))
        axis.plot(places, [1e3 * model.seconds(row.case) * unit(row) for row in measured], color=colour, linewidth=1)
    _finish(axis, sorted({getattr(row, along) for measured in series.values() for row in measured}))


def _threads_panel(axis, times: Sequence[rows.TimeRow]) -> None:
    shared = times_by_threads(times)
    for (case, by_threads), colour in zip(shared.items(), _COLOURS):
        places = sorted(by_threads)
        measured = [by_threads[threads] for threads in places]
        _dots(axis, places, measured, lambda row: 1.0, colour, str(case.shape))
        one = measured[0].median_ms * places[0]
        axis.plot(places, [one / threads for threads in places], color=colour, linewidth=1)
    _finish(axis, sorted({threads for by_threads in shared.values() for threads in by_threads}))


def _dots(axis, places, measured, unit, colour: str, label: str) -> None:
    axis.plot(places, [row.median_ms * unit(row) for row in measured], "o", ms=4, color=colour, label=label)
    for place, row in zip(places, measured):
        axis.plot([place, place], [row.q1_ms * unit(row), row.q3_ms * unit(row)], color=colour, linewidth=1)


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
