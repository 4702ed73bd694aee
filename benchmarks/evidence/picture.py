"""The differences to BERT as a picture: a point and its interval for each model and metric, a panel for each set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qacg_models.utils.atomic_files import made_whole

from benchmarks.evidence.comparison import BASELINES, Comparison
from benchmarks.evidence.plan import BERT, CONTESTANTS, DATA


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Writes the picture; the baselines, which are far away, are left to the table."""
    from matplotlib.figure import Figure

    tall = max(len(one.titles) for one in comparisons)
    figure = Figure(figsize=(5.2 * len(comparisons), 1.2 + 0.55 * tall), layout="constrained")
    panels = figure.subplots(1, len(comparisons), squeeze=False)[0]
    for axes, comparison in zip(panels, comparisons):
        names = [name for name in comparison.compared if name not in BASELINES]
        for place, name in enumerate(names):
            for number, metric in enumerate(comparison.titles):
                one = comparison.draws.difference(name, BERT, metric)
                height = number + 0.22 * (place - (len(names) - 1) / 2)
                axes.plot([100 * one.low, 100 * one.high], [height, height], color=f"C{place}", linewidth=2)
                label = CONTESTANTS[name].title if number == 0 else None
                axes.plot(100 * one.mean, height, "o", color=f"C{place}", markersize=5, label=label)
        axes.axvline(0, color="0.4", linewidth=1)
        axes.set_yticks(range(len(comparison.titles)), list(comparison.titles.values()))
        axes.invert_yaxis()
        axes.set_title(DATA[comparison.data].title)
        axes.set_xlabel(f"points above {CONTESTANTS[BERT].title}, 95 % interval")
        axes.legend(fontsize="small")
    with made_whole(path) as made:
        figure.savefig(made.path)
        made.publish()
