"""Formats the study as Markdown tables and draws its figure."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qacg_models.metrics import titles_of
from qacg_models.utils.atomic_files import staged_file
from qacg_models.utils.cells import markdown_table, percent

from benchmarks.evidence.comparison import BASELINES, LEVEL, Comparison
from benchmarks.evidence.results import Result
from benchmarks.evidence.study import (
    CHECKS,
    CONTESTANTS,
    DATA,
    HYPOTHESES,
    SETTINGS,
    chosen_settings,
    evaluated,
    searches,
)
from benchmarks.plot import pyplot, save

NOT_YET = "not yet measured"
MINUTES = "CPU minutes"
NOTES = {
    "aspect_macro_f1": (
        "Aspect macro-F1: precision and recall of the aspects with an opinion in each pair of sentence and target that"
        " has one; F1 of their averages over these pairs."
    )
}
GATE_COLUMNS = {
    "lambda_mean": "+.3f",
    "lambda_deviation": ".3f",
    "lambda_below_0": ".0%",
    "weight": ".2f",
    "deviation_over_keys": ".1%",
}


def metrics_table(comparison: Comparison) -> str:
    """A table of mean and standard deviation over seeds of every metric, in per cent, and minutes of training."""
    header = ["model", "setting", "seeds", *comparison.titles.values(), MINUTES]
    lines, processor = [], _commonest_processor(_trainings(comparison))
    for name, contestant in CONTESTANTS.items():
        found = comparison.results.get(name, ())
        if not found:
            continue
        setting = ", ".join(dict.fromkeys(one.trial.setting for one in found))
        lines.append(
            [contestant.title, setting, str(len(found)), *_metrics(comparison, name), _minutes(found, processor)]
        )
    lines += [[title, "", "", *_metrics(comparison, name), ""] for name, title in BASELINES.items()]
    return markdown_table(header, lines, texts=2)


def differences_table(comparison: Comparison) -> str:
    """A table of differences in percentage points, with 95 % intervals and the share of repeats above 0."""
    lines = []
    for name, other in comparison.compared:
        cells = []
        for metric in comparison.titles:
            one = comparison.draws.difference(name, other, metric)
            cells.append(f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}], {one.above:.0%}")
        lines.append([comparison.names[name], comparison.names[other], *cells])
    return markdown_table(["difference of", "minus", *comparison.titles.values()], lines, texts=2) if lines else NOT_YET


def notes(comparison: Comparison) -> str:
    """The notes under the two tables of a data set."""
    about_metrics = [NOTES[name] for name in comparison.titles if name in NOTES]
    text = (
        "In %: mean ± standard deviation over seeds, of the checkpoint that is best on dev. Differences in points, with"
        f" the interval of {LEVEL:.0%} of {comparison.draws.repeats:,} draws of test sentences (the same for both) and"
        " of seeds, and the share of draws above 0."
    )
    return " ".join([text, _about_minutes(_trainings(comparison)), *about_metrics])


def settings_table(results: Mapping[str, Result]) -> str:
    """A table of the metric on dev of every setting, in per cent; that of the chosen setting is bold."""
    best = chosen_settings(_dev(results))
    cells: dict[str, dict[str, str]] = {}
    for trial in searches():
        found = results.get(trial.name)
        text = NOT_YET if found is None else f"{100 * found.dev:.1f}"
        text = f"**{text}**" if best.get(trial.contestant) == trial.setting else text
        cells.setdefault(trial.contestant, {})[trial.setting] = text
    settings = list(SETTINGS) + [name for own in cells.values() for name in own if name not in SETTINGS]
    settings = list(dict.fromkeys(settings))
    lines = [[CONTESTANTS[name].title, *(own.get(setting, "") for setting in settings)] for name, own in cells.items()]
    return markdown_table(["model", *settings], lines, texts=1)


def checks_table(results: Mapping[str, Result]) -> str:
    """A table of the runs with other arithmetic (CHECKS), and of the usual run with the same seed.

    The columns are the metrics on test in per cent, and the minutes of training.
    """
    checks = [one for one in evaluated(chosen_settings(_dev(results))) if one.check in CHECKS]
    if not checks or (plain := replace(checks[0], check=None)).name not in results:
        return NOT_YET
    named = {"as in the table": plain} | {str(one.check): one for one in checks}
    found_records = {
        title: results[trial.name].record if trial.name in results else None for title, trial in named.items()
    }
    metrics = found_records["as in the table"]["metrics"]["test"]
    titles = titles_of(metrics)
    found = [results[trial.name] for trial in named.values() if trial.name in results]
    lines, processor = [], _commonest_processor(found)
    for title, record in found_records.items():
        if record is None:
            lines.append([title, *[NOT_YET] * (len(titles) + 1)])
        else:
            values = [f"{100 * record['metrics']['test'][name]:.1f}" for name in titles]
            lines.append([title, *values, _minutes([results[named[title].name]], processor)])
    header = [f"QACG-BERT, seed {plain.seed}", *titles.values(), MINUTES]
    return f"{markdown_table(header, lines, texts=1)}\n\n{_about_minutes(found)}"


def variants_table(comparison: Comparison | None) -> str:
    """A table of test metrics of the variants of QACG-BERT, in per cent, and differences to the published variant."""
    if comparison is None:
        return NOT_YET
    lines = [
        [comparison.names[name], str(len(found)), *_metrics(comparison, name)]
        for name, found in comparison.results.items()
    ]
    metrics = markdown_table(["QACG-BERT", "seeds", *comparison.titles.values()], lines, texts=1)
    return f"{metrics}\n\n{differences_table(comparison)}"


def gates_table(results: Mapping[str, Result]) -> str:
    """A table of statistics of the quasi-attention map on dev, by data set, model and layer: means over seeds."""
    found: dict[tuple[str, str], list[list[dict]]] = {}
    for one in results.values():
        if one.gates is not None and one.trial.check not in CHECKS:
            title = CONTESTANTS[one.trial.contestant].title
            if one.trial.check is not None:
                title += f", {HYPOTHESES[one.trial.check].title}"
            found.setdefault((DATA[one.trial.data].title, title), []).append(one.gates)
    lines = []
    for titles, by_seed in found.items():
        for number, layer in enumerate(zip(*by_seed), 1):
            mean = {name: statistics.fmean(one[name] for one in layer) for name in GATE_COLUMNS}
            values = [f"{mean[name]:{form}}" for name, form in GATE_COLUMNS.items()]
            lines.append([*titles, str(number), str(len(by_seed)), *values])
    header = ["data set", "model", "layer", "seeds", *(name.replace("_", " ") for name in GATE_COLUMNS)]
    return markdown_table(header, lines, texts=2) if lines else NOT_YET


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Plots the mean difference of each pair of models and its 95 % interval, by metric, one panel per data set.

    Pairs with a baseline are left out.
    """
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


