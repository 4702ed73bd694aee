"""Plots records: `python -m benchmarks.plot speed-ups FILES -o speed.svg`, or `rates` for a GPU. Requires matplotlib.

`speed-ups` draws bars of the speed-up over eager, one panel per dtype, pass and dropout. `rates` draws TFLOP/s over
length, counted by FLOP_CONVENTION, one panel per head size and pass. A dotted line is the rate of a large matrix
product in the same run.
"""

import argparse
import statistics
import sys
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from benchmarks import records
from benchmarks.cases import BACKWARD, FORWARD, FORWARD_BACKWARD, FULL, LAMBDA
from benchmarks.command import exit_status
from benchmarks.implementations.registry import COMPILED, COMPOSITION, EAGER, IMPLEMENTATIONS, ONE_MAP, ONE_MAP_ON_GPU


def pyplot():
    """Returns matplotlib's pyplot, set up so that text in SVG stays text and the same records give the same file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "qacg"})
    return plt


def save(figure, path: str) -> None:
    """Writes and closes a figure; the suffix of `path` is the format."""
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=160, metadata={"Date": None} if path.endswith(".svg") else None)
    plt.close(figure)


# Bars of speed-ups over eager.


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
    """Draws bars of the speed-up over eager, one panel per dtype, pass and dropout.

    Args:
        measured: records of one machine and commit.
        path: an .svg, .png or .pdf file.
        palette: LIGHT or DARK.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no record has a ratio to eager, or the records have more than one origin.
    """
    plt = pyplot()
    times = [one for one in measured if isinstance(one, records.TimeRecord) and one.ratio_to_eager is not None]
    times = [one for one in times if one.implementation != EAGER]
    if not times:
        raise ValueError("records: expected ratios to eager, got none. Measure eager in the same run too.")
    records.require_one_origin(times)
    names = [name for name in IMPLEMENTATIONS if any(one.implementation == name for one in times)]
    kernels = (name for name in names if name not in palette.greys)
    colours = palette.greys | dict(zip(kernels, palette.kernels))
    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    paper = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    with plt.rc_context(dict.fromkeys(ink, palette.ink) | dict.fromkeys(paper, palette.paper)):
        panels = _speedup_panels(times)
        columns = min(2, len(panels))
        lines = -(-len(panels) // columns)
        height = 0.9 + 3.0 * lines
        figure, axes = plt.subplots(lines, columns, figsize=(5.2 * columns, height), squeeze=False, sharey=True)
        for axis, (title, cases) in zip(axes.flat, panels.items()):
            _draw_bars(axis, cases, names, colours, palette)
            axis.set_title(title, fontsize=9)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for line in axes:
            line[0].set_ylabel("times as fast as eager")
        patches = [plt.Rectangle((0, 0), 1, 1, color=colours[name]) for name in names]
        figure.legend(patches, names, loc="upper center", ncols=len(names), frameon=False)
        footer = "\n".join(textwrap.wrap(" ".join([str(times[0].origin), *records.contention_note(times)]), 120))
        figure.text(0.5, 0.01, footer, ha="center", fontsize=7, color=palette.faint)
        figure.tight_layout(rect=(0, 0.5 / height, 1, 1 - 0.4 / height))
        save(figure, path)


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


# Rates over length.

_STYLES = {
    EAGER: ("#9aa5b1", "o"),
    COMPILED: ("#9aa5b1", "s"),
    COMPOSITION: ("#6b7683", "^"),
    ONE_MAP: ("#6b7683", "v"),
    **dict(zip(ONE_MAP_ON_GPU, (("#6b7683", "<"), ("#6b7683", ">"), ("#6b7683", "x")))),
    "triton": ("#0b6e6e", "o"),
    "cuda": ("#c8553d", "s"),
    "hopper": ("#8a6d1a", "^"),
    "reference": ("#4a3f8f", "D"),
}
_PASSES = (FORWARD, BACKWARD, FORWARD_BACKWARD)


def draw_rates(measured: Sequence[records.Record], path: str) -> None:
    """Draws counted TFLOP/s over length, one panel per head size and pass; the suffix of `path` is the format.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is no record to draw, or the records have more than one origin.
    """
    plt = pyplot()
    times = [
        one
        for one in measured
        if isinstance(one, records.TimeRecord) and one.lengths == FULL and one.gate == LAMBDA and not one.dropout
    ]
    if not times:
        raise ValueError("records: expected times of full lengths with a lambda tensor and without dropout, got none")
    records.require_one_origin(times)
    head_dims = sorted({one.head_dim for one in times})
    figure, axes = plt.subplots(
        len(head_dims), len(_PASSES), figsize=(4.2 * len(_PASSES), 1 + 2.8 * len(head_dims)), squeeze=False
    )
    for line, head_dim in zip(axes, head_dims):
        for axis, mode in zip(line, _PASSES):
            _draw_lines(axis, [one for one in times if (one.head_dim, one.mode) == (head_dim, mode)])
            axis.set_title(f"D = {head_dim}, {mode}", fontsize=9)
        line[0].set_ylabel("counted TFLOP/s")
    shown = [name for name in _STYLES if any(one.implementation == name for one in times)]
    lines = [plt.Line2D([], [], color=_STYLES[n][0], marker=_STYLES[n][1], markersize=4) for n in shown]
    figure.legend(lines, shown, loc="upper center", ncols=len(shown), frameon=False, fontsize=8)
    machine = times[0].origin.machine
    devices = machine.get("cuda_devices")
    where = devices[0]["name"] if isinstance(devices, list) and devices else machine["cpu"]
    footer = (
        f"{where}, {times[0].dtype}, torch {times[0].origin.versions['torch']}, commit {times[0].origin.commit}, "
        f"{times[0].origin.measured_at[:10]}; FLOP of two maps counted 6 L S D forward, 16 backward; dotted: a large "
        "matrix product on the same GPU"
    )
    figure.text(0.5, 0.01, footer, ha="center", fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.04, 1, 0.95))
    save(figure, path)


def _draw_lines(axis, here: list[records.TimeRecord]) -> None:
    for name, (colour, marker) in _STYLES.items():
        # Of several batches of the same length, the largest is drawn, which fills the GPU.
        best: dict[int, records.TimeRecord] = {}
        for one in sorted((r for r in here if r.implementation == name), key=lambda r: r.batch * r.heads):
            best[one.length] = one
        points = sorted(best.items())
        if points:
            axis.plot([n for n, _ in points], [r.gflops / 1e3 for _, r in points], color=colour, marker=marker, ms=4)
    peaks = [one.matrix_peak_gflops for one in here if one.matrix_peak_gflops]
    if peaks:
        axis.axhline(statistics.median(peaks) / 1e3, color="#222222", linewidth=0.8, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description="Draws plots of records.")
    parser.add_argument(
        "kind", choices=("speed-ups", "rates"), help="what to draw: the speed-up over eager, or counted TFLOP/s"
    )
    parser.add_argument("files", nargs="+", help="files of records of one machine and commit")
    parser.add_argument("-o", "--output", help="an .svg, .png or .pdf file (default: KIND.svg)")
    parser.add_argument("--dtypes", nargs="+", help="only these dtypes")
    parser.add_argument("--modes", nargs="+", help="only these passes")
    parser.add_argument("--dark", action="store_true", help="colours for a dark page (speed-ups only)")
    options = parser.parse_args(arguments)
    output = options.output or f"{options.kind}.svg"

    def draw() -> int:
        found = records.chosen(records.load(options.files), dtype=options.dtypes, mode=options.modes)
        if options.kind == "rates":
            draw_rates(found, output)
        else:
            draw_speedups(found, output, DARK if options.dark else LIGHT)
        return 0

    return exit_status(draw)


if __name__ == "__main__":
    sys.exit(main())
