"""Rates over length, from rows. Needs matplotlib.

One panel for each head size and pass, in TFLOP/s by the rows' convention; the matrix peak of the same run as a line.
"""

import statistics
from collections.abc import Sequence

from benchmarks import rows
from benchmarks.analysis.plot_file import pyplot, save
from benchmarks.cases.case import BACKWARD, FORWARD, FORWARD_BACKWARD, FULL
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP
from benchmarks.rows.selection import require_one_origin

_STYLES = {
    EAGER: ("#9aa5b1", "o"),
    COMPILED: ("#9aa5b1", "s"),
    COMPOSITION: ("#6b7683", "^"),
    ONE_MAP: ("#6b7683", "v"),
    "triton": ("#0b6e6e", "o"),
    "cuda": ("#c8553d", "s"),
    "reference": ("#4a3f8f", "D"),
}
_PASSES = (FORWARD, BACKWARD, FORWARD_BACKWARD)


def draw(measured: Sequence[rows.Row], path: str) -> None:
    """Draws the rates; the suffix of `path` is the format.

    Raises:
        ValueError: there is no row to draw, or the rows come from more than one origin.
    """
    plt = pyplot()
    times = [r for r in measured if isinstance(r, rows.TimeRow) and r.lengths == FULL and not r.dropout]
    if not times:
        raise ValueError("no row of a time without dropout, of sequences of one length")
    require_one_origin(times)
    head_dims = sorted({row.head_dim for row in times})
    figure, axes = plt.subplots(
        len(head_dims), len(_PASSES), figsize=(4.2 * len(_PASSES), 1 + 2.8 * len(head_dims)), squeeze=False
    )
    for line, head_dim in zip(axes, head_dims):
        for axis, mode in zip(line, _PASSES):
            _panel(axis, [row for row in times if (row.head_dim, row.mode) == (head_dim, mode)])
            axis.set_title(f"D = {head_dim}, {mode}", fontsize=9)
        line[0].set_ylabel("TFLOP/s")
    shown = [name for name in _STYLES if any(row.provider == name for row in times)]
    lines = [plt.Line2D([], [], color=_STYLES[n][0], marker=_STYLES[n][1], markersize=4) for n in shown]
    figure.legend(lines, shown, loc="upper center", ncols=len(shown), frameon=False, fontsize=8)
    figure.text(0.5, 0.01, _footer(times[0]), ha="center", fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.04, 1, 0.95))
    save(figure, path)


def _panel(axis, here: list[rows.TimeRow]) -> None:
    for name, (colour, marker) in _STYLES.items():
        # Of one length the largest batch: it fills the GPU.
        best: dict[int, rows.TimeRow] = {}
        for row in sorted((r for r in here if r.provider == name), key=lambda r: r.batch * r.heads):
            best[row.length] = row
        points = sorted(best.items())
        if points:
            axis.plot([n for n, _ in points], [r.gflops / 1e3 for _, r in points], color=colour, marker=marker, ms=4)
    peaks = [row.matrix_peak_gflops for row in here if row.matrix_peak_gflops]
    if peaks:
        axis.axhline(statistics.median(peaks) / 1e3, color="#222222", linewidth=0.8, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)


def _footer(row: rows.TimeRow) -> str:
    machine, versions = row.origin.machine, row.origin.versions
    devices = machine.get("cuda_devices")
    where = devices[0]["name"] if isinstance(devices, list) and devices else machine["cpu"]
    return (
        f"{where}, {row.dtype}, torch {versions['torch']}, commit {row.origin.commit}, {row.origin.taken[:10]}; "
        f"dotted: a large product on the same GPU"
    )