def _dev(results: Mapping[str, Result]) -> dict[str, float]:
    return {name: one.dev for name, one in results.items() if one.trial.is_search}


def _trainings(comparison: Comparison) -> list[Result]:
    return [one for found in comparison.results.values() for one in found]


def _commonest_processor(found: Iterable[Result]) -> str | None:
    """The CPU of most of the training runs whose CPU time is known; None if there is no such run.

    Times of different CPUs are not comparable.
    """
    counted = Counter(one.processor for one in found if one.processor_seconds is not None)
    return max(counted, key=lambda name: counted[name]) if counted else None


def _minutes(found: Iterable[Result], processor: str | None) -> str:
    known = [one for one in found if one.processor_seconds is not None and one.processor == processor]
    return f"{statistics.median(one.processor_seconds for one in known) / 60:.1f}" if known else "n/a"


def _about_minutes(found: Sequence[Result]) -> str:
    processor = _commonest_processor(found)
    if processor is None:
        return "Minutes: no training ran without interruption."
    return f"Minutes: the median of trainings on {processor} without interruption."


def _metrics(comparison: Comparison, name: str) -> list[str]:
    cells = []
    for metric in comparison.titles:
        mean, deviation = comparison.draws.mean(name, metric), comparison.draws.deviation(name, metric)
        text = percent(mean)
        cells.append(text if math.isnan(deviation) else f"{text} ± {100 * deviation:.1f}")
    return cells
