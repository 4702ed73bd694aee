"""Command-line flags that several subcommands share, and checks of their values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.errors import InputError
from qacg_models.sentiment.options import DataOptions
from qacg_models.sentiment.tables import FORMATS
from qacg_models.utils.fields import format_value, help_text, kind_of
from qacg_models.utils.machine import is_main, local_device
from qacg_models.utils.text import counted, parse_json

if TYPE_CHECKING:
    from qacg_models.sentiment.trained_model import TrainedModel

# The placeholder of a value in a help text, by its type.
METAVARS = {int: "N", float: "X", str: "TEXT", list: "NAME"}
# The fields of DataOptions with a flag in all commands that read labelled tables; `--set` sets the other fields.
TABLE_FLAGS = (
    *("format", "text_column", "aspect_column", "label_column", "id_column", "target_column"),
    *("delimiter", "quoting", "encoding", "wide", "aspect_columns", "skip_empty"),
)
# Fields of DataOptions with a flag in commands that need no model, which has their values.
DATA_FLAGS = ("aspects", "absent_label")
# The flags for reading tables that a file of texts without labels has too.
TEXT_FLAGS = ("text_column", "delimiter", "quoting", "encoding", "skip_empty")
AS_IN_TRAINING = "Options that are not given have the values of the model's training."
# Options that default to their value in the training of the model; without a model, to the default of DataOptions.
MODEL_DEFAULTS = ("text_column", "delimiter", "quoting", "encoding")


def add_option_flags(
    parser: argparse._ActionsContainer,
    options: type,
    names: Sequence[str],
    default_of: Callable[[str], str | None] = lambda name: None,
    show_defaults: bool = True,
) -> None:
    """Adds a flag for each named field of a dataclass with the metadata of `option`.

    Flags that are not given are absent from the parsed arguments. Help texts have the first sentence of the field's
    description. `default_of` describes the default of a field whose default is None.
    """
    by_name = {field.name: field for field in fields(options)}
    for name in names:
        field, metadata, kind = by_name[name], by_name[name].metadata, kind_of(by_name[name])
        metavar = metadata["metavar"] or METAVARS.get(kind)
        default = default_of(name) if field.default is None else format_value(field.default)
        if kind is bool:
            settings, default = {"action": "store_true"}, None
        elif kind is list:
            settings = {"nargs": "+", "metavar": metavar}
        elif metadata["choices"]:
            settings = {"choices": metadata["choices"]}
        else:
            settings = {"type": kind, "metavar": metavar}
        flag = "--" + name.replace("_checkpoint", "").replace("_", "-")
        text = help_text(metadata["help"].split(". ")[0], default if show_defaults else None)
        parser.add_argument(flag, dest=name, default=argparse.SUPPRESS, help=text, **settings)


def add_table_flags(parser: argparse.ArgumentParser, of_model: bool = False) -> None:
    """Adds the flags for reading labelled tables; with `of_model`, a trained model has the values not given."""
    group = parser.add_argument_group("tables", AS_IN_TRAINING if of_model else None)
    add_option_flags(group, DataOptions, TABLE_FLAGS, show_defaults=not of_model)


def add_text_flags(parser: argparse.ArgumentParser, columns: Sequence[str] = (), note: str | None = None) -> None:
    """Adds the flags for reading a file of texts, whose defaults `resolve_text_flags` fills in.

    `columns` are the fields in TABLE_FLAGS that name further columns. `note` replaces the defaults in the help text.
    """
    group = parser.add_argument_group("tables", note)
    known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}; txt: one text per line; auto: by the file's suffix"
    formats = {"choices": ("auto", *FORMATS), "default": "auto", "metavar": "FORMAT"}
    group.add_argument("--format", dest="input_format", **formats, help=f"{known} (default: %(default)s)")
    names = [name for name in TABLE_FLAGS if name in TEXT_FLAGS or name in columns]
    add_option_flags(group, DataOptions, names, show_defaults=note is None)
    parser.set_defaults(**{name: None for name in names if name != "skip_empty"}, skip_empty=False)


def resolve_text_flags(arguments: argparse.Namespace, model: Path | None) -> None:
    """Fills in the options in MODEL_DEFAULTS that are not given, from the folder of a model or the defaults."""
    from qacg_models.sentiment.record import read_record

    known = DataOptions() if model is None else read_record(model).data_options
    for name in MODEL_DEFAULTS:
        if getattr(arguments, name) is None:
            setattr(arguments, name, getattr(known, name))


def add_set_flag(parser: argparse._ActionsContainer, text: str) -> None:
    """Adds `--set NAME=VALUE` with a help text; it may be repeated, and the parsed argument is a list of pairs."""
    parser.add_argument("--set", action="append", default=[], type=_assignment, metavar="NAME=VALUE", help=text)


def _assignment(text: str) -> tuple[str, object]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value  # a bare word, as in pooler=attention


def given_data_options(arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the fields of DataOptions that flags or `--set` give, by name; raises InputError for other names."""
    from qacg_models.sentiment.record import checked_options

    names = [field.name for field in fields(DataOptions)]
    return checked_options(dict(arguments.set), "set", names) | selected_fields(vars(arguments), DataOptions)


