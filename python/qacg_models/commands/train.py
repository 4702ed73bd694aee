"""`qacg train`: a model from a folder of data."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from ..errors import InputError
from ..options import TrainingOptions

HELP = "train on TSV files in SentiHood's form"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with train.tsv, dev.tsv and, if there is one, test.tsv (or {split}_NLI_M.tsv)",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to make for the model")
    parser.add_argument("--overwrite", action="store_true", help="replace the model that is in --output")
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer folder or vocab.txt; without it one is learned from the training split",
    )
    parser.add_argument("--cased", action="store_true", help="the vocab.txt given with --tokenizer is cased")
    for option in fields(TrainingOptions):
        flag = "--" + option.name.replace("_", "-")
        text = option.metadata["help"]
        if isinstance(option.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=option.default, help=text)
        else:
            kind = type(option.default)
            meta = None if option.metadata["choices"] else {int: "N", float: "X"}[kind]
            parser.add_argument(
                flag,
                type=kind,
                default=option.default,
                choices=option.metadata["choices"],
                metavar=meta,
                help=f"{text} (%(default)s)",
            )


def run(arguments: argparse.Namespace) -> int:
    """Trains, and prints the figures."""
    from ..data import describe, load_data
    from ..results import selection_note, show, stored_results
    from ..tokenization import load_tokenizer
    from ..training import check_output, train
    from .quiet import hide_other_bars

    hide_other_bars()
    options = TrainingOptions(**{option.name: getattr(arguments, option.name) for option in fields(TrainingOptions)})
    check_output(arguments.output, arguments.overwrite)
    dataset = load_data(arguments.data, optional=("test",))
    print("\n".join(describe(dataset)))
    tokenizer = None
    if arguments.tokenizer is not None:
        tokenizer = load_tokenizer(arguments.tokenizer, lowercase=not arguments.cased)
    elif arguments.cased:
        raise InputError("--cased speaks of a vocabulary given with --tokenizer; there is none")
    trained = train(dataset, arguments.output, options, tokenizer=tokenizer, overwrite=arguments.overwrite)
    for split in trained.record["metrics"]:
        print(f"\n{split}\n{show(stored_results(trained.record, split))}")
    print(f"\n{selection_note(trained.record)}\nmodel in {arguments.output}")
    return 0
