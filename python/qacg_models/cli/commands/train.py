"""`qacg train`: trains a model, or one per seed, on a folder or files of data."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from qacg_models.cli.flags import add_flags, selected_fields
from qacg_models.cli.interruption import with_resume
from qacg_models.data.options import DataOptions
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions, describe_default
from qacg_models.utils.output_lock import unfinished_path

USES_MODELS = True
HELP = "train on tables of your own (CSV, JSON, JSONL, Excel, Parquet), or on SentiHood, SemEval, MAMS or GermEval"
DESCRIPTION = (
    "Trains a model from scratch or from a checkpoint, and evaluates it on dev and test. Keeps the weights that are "
    "best on dev, or the weights of the last step if --eval-every evaluates no others. Options that are not given take "
    "the defaults of the recipe. The run writes all options beside its model, as run.yaml, which --config reads. Under "
    "torchrun, several processes train the model together."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.usage = "%(prog)s --data PATH [PATH ...] --output DIR [option ...]"
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="options as YAML or JSON, such as MODEL/run.yaml; flags override them",
    )
    parser.add_argument(
        "--data",
        nargs="+",
        action="extend",
        default=argparse.SUPPRESS,
        metavar="PATH",
        help="folder with the files of the splits, or one or several files; if there is no dev file, and no row is "
        "marked dev in a column 'split', a share of the training sentences becomes dev",
    )
    parser.add_argument("--output", default=argparse.SUPPRESS, metavar="DIR", help="folder to create for the model")
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=argparse.SUPPRESS,
        metavar="N",
        help="seeds of training; with several, each model is in OUTPUT/seed-N, and mean and standard deviation of the "
        "metrics are printed (default: 0)",
    )
    parser.add_argument("--resume", action="store_true", help="continue an unfinished run from its newest checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing model or unfinished run")
    parser.add_argument(
        "--rows", type=Path, metavar="DIR", help="folder for records of the metrics, one line of JSON per seed"
    )
    add_flags(parser, DataOptions)
    add_flags(parser, TrainingOptions, leave_out=("seed",), default_of=describe_default)


def arguments_to_resume(arguments: argparse.Namespace, given: Sequence[str]) -> list[str] | None:
    """Returns the arguments that resume an interrupted run; None if nothing in --output can be resumed.

    Raises:
        InputError: the file of --config cannot be used.
        KeyError: no output is given.
    """
    from qacg_models.runs.record import read_run_file

    file_options = {} if arguments.config is None else read_run_file(arguments.config)
    output = Path((file_options | vars(arguments))["output"])
    # Finished seeds are kept, unless --overwrite replaces them.
    has_finished_seeds = not arguments.overwrite and any(output.glob("seed-*"))
    if has_finished_seeds or unfinished_path(output).exists() or any(output.glob(unfinished_path(Path("seed-*")).name)):
        return with_resume(given, arguments)
    return None


def run(arguments: argparse.Namespace) -> int:
    """Trains one model per seed, prints their metrics, and writes the records of --rows; returns 0."""
    from qacg_models.data import describe, load_data
    from qacg_models.reporting.result_tables import (
        selection_note,
        show,
        show_seeds,
        stored_results,
        weaker_than_tfidf,
    )
    from qacg_models.reporting.run_records import append_rows
    from qacg_models.runs.record import read_run_file
    from qacg_models.training import summarize, train_seeds
    from qacg_models.training.run import selection_split
    from qacg_models.utils.distributed import is_main, main_only
    from qacg_models.utils.outputs import check_writable

    say = main_only(print)
    given = {} if arguments.config is None else read_run_file(arguments.config)
    given |= vars(arguments)
    for name in ("data", "output"):
        if name not in given:
            raise InputError(f"{name}: expected a path, from --{name} or the file of --config, got none.")
    for name in ("output", "rows", "tensorboard"):
        if given.get(name) is not None:
            check_writable(name, given[name])
    options = TrainingOptions(**selected_fields(given, TrainingOptions))
    seeds = given.get("seeds", [0])
    split = selection_split(options)
    dataset = load_data(
        given["data"],
        options=DataOptions(**selected_fields(given, DataOptions)),
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
        say(f"records of the metrics in {append_rows(arguments.rows, records)}")
    say(f"{'model' if len(seeds) == 1 else 'models'} in {given['output']}")
    for record in records:  # printed last, so that users notice these lines
        for line in weaker_than_tfidf(record):
            say(f"seed {record.options.seed}: {line}")
    return 0