def add_model_flags(parser: argparse._ActionsContainer) -> None:
    """Adds the flags of a command that runs a trained model: batch size, threads, attention, device and precision."""
    rows = "maximum number of rows per batch (default: %(default)s)"
    parser.add_argument("--batch-size", type=int, default=512, metavar="N", help=rows)
    threads = "CPU threads; 0: torch's default (default: as in training)"
    parser.add_argument("--threads", type=int, metavar="N", help=threads)
    attention = "implementation of attention (default: that of training)"
    parser.add_argument("--attention", choices=("fused", "sdpa", "eager"), help=attention)
    parser.add_argument("--device", default="auto", help="such as cpu or cuda (default: a GPU if there is one)")
    precision = (
        "of the encoder; auto: bfloat16 if the CPU has its instructions and training found equal labels for 99.9 %% of"
        " dev, otherwise float32; int8: on the CPU, with torchao (the extra int8) (default: %(default)s)"
    )
    choices = ("auto", "float32", "bfloat16", "int8")
    parser.add_argument("--precision", choices=choices, default="auto", help=precision)


def load_model(arguments: argparse.Namespace) -> TrainedModel:
    """Loads the model of a command with `add_model_flags`; InputError: --batch-size or --threads is out of range."""
    from qacg_models.sentiment.trained_model import load_trained

    check_range("batch-size", arguments.batch_size, 1, 1_000_000)
    if arguments.threads is not None:
        check_range("threads", arguments.threads, 0, 1_024)
    machine = {"device": local_device(arguments.device), "precision": arguments.precision, "threads": arguments.threads}
    return load_trained(arguments.model, arguments.attention, **machine)


def print_machine_line(trained: TrainedModel, batch_size: int) -> None:
    """Prints batch size, CPU threads and precision, with their flags, to stderr; only the main process prints."""
    if is_main():
        threads = "" if trained.model.device.type != "cpu" else f", {counted(trained.thread_count, 'CPU thread')}"
        flags = "--batch-size, --threads, --precision" if threads else "--batch-size, --precision"
        print(
            f"at most {counted(batch_size, 'row')} per batch{threads}, {trained.precision} ({flags})", file=sys.stderr
        )


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raises InputError if the value of the flag `name` is out of range."""
    if not least <= value <= most:
        raise InputError(f"{name}: expected {least} to {most:,}, got {value}.")


def selected_fields(arguments: dict[str, object], options: type) -> dict[str, object]:
    """Returns the entries of `arguments` whose names are fields of the dataclass `options`."""
    return {field.name: arguments[field.name] for field in fields(options) if field.name in arguments}
