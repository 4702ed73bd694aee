"""The command-line program `qacg`. Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from .checkpoints.command import add_parser as add_convert
from .errors import InputError
from .options import TrainingOptions

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None takes those of the process.

    Returns:
        The exit status: 0 for success, 1 for a check that did not pass, 2 for input that cannot be used.
    """
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except (InputError, OSError) as error:
        print(f"qacg {arguments.command}: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"qacg {arguments.command}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _demo(arguments: argparse.Namespace) -> int:
    from .demo import run

    _quiet()
    return run(arguments.report, arguments.output, TrainingOptions(seed=arguments.seed))


def _train(arguments: argparse.Namespace) -> int:
    from .data import describe, load_directory
    from .results import selection_note, show, stored_results
    from .tokenization import load_tokenizer
    from .training import check_output, train

    _quiet()
    options = TrainingOptions(**{name: getattr(arguments, name) for name in _option_names()})
    check_output(arguments.output, arguments.overwrite)
    dataset = load_directory(arguments.data, optional=("test",))
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


def _evaluate(arguments: argparse.Namespace) -> int:
    from .data import check_contexts, describe_rows, read_rows, require_split
    from .inference import load_trained
    from .results import MAJORITY, MODEL, compare_with_stored, show

    _quiet()
    path = require_split(arguments.data, arguments.split)
    trained = load_trained(arguments.model, arguments.attention)
    rows = read_rows(path, trained.task)
    check_contexts(rows, trained.model.config.contexts, path)
    results = {MODEL: trained.evaluate(rows), MAJORITY: trained.majority(rows)}
    stored = compare_with_stored(trained.record, arguments.split, path, results[MODEL])
    if arguments.json:
        print(
            json.dumps(
                {name: result.to_json() for name, result in results.items()} | {"stored": stored}, indent=1
            )
        )
    else:
        print(f"{describe_rows(arguments.split, rows, trained.task)}\n{show(results)}\n{stored}")
    return 0


def _info(arguments: argparse.Namespace) -> int:
    from qacg_kernels import info

    found = info.collect()
    print(json.dumps(found, indent=1) if arguments.json else info.render(found))
    return 0


def _quiet() -> None:
    """Keep the libraries' own bars off the terminal; ours stays, and so do warnings."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _option_names() -> list[str]:
    return [option.name for option in fields(TrainingOptions)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qacg", description="Aspect-based sentiment with quasi-attention.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="check this machine, train on the bundled sample, write a report")
    demo.add_argument(
        "--report",
        type=Path,
        default=Path("report"),
        metavar="DIR",
        help="folder of the report (%(default)s)",
    )
    demo.add_argument(
        "--output",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="folder of the model (%(default)s)",
    )
    demo.add_argument("--seed", type=int, default=0, help="of training (%(default)s)")
    demo.set_defaults(run=_demo)

    train = commands.add_parser("train", help="train on TSV files in SentiHood's form")
    train.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with train.tsv, dev.tsv and, if there is one, test.tsv (or {split}_NLI_M.tsv)",
    )
    train.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder to make for the model"
    )
    train.add_argument("--overwrite", action="store_true", help="replace the model that is in --output")
    train.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer folder or vocab.txt; without it one is learned from the training split",
    )
    train.add_argument("--cased", action="store_true", help="the vocab.txt given with --tokenizer is cased")
    for option in fields(TrainingOptions):
        flag = "--" + option.name.replace("_", "-")
        text = option.metadata["help"]
        if isinstance(option.default, bool):
            train.add_argument(flag, action=argparse.BooleanOptionalAction, default=option.default, help=text)
        else:
            kind = type(option.default)
            meta = None if option.metadata["choices"] else {int: "N", float: "X"}[kind]
            train.add_argument(
                flag,
                type=kind,
                default=option.default,
                choices=option.metadata["choices"],
                metavar=meta,
                help=f"{text} (%(default)s)",
            )
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("evaluate", help="SentiHood's metrics of a trained model")
    evaluate.add_argument("model", type=Path, metavar="MODEL", help="folder that qacg train wrote")
    evaluate.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="folder with the split's file"
    )
    evaluate.add_argument(
        "--split", default="test", choices=("train", "dev", "test"), help="which split (%(default)s)"
    )
    evaluate.add_argument(
        "--attention", choices=("fused", "eager"), help="implementation; without it the one of training"
    )
    evaluate.add_argument("--json", action="store_true", help="print JSON with all digits")
    evaluate.set_defaults(run=_evaluate)

    add_convert(commands)

    info = commands.add_parser("info", help="what this machine and installation offer")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)
    return parser


if __name__ == "__main__":
    sys.exit(main())
