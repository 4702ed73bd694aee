"""Formats the study as Markdown tables and draws its figure."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from qacg_models.data import load_data
from qacg_models.metrics import METRIC_CLASSES, judge_for
from qacg_models.utils.atomic_files import atomic_write, staged_file
from qacg_models.utils.cells import markdown_table

from benchmarks.evidence.comparison import Draws
from benchmarks.many_aspects.arms import (
    ARMS,
    DATA,
    LAYERS,
    OTHER_SETTINGS,
    SEARCH_SEED,
    SEEDS,
    SETTINGS,
    TRIED_ON,
    Trial,
)
from benchmarks.many_aspects.results import Result, load
from benchmarks.many_aspects.speed import FILE as SPEED
from benchmarks.plot import pyplot, save

TABLES, FIGURE = "many_aspects.md", "many_aspects.svg"
REFERENCE = "pairs-0"
# The table has the differences to these arms.
COMPARED = (REFERENCE, "heads", "sum-5", "pairs-4", "pairs-5", "quasi-4-released", "quasi-4-best")
ASPECTS = "8"  # the number of aspects to which `cost` and the figure refer
# The lines of the figure: their names in the legend, and their arms by decreasing cost.
DRAWN = {
    "sentence pairs": [f"pairs-{k}" for k in range(LAYERS)],
    "quasi-attention": [f"quasi-{k}-best" for k in range(LAYERS)],
    "aspect added to all tokens": [f"sum-{k}" for k in range(LAYERS)],
    "aspect as one more token": [f"token-{k}" for k in range(LAYERS)],
    "a classifier for each aspect": ["heads"],
}


def write(data: Path, out: Path) -> str:
    """Writes the tables, and the figure if the speed has been measured; returns the tables as text."""
    results = load(out)
    speed = json.loads((out / SPEED).read_text(encoding="utf-8")) if (out / SPEED).exists() else None
    parts = ["### Strict accuracy on SentiHood's dev, one seed\n", dev_table(results, speed)]
    for name in DATA:
        if (table := test_table(name, results, data)) is not None:
            parts += [f"\n### {name}, test\n", table]
    if speed is not None:
        parts += ["\n### Texts per second by the number of aspects\n", speed_table(speed)]
        draw(results, speed, out / FIGURE)
    text = "\n".join(parts) + "\n"
    with atomic_write(out / TABLES) as handle:
        handle.write(text)
    return text


def dev_table(results: Mapping[str, Result], speed: Mapping | None) -> str:
    """A table of the selection metric on dev by arm and setting, in per cent, and of the cost of 8 aspects."""
    settings, lines = {**SETTINGS, **OTHER_SETTINGS}, []
    for name, arm in ARMS.items():
        found = [results.get(Trial(TRIED_ON, name, setting, 0).name) for setting in settings]
        if any(found):
            cells = ["" if one is None else f"{100 * one.dev:.1f}" for one in found]
            time = None if speed is None else cost(speed, name)
            lines.append([arm.title, *cells, "" if time is None else f"{time:.2f}"])
    header = ["arm", *(f"rate {one.rate:g}, new x {one.factor:g}" for one in settings.values()), "time of 8 aspects"]
    return markdown_table(header, lines, texts=1)


def cost(speed: Mapping, name: str) -> float | None:
    """The time that an arm takes for a text with 8 aspects, divided by that of sentence pairs; None if unmeasured."""
    rates = speed["texts_per_second"][ASPECTS]
    return rates[REFERENCE] / rates[name] if name in rates else None


def test_table(data: str, results: Mapping[str, Result], folder: Path) -> str | None:
    """A table of mean and standard deviation over seeds on test, with differences to COMPARED; None without results."""
    found: dict[str, list[Result]] = {}
    titles = {_row(name, setting): title for name, setting, title in _titles()}
    for one in results.values():
        if one.trial.data == data and one.scores is not None:
            found.setdefault(_row(one.trial.arm, one.trial.setting), []).append(one)
    if not found:
        return None
    dataset = load_data(folder / data, ("train", "test"), DATA[data])
    rows, metric = dataset.splits["test"], dataset.task.selection
    judges = {
        name: [judge_for(dataset.task, rows, np.exp(one.scores.astype(np.float64))) for one in each]
        for name, each in found.items()
    }
    draws = Draws(judges, [row.sentence for row in rows], [metric])
    others = [name for name in COMPARED if name in found]
    lines = []
    for name in (name for name in titles if name in found):
        deviation = draws.deviation(name, metric)
        text = f"{100 * draws.mean(name, metric):.1f}"
        cells = [text if math.isnan(deviation) else f"{text} ± {100 * deviation:.1f}"]
        for other in others:
            one = draws.difference(name, other, metric)
            cells.append(
                "" if name == other else f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
            )
        lines.append([titles[name], str(len(found[name])), *cells])
    title = METRIC_CLASSES[dataset.task.metrics].TITLES[metric]
    header = ["arm", "seeds", title, *(f"minus {titles[name]}" for name in others)]
    return markdown_table(header, lines, texts=1)


def _titles() -> Iterator[tuple[str, str, str]]:
    """Yields arm, setting and title of every row that a table of test results may have."""
    for name, arm in ARMS.items():
        for setting in SETTINGS:
            yield name, setting, arm.title
        for setting, one in OTHER_SETTINGS.items():
            yield name, setting, f"{arm.title}, new x {one.factor:g}"


def _row(arm: str, setting: str) -> str:
    return arm if setting in SETTINGS else f"{arm} {setting}"


def speed_table(speed: Mapping) -> str:
    """A table of texts per second, with the ratio to sentence pairs in brackets."""
    counts = speed["texts_per_second"]
    lines = [
        [
            ARMS[name].title,
            *(f"{rates[name]:.0f} ({rates[name] / rates[REFERENCE]:.1f})" for rates in counts.values()),
        ]
        for name in counts[ASPECTS]
    ]
    return markdown_table(["arm", *(f"{count} aspects" for count in counts)], lines, texts=1)


def draw(results: Mapping[str, Result], speed: Mapping, path: Path) -> None:
    """Draws accuracy against the time of 8 aspects, with a line for each way to ask about an aspect.

    The accuracy is on SentiHood's dev, the mean over the stored seeds, with its standard deviation as a bar. Points are
    labelled by the first layer that is computed for each aspect. Models without an aspect are not drawn.
    """
    figure = pyplot().figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for title, names in DRAWN.items():
        points = []
        for name in names:
            trials = (Trial(TRIED_ON, name, setting, seed) for setting in SETTINGS for seed in (SEARCH_SEED, *SEEDS))
            dev = [100 * results[trial.name].dev for trial in trials if trial.name in results]
            time = cost(speed, name)
            if dev and time is not None:
                points.append((time, np.mean(dev), np.std(dev, ddof=1) if dev[1:] else 0.0, ARMS[name].from_layer))
        if points:
            x, y, deviation, layers = zip(*points)
            axes.errorbar(x, y, deviation, fmt="o-", markersize=4, capsize=2, linewidth=1, label=title)
            for point in zip(layers, x, y):
                axes.annotate(str(point[0]), point[1:], textcoords="offset points", xytext=(4, 4), fontsize="x-small")
    axes.set_xlabel("time of a text with 8 aspects, sentence pairs = 1")
    axes.set_ylabel("strict accuracy on SentiHood's dev, %")
    axes.legend(fontsize="small", loc="lower center")
    with staged_file(path) as made:
        save(figure, str(made.path))
        made.publish()
