"""`qacg evaluate`: the published metrics of a trained model on a split or a file, with confidence intervals."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path

from qacg_models.cli.flags import OF_TRAINING, add_flags, add_int8_flag, check_range, taken
from qacg_models.data.options import DataOptions

USES_MODELS = True
HELP = "the published metrics of a trained model, and how far its probabilities may be believed"
DESCRIPTION = (
    "Prints the task's metrics with intervals beside the majority row, the expected calibration error before and after "
    "the temperatures that training fitted, and accuracy by coverage: what is left, and how right it is, where answers "
    "below a probability are put aside, as `qacg predict --min-confidence` does."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.usage = "%(prog)s MODEL --data PATH [PATH ...] [option ...]"
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder that qacg train wrote")
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        action="extend",
        required=True,
        metavar="PATH",
        help="folder with the split's file, or one or several files",
    )
    parser.add_argument(
        "--split",
        choices=("train", "dev", "test"),
        help="which split; without it test of a folder, and all rows of files",
    )
    parser.add_argument(
        "--attention", choices=("fused", "sdpa", "eager"), help="implementation; without it the one of training"
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="where the model runs; auto: a GPU where there is one (default: %(default)s)",
    )
    add_int8_flag(parser)
    parser.add_argument(
        "--bootstrap",
        type=int,
        default=1000,
        metavar="N",
        help="samples for the intervals; 0: none (default: %(default)s)",
    )
    parser.add_argument(
        "--bootstrap-seed", type=int, default=0, metavar="N", help="of the samples (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON file to write, with all digits")
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="folder to make, with a page that has a picture of the reliability"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON instead of a table")
    add_flags(parser, DataOptions, leave_out=OF_TRAINING)


def run(arguments: argparse.Namespace) -> int:
    """Evaluates, and says whether the figures are those that training stored."""
    from qacg_models.data import check_contexts, describe_examples, evaluation_warnings, load_data, load_file
    from qacg_models.inference.int8 import in_int8
    from qacg_models.inference.trained_model import load_trained
    from qacg_models.metrics import intervals
    from qacg_models.reporting.confidence import DEFINITION, Confidence
    from qacg_models.reporting.evaluation_page import begin_page, write_page
    from qacg_models.reporting.result_tables import MAJORITY, compare_with_stored, row_title, selection_note, show
    from qacg_models.reporting.tables import text_table
    from qacg_models.runs.calibration import VALIDITY
    from qacg_models.utils.atomic_files import atomic_write
    from qacg_models.utils.devices import local_device
    from qacg_models.utils.outputs import check_not_input, check_writable

    check_range("bootstrap", arguments.bootstrap, 0, 1_000_000)
    check_range("bootstrap-seed", arguments.bootstrap_seed, 0, 2**64 - 1)
    if arguments.output is not None:
        check_writable("output", arguments.output)
        for source in arguments.data:
            check_not_input("output", arguments.output, source)
    page = None if arguments.report is None else begin_page(arguments.report)
    trained = load_trained(arguments.model, arguments.attention, device=local_device(arguments.device))
    trained = in_int8(trained) if arguments.int8 else trained
    options = trained.data_options.overridden(taken(vars(arguments), DataOptions))
    paths, split, left_out = tuple(arguments.data), arguments.split, []
    if split is None and not paths[0].is_dir():
        rows = load_file(paths, trained.task, options, contexts=trained.contexts, notes=left_out)
        split = ", ".join(path.name for path in paths)
    else:
        split = split or "test"
        dataset = load_data(paths, (split,), options, task=trained.task)
        rows, paths, left_out = dataset.splits[split], dataset.files[split], list(dataset.skipped)
        if arguments.output is not None:
            check_not_input("output", arguments.output, paths[0])
        check_contexts(rows, trained.contexts, ", ".join(map(str, paths)))
    logits = trained.logits(rows)
    judge = trained.judge(rows, logits)
    model, figures = row_title(trained.record, split) + (", int8" if trained.int8 else ""), judge(None)
    results = {model: figures, MAJORITY: trained.majority(rows)}
    confidence = Confidence.of(trained, rows, logits)
    bounds = {}
    if arguments.bootstrap:
        sentences = [row.sentence for row in rows]
        bounds[model] = intervals(judge, sentences, repeats=arguments.bootstrap, seed=arguments.bootstrap_seed)
    warnings = evaluation_warnings(split, rows, trained.task)
    stored = compare_with_stored(trained.record, paths, len(rows), figures)
    content = {name: result.to_json() for name, result in results.items()} | {
        "intervals": {
            "level": 0.95,
            "samples": arguments.bootstrap,
            "seed": arguments.bootstrap_seed,
            **{name: [None if math.isnan(value) else value for value in pair] for name, pair in bounds[model].items()},
        }
        if bounds
        else None,
        "calibration": confidence.to_json(),
        "split": split,
        "rows": len(rows),
        "selected_on": trained.record.selected.split,
        "stored": stored,
        "warnings": [asdict(one) for one in warnings],
    }
    text = json.dumps(content, indent=1, allow_nan=False)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(arguments.output) as handle:
            handle.write(text + "\n")
    notes = [*(one.describe() for one in warnings), selection_note(trained.record), stored, *left_out]
    if bounds:
        notes.insert(
            0, f"from, to: 95 % of {arguments.bootstrap} samples of sentences, seed {arguments.bootstrap_seed}"
        )
    described = describe_examples(split, rows, trained.task)
    shown = None if page is None else write_page(page, described, results, bounds, notes, confidence)
    if arguments.json:
        print(text)
        return 0
    print("\n".join([described, show(results, bounds), *notes, ""]))
    print("\n".join([confidence.note(), text_table(*confidence.cells()), DEFINITION, VALIDITY]))
    if shown is not None:
        print(f"{shown} (open it in a browser), the picture as SVG and PNG beside it")
    return 0
