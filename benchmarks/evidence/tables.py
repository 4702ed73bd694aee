"""The evidence as Markdown: figures over seeds, differences, settings, and what other arithmetic changes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from qacg_models.metrics import METRIC_CLASSES

from benchmarks.evidence.comparison import BASELINES, Comparison
from benchmarks.evidence.intervals import LEVEL
from benchmarks.evidence.plan import (
    CHECKS,
    CONTESTANTS,
    DATA,
    HYPOTHESES,
    SETTINGS,
    chosen_settings,
    judged,
    searches,
)
from benchmarks.evidence.results import Result

NOT_YET = "not yet measured"
MINUTES = "minutes of a core"
ABOUT = {
    "aspect_macro_f1": (
        "Aspect macro-F1: precision and recall of having an opinion, in each pair of sentence and target that has one;"
        " F1 of their two averages over these pairs."
    )
}
SHOWN_OF_GATES = {
    "lambda_mean": "+.3f",
    "lambda_deviation": ".3f",
    "lambda_below_0": ".0%",
    "weight": ".2f",
    "deviation_over_keys": ".1%",
}


def of_figures(comparison: Comparison) -> str:
    """Mean and deviation over seeds of every metric, in per cent, and minutes."""
    header = ["model", "setting", "seeds", *comparison.titles.values(), MINUTES]
    lines, processor = [], _commonest_processor(_trainings(comparison))
    for name, told in CONTESTANTS.items():
        found = comparison.results.get(name, ())
        if not found:
            continue
        setting = ", ".join(dict.fromkeys(one.trial.setting for one in found))
        lines.append([told.title, setting, str(len(found)), *_figures(comparison, name), _minutes(found, processor)])
    lines += [[title, "", "", *_figures(comparison, name), ""] for name, title in BASELINES.items()]
    return _markdown(header, lines, texts=2)


def of_differences(comparison: Comparison) -> str:
    """How much better one is than another, in points, with 95 % intervals and the share of repeats above 0."""
    lines = []
    for name, other in comparison.compared:
        cells = []
        for metric in comparison.titles:
            one = comparison.draws.difference(name, other, metric)
            cells.append(f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}], {one.above:.0%}")
        lines.append([comparison.names[name], comparison.names[other], *cells])
    return _markdown(["how much better is", "than", *comparison.titles.values()], lines, texts=2) if lines else NOT_YET


def notes(comparison: Comparison) -> str:
    """What stands under the two tables of a set."""
    of_metrics = [ABOUT[name] for name in comparison.titles if name in ABOUT]
    said = (
        "In %: mean ± standard deviation over seeds, of the checkpoint that is best on dev. Differences in points, with"
        f" the interval that holds {LEVEL:.0%} of {comparison.draws.repeats:,} draws of test sentences (the same for"
        " both) and of seeds, and the share of draws above 0."
    )
    return " ".join([said, _about_minutes(_trainings(comparison)), *of_metrics])


def of_settings(results: Mapping[str, Result]) -> str:
    """What every setting reached on dev, in per cent; the one that was chosen is bold."""
    best = chosen_settings(_dev(results))
    cells: dict[str, dict[str, str]] = {}
    for trial in searches():
        found = results.get(trial.name)
        text = NOT_YET if found is None else f"{100 * found.dev:.1f}"
        text = f"**{text}**" if best.get(trial.contestant) == trial.setting else text
        cells.setdefault(trial.contestant, {})[trial.setting] = text
    settings = list(SETTINGS) + [name for of in cells.values() for name in of if name not in SETTINGS]
    settings = list(dict.fromkeys(settings))
    lines = [[CONTESTANTS[name].title, *(of.get(setting, "") for setting in settings)] for name, of in cells.items()]
    return _markdown(["model", *settings], lines, texts=1)


def of_checks(results: Mapping[str, Result]) -> str:
    """One seed with other arithmetic, beside the same seed of the table: every metric in per cent, and its minutes."""
    checks = [one for one in judged(chosen_settings(_dev(results))) if one.check in CHECKS]
    if not checks or (plain := replace(checks[0], check=None)).name not in results:
        return NOT_YET
    named = {"as in the table": plain} | {str(one.check): one for one in checks}
    rows = {title: results[trial.name].row if trial.name in results else None for title, trial in named.items()}
    metrics = rows["as in the table"]["metrics"]["test"]
    titles = _titles(metrics)
    found = [results[trial.name] for trial in named.values() if trial.name in results]
    lines, processor = [], _commonest_processor(found)
    for title, row in rows.items():
        if row is None:
            lines.append([title, *[NOT_YET] * (len(titles) + 1)])
        else:
            figures = [f"{100 * row['metrics']['test'][name]:.1f}" for name in titles]
            lines.append([title, *figures, _minutes([results[named[title].name]], processor)])
    header = [f"QACG-BERT, seed {plain.seed}", *titles.values(), MINUTES]
    return f"{_markdown(header, lines, texts=1)}\n\n{_about_minutes(found)}"


def of_variants(comparison: Comparison | None) -> str:
    """Test figures of QACG-BERT by how its second map is let in, in per cent, and differences to the published way."""
    if comparison is None:
        return NOT_YET
    lines = [
        [comparison.names[name], str(len(found)), *_figures(comparison, name)]
        for name, found in comparison.results.items()
    ]
    figures = _markdown(["QACG-BERT", "seeds", *comparison.titles.values()], lines, texts=1)
    return f"{figures}\n\n{of_differences(comparison)}"


def of_gates(results: Mapping[str, Result]) -> str:
    """What the second map of trained models does on dev, by set, model and layer: means over seeds."""
    found: dict[tuple[str, str], list[list[dict]]] = {}
    for one in results.values():
        if one.gates is not None and one.trial.check not in CHECKS:
            title = CONTESTANTS[one.trial.contestant].title
            if one.trial.check is not None:
                title += f", {HYPOTHESES[one.trial.check].title}"
            found.setdefault((DATA[one.trial.data].title, title), []).append(one.gates)
    lines = []
    for titles, of_seeds in found.items():
        for number, layer in enumerate(zip(*of_seeds), 1):
            mean = {name: statistics.fmean(one[name] for one in layer) for name in SHOWN_OF_GATES}
            figures = [f"{mean[name]:{form}}" for name, form in SHOWN_OF_GATES.items()]
            lines.append([*titles, str(number), str(len(of_seeds)), *figures])
    header = ["set", "model", "layer", "seeds", *(name.replace("_", " ") for name in SHOWN_OF_GATES)]
    return _markdown(header, lines, texts=2) if lines else NOT_YET


def _dev(results: Mapping[str, Result]) -> dict[str, float]:
    return {name: one.dev for name, one in results.items() if one.trial.is_search}


def _titles(metrics: Mapping[str, object]) -> Mapping[str, str]:
    """The names of the metrics of a row, and what tables call them."""
    return next(kind.TITLES for kind in METRIC_CLASSES.values() if kind.TITLES.keys() <= metrics.keys())


def _trainings(comparison: Comparison) -> list[Result]:
    return [one for found in comparison.results.values() for one in found]


def _commonest_processor(found: Iterable[Result]) -> str | None:
    """That of most trainings whose time is known: minutes of two kinds say nothing of one another."""
    counted = Counter(one.processor for one in found if one.processor_seconds is not None)
    return max(counted, key=lambda name: counted[name]) if counted else None


def _minutes(found: Iterable[Result], processor: str | None) -> str:
    known = [one for one in found if one.processor_seconds is not None and one.processor == processor]
    return f"{statistics.median(one.processor_seconds for one in known) / 60:.1f}" if known else "n/a"


def _about_minutes(found: Sequence[Result]) -> str:
    processor = _commonest_processor(found)
    if processor is None:
        return "Minutes: no training came to its end without a stop."
    return f"Minutes: the median of trainings on {processor} that came to their end without a stop."


def _figures(comparison: Comparison, name: str) -> list[str]:
    cells = []
    for metric in comparison.titles:
        mean, deviation = comparison.draws.mean(name, metric), comparison.draws.deviation(name, metric)
        text = "n/a" if math.isnan(mean) else f"{100 * mean:.1f}"
        cells.append(text if math.isnan(deviation) else f"{text} ± {100 * deviation:.1f}")
    return cells


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]], texts: int) -> str:
    rule = ["---"] * texts + ["---:"] * (len(header) - texts)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *lines))
