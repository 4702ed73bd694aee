"""`qacg evaluate`: the metrics of a trained model on a split."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HELP = "SentiHood's metrics of a trained model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder that qacg train wrote")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with the split's file")
    parser.add_argument("--split", default="test", choices=("train", "dev", "test"), help="which split (%(default)s)")
    parser.add_argument(
        "--attention", choices=("fused", "eager"), help="implementation; without it the one of training"
    )
    parser.add_argument("--json", action="store_true", help="print JSON with all digits")


def run(arguments: argparse.Namespace) -> int:
    """Evaluates, and says whether the figures are those that training stored."""
    from ..data import check_contexts, describe_rows, load_data
    from ..inference import load_trained
    from ..results import MAJORITY, MODEL, compare_with_stored, show
    from .quiet import hide_other_bars

    hide_other_bars()
    trained = load_trained(arguments.model, arguments.attention)
    dataset = load_data(arguments.data, (arguments.split,), task=trained.task)
    rows, path = dataset.splits[arguments.split], dataset.files[arguments.split]
    check_contexts(rows, trained.model.config.contexts, path)
    results = {MODEL: trained.evaluate(rows), MAJORITY: trained.majority(rows)}
    stored = compare_with_stored(trained.record, arguments.split, path, results[MODEL])
    if arguments.json:
        content = {name: result.to_json() for name, result in results.items()} | {"stored": stored}
        print(json.dumps(content, indent=1))
    else:
        print(f"{describe_rows(arguments.split, rows, trained.task)}\n{show(results)}\n{stored}")
    return 0
