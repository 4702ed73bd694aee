"""`qacg train`: trains a model, or one per seed, on a folder or files of data."""

import argparse
from pathlib import Path

from qacg_models.cli.flags import DATA_FLAGS, add_option_flags, add_set_flag, add_table_flags, selected_fields
from qacg_models.errors import InputError
from qacg_models.sentiment.options import DataOptions, TrainingOptions, describe_default

USES_MODELS = True
HELP = "train on tables of your own (CSV, JSON, JSONL, Excel, Parquet), or on SentiHood, SemEval, MAMS or GermEval"
DESCRIPTION = (
    "Trains a model from scratch or from a checkpoint, and evaluates it on dev and test. Options that are not given "
    "have the defaults of a recipe. The run writes all options beside its model, as run.yaml, which --config reads; "
    "--set sets those without a flag. Under torchrun, several processes train the model together."
)
# Options of training with a flag. `--set` sets the others, which most users leave at their default.
FLAGS = (
    *("model", "from_checkpoint", "max_length", "minutes", "epochs", "max_steps", "batch_size", "learning_rate"),
    *("attention", "precision", "threads"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s --data PATH [PATH ...] --output DIR [option ...]"
    absent = argparse.SUPPRESS
    parser.add_argument(
        "--data", nargs="+", action="extend", default=absent, metavar="PATH", help="folder of the splits, or files"
    )
    parser.add_argument("--output", default=absent, metavar="DIR", help="folder to create for the model")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="options as YAML or JSON, such as MODEL/run.yaml; flags override it"
    )
    add_set_flag(parser, "an option of the configuration, such as schedule=linear; --set NAME= describes it")
    seeds = "seeds of training; with several, each model is in OUTPUT/seed-N (default: 0)"
    parser.add_argument("--seeds", type=int, nargs="+", default=absent, metavar="N", help=seeds)
    parser.add_argument("--resume", action="store_true", help="continue an unfinished run from its newest checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing model or unfinished run")
    add_option_flags(parser.add_argument_group("training"), TrainingOptions, FLAGS, describe_default)
    add_option_flags(parser.add_argument_group("data"), DataOptions, DATA_FLAGS)
    add_table_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    from qacg_models.sentiment.dataset import describe, load_data
    from qacg_models.sentiment.record import checked_options, read_run_file
    from qacg_models.sentiment.report.tables import (
        runs_table,
        selection_note,
        show,
        stored_results,
        weaker_than_tfidf,
    )
    from qacg_models.sentiment.training import train_seeds
    from qacg_models.utils.files import check_writable
    from qacg_models.utils.machine import main_only

    say = main_only(print)
    file = {} if arguments.config is None else read_run_file(arguments.config)
    given = file | checked_options(dict(arguments.set), "set") | vars(arguments)
    for name in ("data", "output"):
        if name not in given:
            raise InputError(f"{name}: expected a path, from --{name} or the file of --config, got none.")
    for name in ("output", "tensorboard"):
        if given.get(name) is not None:
            check_writable(name, given[name])
    options = TrainingOptions(**selected_fields(given, TrainingOptions))
    seeds = given.get("seeds", [0])
    split = options.selection_split
    dataset = load_data(
        given["data"],
        options=DataOptions(**selected_fields(given, DataOptions)),
        optional=[name for name in ("dev", "test") if name != split],
    )
    say("\n".join(describe(dataset)))
    records = train_seeds(
        dataset, given["output"], options, seeds, overwrite=arguments.overwrite, resume=arguments.resume, say=say
    )
    for name in records[0].metrics:
        shown = runs_table(records, name) if len(records) > 1 else show(stored_results(records[0], name))
        origin = f" ({dataset.dev_origin})" if name == "dev" and dataset.dev_origin else ""
        say(f"\n{name}{origin}\n{shown}")
    say("")
    for record in records:
        say(f"seed {record.options.seed}: {selection_note(record)}")
    say(f"{'model' if len(seeds) == 1 else 'models'} in {given['output']}")
    for record in records:  # printed last, so that users notice these lines
        for line in weaker_than_tfidf(record):
            say(f"seed {record.options.seed}: {line}")
    return 0
