"""Bars of speed-ups over eager, from rows.

Draws what the rows hold and measures nothing. Needs matplotlib.
"""

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from benchmarks import rows
from benchmarks.analysis.plot_file import pyplot, save
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP
from benchmarks.providers.registry import PROVIDERS
from benchmarks.rows.selection import cases_of, disturbance_note, require_one_origin


class Palette(NamedTuple):
    """Colours of a plot: strong for the kernels, grey for the baselines; lightness alone tells them apart."""

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
# GitHub's dark page.
DARK = Palette(
    {COMPILED: "#6b7682", COMPOSITION: "#57616c", ONE_MAP: "#434b54"},
    ("#3fc1b0", "#f08a70", "#a99cf0", "#d9b95a"),
    ink="#e6edf3",
    faint="#9da7b1",
    paper="#0d1117",
)


def draw(measured: Sequence[rows.Row], path: str, palette: Palette = LIGHT) -> None:
    """Draws one panel per type, pass and dropout, the shapes along it.

    Args:
        measured: benchmark records of one machine and commit.
        path: an .svg, .png or .pdf file.
        palette: LIGHT or DARK.

    Raises:
        ValueError: no row has a ratio to eager, or the rows come from more than one origin.
    """
    plt = pyplot()
    times = [row for row in measured if isinstance(row, rows.TimeRow) and row.ratio_to_eager is not None]
    times = [row for row in times if row.provider != EAGER]
    if not times:
        raise ValueError("no row has a ratio to eager; run eager beside the others")
    require_one_origin(times)
    names = [name for name in PROVIDERS if any(row.provider == name for row in times)]
    kernels = (name for name in names if name not in palette.greys)
    colours = palette.greys | dict(zip(kernels, palette.kernels))
    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    paper = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    with plt.rc_context(dict.fromkeys(ink, palette.ink) | dict.fromkeys(paper, palette.paper)):
        _draw(plt, times, names, colours, palette, path)


def _draw(plt, times, names, colours, palette: Palette, path: str) -> None:
    panels = _panels(times)

    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(5.2 * columns, 0.9 + 3.0 * lines), squeeze=False, sharey=True)
    for axis, (title, cases) in zip(axes.flat, panels.items()):
        _panel(axis, title, cases, names, colours, palette)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for line in axes:
        line[0].set_ylabel("times as fast as eager")
    patches = [plt.Rectangle((0, 0), 1, 1, color=colours[name]) for name in names]
    figure.legend(patches, names, loc="upper center", ncols=len(names), frameon=False)
    footer = " ".join([rows.source_line(times[0].origin), *disturbance_note(times)])
    figure.text(0.5, 0.01, _wrapped(footer), ha="center", fontsize=7, color=palette.faint)
    figure.tight_layout(rect=(0, 0.5 / (0.9 + 3.0 * lines), 1, 1 - 0.4 / (0.9 + 3.0 * lines)))
    save(figure, path)


def _panels(times: Sequence[rows.TimeRow]) -> dict[str, dict[object, dict[str, rows.TimeRow]]]:
    """Cases by what they share besides the shape."""

    def title(row: rows.TimeRow) -> str:
        return f"{row.dtype}, {row.mode}" + (f", dropout {row.dropout:g}" if row.dropout else "")

    ordered = sorted(times, key=lambda row: (row.dtype != "float32", row.mode, row.dropout, row.length))
    return {key: cases_of(list(group)) for key, group in groupby(ordered, title)}


def _panel(axis, title, cases, names, colours, palette: Palette) -> None:
    here = [name for name in names if any(name in by_provider for by_provider in cases.values())]
    width = 0.8 / len(here)
    for place, by_provider in enumerate(cases.values()):
        for index, name in enumerate(here):
            row = by_provider.get(name)
            if row is None:
                continue
            x = place + (index - (len(here) - 1) / 2) * width
            height = row.ratio_to_eager
            axis.bar(x, height, 0.92 * width, color=colours[name])
            axis.plot([x, x], [row.ratio_q1, row.ratio_q3], color=palette.ink, linewidth=1)
            top = max(height, row.ratio_q3)
            axis.text(x, top, f"{height:.1f}", ha="center", va="bottom", fontsize=7)
    axis.axhline(1, color=palette.ink, linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(cases)), [case.place for case in cases], fontsize=8)
    axis.set_title(title, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.12)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 120))
