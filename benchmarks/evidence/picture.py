"""The differences as a picture: a point and its interval for each pair of models and metric, a panel for each set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qacg_models.utils.atomic_files import staged_file

from benchmarks.analysis.plot_file import pyplot, save
from benchmarks.evidence.comparison import Comparison
from benchmarks.evidence.plan import DATA


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Writes the picture; the baselines, which are far away, are left to the table."""
    tall = max(len(one.titles) for one in comparisons)
    figure = pyplot().figure(figsize=(6 * len(comparisons), 2 + 0.55 * tall), layout="constrained")
    panels = figure.subplots(1, len(comparisons), squeeze=False)[0]
    for axes, comparison in zip(panels, comparisons):
        pairs = comparison.compared_models
        for place, (name, other) in enumerate(pairs):
            for number, metric in enumerate(comparison.titles):
                one = comparison.draws.difference(name, other, metric)
                height = number + 0.18 * (place - (len(pairs) - 1) / 2)
                axes.plot([100 * one.low, 100 * one.high], [height, height], color=f"C{place}", linewidth=2)
                label = f"{comparison.names[name]} minus {comparison.names[other]}" if number == 0 else None
                axes.plot(100 * one.mean, height, "o", color=f"C{place}", markersize=5, label=label)
        axes.axvline(0, color="0.4", linewidth=1)
        axes.set_yticks(range(len(comparison.titles)), list(comparison.titles.values()))
        axes.invert_yaxis()
        axes.set_title(DATA[comparison.data].title)
        axes.set_xlabel("difference in points, 95 % interval")
    most = max(panels, key=lambda axes: len(axes.get_legend_handles_labels()[0]))
    figure.legend(
        *most.get_legend_handles_labels(), loc="outside lower center", ncols=len(comparisons), fontsize="small"
    )
    with staged_file(path) as made:
        save(figure, str(made.path))
        made.publish()
