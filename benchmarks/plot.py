"""Plots the speed-up over eager, one panel per dtype, pass and dropout: `python -m benchmarks.plot FILES -o speed.svg`.

Records of applications are plotted as rows a second. Requires matplotlib.
"""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from benchmarks import records
from benchmarks.command import exit_status
from benchmarks.implementations.registry import COMPILED, COMPOSITION, EAGER, IMPLEMENTATIONS, ONE_MAP


def pyplot():
    """Returns matplotlib's pyplot, set up so that text in SVG stays text and the same records give the same file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "qacg"})
    return plt


class Palette(NamedTuple):
    """The colours of a plot: grey for the baselines in `greys`, saturated for up to four other implementations."""

    greys: dict[str, str]
    kernels: tuple[str, ...]
    ink: str
    faint: str
    paper: str


LIGHT = Palette(
    {COMPILED: "#9aa5b1", COMPOSITION: "#b7bfc8", ONE_MAP: "#d5dae0"},
    ("#0b6e6e", "#c8553d", "#4a3f8f", "#8a6d1a"),
    ink="#222222",
    faint="#555555",
    paper="#ffffff",
)
# Colours for GitHub's dark theme.
DARK = Palette(
    {COMPILED: "#6b7682", COMPOSITION: "#57616c", ONE_MAP: "#434b54"},
    ("#3fc1b0", "#f08a70", "#a99cf0", "#d9b95a"),
    ink="#e6edf3",
    faint="#9da7b1",
    paper="#0d1117",
)


def draw_speedups(measured: Sequence[records.Record], path: str, palette: Palette = LIGHT) -> None:
    """Draws bars of the speed-up over eager, one panel per dtype, pass and dropout."""
    plt = pyplot()
    times = [one for one in measured if isinstance(one, records.TimeRecord) and one.ratio_to_eager is not None]
    times = [one for one in times if one.implementation != EAGER]
    if not times:
        raise ValueError("records: expected ratios to eager, got none. Measure eager in the same run too.")
    records.require_one_origin(times)
    names = [name for name in IMPLEMENTATIONS if any(one.implementation == name for one in times)]
    kernels = (name for name in names if name not in palette.greys)
    colours = palette.greys | dict(zip(kernels, palette.kernels))
    with plt.rc_context(_colours(palette)):
        panels = _speedup_panels(times)
        columns = min(2, len(panels))
        lines = -(-len(panels) // columns)
        size = (5.2 * columns, 0.9 + 3.0 * lines)
        figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, sharey=True)
        for axis, (title, cases) in zip(axes.flat, panels.items()):
            _draw_bars(axis, cases, names, colours, palette)
            axis.set_title(title, fontsize=9)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for line in axes:
            line[0].set_ylabel("times as fast as eager")
        patches = [plt.Rectangle((0, 0), 1, 1, color=colours[name]) for name in names]
        figure.legend(patches, names, loc="upper center", ncols=len(names), frameon=False)
        _finish(figure, times, path, palette, legend=0.4)
    plt.close(figure)


def draw_applications(measured: Sequence[records.ApplicationRecord], path: str, palette: Palette = LIGHT) -> None:
    """Draws a bar of the rows a second of every implementation, with quartiles."""
    plt = pyplot()
    records.require_one_origin(measured)
    with plt.rc_context(_colours(palette)):
        figure, axis = plt.subplots(figsize=(10.4, 1.1 + 0.34 * len(measured)))
        for place, one in enumerate(measured):
            own = one.implementation.startswith(records.OWN)
            axis.barh(place, one.rows_per_second, color=palette.kernels[0] if own else palette.greys[COMPILED])
            slowest, fastest = (1e3 * one.rows / ms for ms in (one.q3_ms, one.q1_ms))
            axis.plot([slowest, fastest], [place, place], color=palette.ink, linewidth=1)
            text = f" {one.rows_per_second:.0f}"
            axis.text(max(fastest, one.rows_per_second), place, text, va="center", fontsize=8)
        axis.set_yticks(range(len(measured)), [f"{one.implementation} ({one.ran})" for one in measured], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel("rows a second")
        axis.spines[["top", "right"]].set_visible(False)
        _finish(figure, measured, path, palette)
    plt.close(figure)


def _colours(palette: Palette) -> dict[str, str]:
    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    paper = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    return dict.fromkeys(ink, palette.ink) | dict.fromkeys(paper, palette.paper)


def _finish(figure, drawn: Sequence[records.Record], path: str, palette: Palette, legend: float = 0.0) -> None:
    """Adds the source of the records below the plot, and saves it; `legend` is the height at the top in inches."""
    notes = [str(drawn[0].origin), *records.state_note(drawn), *records.contention_note(drawn)]
    footer = "\n".join(textwrap.wrap(" ".join(notes), 120))
    figure.text(0.5, 0.01, footer, ha="center", fontsize=7, color=palette.faint)
    height = figure.get_figheight()
    figure.tight_layout(rect=(0, 0.5 / height, 1, 1 - legend / height))
    figure.savefig(path, dpi=160, metadata={"Date": None} if path.endswith(".svg") else None)


def _speedup_panels(times: Sequence[records.TimeRecord]) -> dict[str, dict[object, dict[str, records.TimeRecord]]]:
    """Groups records into panels: by title, then by case, then by implementation."""

    def title(one: records.TimeRecord) -> str:
        return f"{one.dtype}, {one.mode}" + (f", dropout {one.dropout:g}" if one.dropout else "")

    ordered = sorted(times, key=lambda one: (one.dtype != "float32", one.mode, one.dropout, one.length))
    return {key: records.by_case(list(group)) for key, group in groupby(ordered, title)}


def _draw_bars(axis, cases, names, colours, palette: Palette) -> None:
    here = [name for name in names if any(name in found for found in cases.values())]
    width = 0.8 / len(here)
    for place, found in enumerate(cases.values()):
        for index, name in enumerate(here):
            if name not in found:
                continue
            one = found[name]
            x = place + (index - (len(here) - 1) / 2) * width
            axis.bar(x, one.ratio_to_eager, 0.92 * width, color=colours[name])
            axis.plot([x, x], [one.ratio_q1, one.ratio_q3], color=palette.ink, linewidth=1)
            top = max(one.ratio_to_eager, one.ratio_q3)
            axis.text(x, top, f"{one.ratio_to_eager:.1f}", ha="center", va="bottom", fontsize=7)
    axis.axhline(1, color=palette.ink, linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(cases)), [case.short_name for case in cases], fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.12)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plot", description="Draws bars of the speed-up over eager, or of rows a second."
    )
    parser.add_argument("files", nargs="+", help="files of records of one machine and commit")
    parser.add_argument("-o", "--output", default="speed.svg", help="an .svg, .png or .pdf file (default: %(default)s)")
    parser.add_argument("--dtypes", nargs="+", help="only these dtypes")
    parser.add_argument("--modes", nargs="+", help="only these passes")
    parser.add_argument("--dark", action="store_true", help="colours for a dark page")
    options = parser.parse_args(arguments)

    def draw() -> int:
        found = records.chosen(records.load(options.files), dtype=options.dtypes, mode=options.modes)
        applications = [one for one in found if isinstance(one, records.ApplicationRecord)]
        palette = DARK if options.dark else LIGHT
        if applications:
            draw_applications(applications, options.output, palette)
        else:
            draw_speedups(found, options.output, palette)
        return 0

    return exit_status(draw)


if __name__ == "__main__":
    sys.exit(main())
