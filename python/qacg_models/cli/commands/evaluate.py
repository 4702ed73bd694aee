"""`qacg evaluate`: the metrics of a trained model on a split or a file, with confidence intervals."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.cli.flags import (
    add_model_flags,
    add_set_flag,
    add_table_flags,
    given_data_options,
    load_model,
    print_machine_line,
)

if TYPE_CHECKING:
    from qacg_models.sentiment.example import Example
    from qacg_models.sentiment.trained_model import TrainedModel

USES_MODELS = True
HELP = "print metrics of a trained model, and the calibration of its probabilities"
DESCRIPTION = (
    "Prints the task's metrics with confidence intervals, and those of the baselines: always the most frequent label,"
    " and TF-IDF if training stored its metrics for these rows. Also prints the expected calibration error before and"
    " after temperature scaling. The last table has, for several thresholds, the share of predictions with at least"
    " that probability (coverage) and their accuracy; `qacg predict --min-confidence` marks the other predictions."
)
SAMPLES = 1000  # bootstrap samples for the confidence intervals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s MODEL --data PATH [PATH ...] [option ...]"
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder that qacg train wrote")
    data = {"type": Path, "nargs": "+", "action": "extend", "required": True, "metavar": "PATH"}
    parser.add_argument("--data", **data, help="folder with the split's file, or one or several files")
    split = "split to evaluate (default: test for a folder, all rows for files)"
    parser.add_argument("--split", choices=("train", "dev", "test"), help=split)
    add_model_flags(parser)
    report = "folder for a page with the metrics and a reliability diagram; an earlier page is replaced"
    parser.add_argument("--report", type=Path, metavar="DIR", help=report)
    parser.add_argument("--json", action="store_true", help="print JSON with unrounded values instead of tables")
    add_set_flag(parser, "an option for reading --data that has no flag, such as wide=false")
    add_table_flags(parser, of_model=True)


def run(arguments: argparse.Namespace) -> int:
    from qacg_models.sentiment.data_warnings import evaluation_warnings
    from qacg_models.sentiment.dataset import describe_examples
    from qacg_models.sentiment.example import distinct
    from qacg_models.sentiment.metrics import intervals
    from qacg_models.sentiment.predictor import describe_truncation
    from qacg_models.sentiment.report import Report
    from qacg_models.sentiment.report.evaluation import Breakdown, Confidence, Evaluation, write_page
    from qacg_models.sentiment.report.tables import (
        MAJORITY,
        TFIDF,
        compare_with_stored,
        row_title,
        selection_note,
        stored_split,
    )
    from qacg_models.sentiment.trained_model import probabilities_of

    lead = "Written by qacg evaluate. This page loads nothing from elsewhere."
    page = arguments.report and Report(arguments.report, "Evaluation: metrics and calibration", lead)
    trained = load_model(arguments)
    rows, split, paths, left_out = _load_rows(arguments, trained)
    print_machine_line(trained, arguments.batch_size)
    logits = trained.logits(rows, arguments.batch_size)
    judge = trained.judge(rows, logits)
    model, metrics = row_title(trained.record, split), judge(None)
    bounds = intervals(judge, [row.sentence for row in rows], repeats=SAMPLES)
    contexts: dict[str, list[str]] = {}
    for sentence, context in distinct(rows, "sentence", "context"):
        contexts.setdefault(sentence, []).append(context)
    advice = "train with a larger --max-length, or split the texts"
    truncated, cut = describe_truncation(trained, contexts.items(), advice)
    warnings = evaluation_warnings(split, rows, trained.task)
    split_of_training = stored_split(trained.record, paths, split, len(rows))
    stored = compare_with_stored(trained.record, paths, split_of_training, metrics)
    results = {model: metrics}
    if split_of_training in trained.record.tfidf:
        results[TFIDF] = trained.record.tfidf[split_of_training]
    notes = [f"from, to: 95 % confidence interval from {SAMPLES:,} bootstrap samples of sentences"]
    notes += [] if trained.precision == "float32" else [f"predicted in {trained.precision}"]
    notes += [*(one.describe() for one in warnings), selection_note(trained.record), stored, *left_out]
    evaluation = Evaluation(
        described=describe_examples(split, rows, trained.task),
        results=results | {MAJORITY: trained.majority(rows)},
        bounds={model: bounds},
        notes=tuple(notes if cut is None else [*notes, cut]),
        breakdown=Breakdown.of(trained.task, rows, probabilities_of(logits, trained.calibration.temperatures)),
        confidence=Confidence.of(trained, rows, logits),
    )
    ends = {name: [None if math.isnan(value) else value for value in pair] for name, pair in bounds.items()}
    content = {name: result.to_json() for name, result in evaluation.results.items()} | {
        "intervals": {"level": 0.95, "samples": SAMPLES, **ends},
        "breakdown": evaluation.breakdown.to_json(),
        "calibration": evaluation.confidence.to_json(),
        "split": split,
        "rows": len(rows),
        "precision": trained.precision,
        "truncated_texts": truncated,
        "selected_on": trained.record.selected.split,
        "stored": stored,
        "warnings": [asdict(one) for one in warnings],
    }
    written = None if page is None else write_page(page, evaluation)
    print(json.dumps(content, indent=1, allow_nan=False) if arguments.json else evaluation.text())
    if written is not None and not arguments.json:
        print(f"page in {written} (open it in a browser)")
    return 0


def _load_rows(
    arguments: argparse.Namespace, trained: TrainedModel
) -> tuple[Sequence[Example], str, tuple[Path, ...], list[str]]:
    """Returns the rows, the name of their split or the names of their files, the files, and notes on skipped rows."""
    from qacg_models.sentiment.dataset import check_contexts, load_data, load_file

    options = trained.record.data_options.overridden(given_data_options(arguments))
    paths, split, left_out = tuple(arguments.data), arguments.split, []
    if split is None and not paths[0].is_dir():
        rows = load_file(paths, trained.task, options, contexts=trained.contexts, notes=left_out)
        return rows, ", ".join(path.name for path in paths), paths, left_out
    split = split or "test"
    dataset = load_data(paths, (split,), options, task=trained.task)
    rows, paths = dataset.splits[split], dataset.files[split]
    check_contexts(rows, trained.contexts, ", ".join(map(str, paths)))
    return rows, split, paths, list(dataset.skipped)
