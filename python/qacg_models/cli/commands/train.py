"""`qacg train`: a model, or one per seed, from a folder or file of data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from qacg_models.cli.flags import add_flags, taken
from qacg_models.cli.interruption import with_resume
from qacg_models.data.options import DataOptions
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.recipes import describe_default
from qacg_models.utils.output_lock import unfinished_path

USES_MODELS = True
HELP = "train on SentiHood, SemEval-2014, or tables of your own (CSV, JSON, JSONL, Excel, Parquet)"
DESCRIPTION = (
    "Trains a model from scratch or from a checkpoint, keeps the weights that do best on dev, and evaluates them on "
    "test. What is not said is settled by the kind of training; the run writes all choices beside its model, as "
    "run.yaml, which --config takes. Under torchrun it trains on several processes."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.usage = "%(prog)s --data PATH [PATH ...] --output DIR [option ...]"
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="choices as YAML or JSON, such as MODEL/run.yaml; flags win"
    )
    parser.add_argument(
        "--data",
        nargs="+",
        action="extend",
        default=argparse.SUPPRESS,
        metavar="PATH",
        help="folder with the splits' files, or one or several files, from which dev is taken",
    )
    parser.add_argument("--output", default=argparse.SUPPRESS, metavar="DIR", help="folder to make for the model")
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=argparse.SUPPRESS,
        metavar="N",
        help="one model per seed, in OUTPUT/seed-N, with mean and standard deviation (default: 0)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with an unfinished run, from its newest checkpoint"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the model, or unfinished run, that is in the way"
    )
    parser.add_argument(
        "--rows", type=Path, metavar="DIR", help="folder in which to keep the figures, one line of JSON per seed"
    )
    add_flags(parser, DataOptions)
    add_flags(parser, TrainingOptions, leave_out=("seed",), default_of=describe_default)


def arguments_to_resume(arguments: argparse.Namespace, given: Sequence[str]) -> list[str] | None:
    """The arguments that resume an interrupted run; None where it left nothing to resume."""
    from qacg_models.runs.run_config import read_run_file

    known = {} if arguments.config is None else read_run_file(arguments.config)
    output = Path((known | vars(arguments))["output"])
    # Of several seeds, those that are done need not be trained again, unless they may be those to be replaced.
    done = not arguments.overwrite and any(output.glob("seed-*"))
    if done or unfinished_path(output).exists() or any(output.glob(unfinished_path(Path("seed-*")).name)):
        return with_resume(given, arguments)
    return None


def run(arguments: argparse.Namespace) -> int:
    """Trains, and prints the figures."""
    from qacg_models.data import describe, load_data
    from qacg_models.reporting.result_tables import (
        selection_note,
        show,
        show_seeds,
        stored_results,
        weaker_than_tfidf,
    )
    from qacg_models.reporting.run_records import append_rows
    from qacg_models.runs.run_config import read_run_file
    from qacg_models.training import train_seeds
    from qacg_models.training.run import selection_split
    from qacg_models.training.seeds import summarize
    from qacg_models.utils.distributed import is_main, main_only
    from qacg_models.utils.outputs import check_writable

    say = main_only(print)
    given = {} if arguments.config is None else read_run_file(arguments.config)
    given |= vars(arguments)
    for name in ("data", "output"):
        if name not in given:
            raise InputError(f"{name}: wanted one, by --{name} or in the file of --config")
    for name in ("output", "rows", "tensorboard"):
        if given.get(name) is not None:
            check_writable(name, given[name])
    options = TrainingOptions(**taken(given, TrainingOptions))
    seeds = given.get("seeds", [0])
    split = selection_split(options)
    dataset = load_data(
        given["data"],
        options=DataOptions(**taken(given, DataOptions)),
        optional=[name for name in ("dev", "test") if name != split],
    )
    say("\n".join(describe(dataset)))
    records = train_seeds(
        dataset,
        given["output"],
        options,
        seeds,
        overwrite=arguments.overwrite,
        resume=arguments.resume,
        say=say,
    )
    for name in records[0].metrics:
        shown = show(stored_results(records[0], name)) if len(seeds) == 1 else show_seeds(summarize(records), name)
        origin = f" ({dataset.dev_origin})" if name == "dev" and dataset.dev_origin else ""
        say(f"\n{name}{origin}\n{shown}")
    say("")
    for record in records:
        say(f"seed {record.options.seed}: {selection_note(record)}")
    if arguments.rows is not None and is_main():
        say(f"rows in {append_rows(arguments.rows, records)}")
    say(f"{'model' if len(seeds) == 1 else 'models'} in {given['output']}")
    for record in records:  # last, where it is read
        for line in weaker_than_tfidf(record):
            say(f"seed {record.options.seed}: {line}")
    return 0
