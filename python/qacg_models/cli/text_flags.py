"""Flags of the commands that read a file of texts."""

import argparse
from pathlib import Path

from qacg_models.data.columns import QUOTING
from qacg_models.data.options import DataOptions
from qacg_models.data.requests import FORMATS

# Options that default to their value in the training of the model; without a model, to the default of DataOptions.
MODEL_DEFAULTS = ("text_column", "delimiter", "quoting", "encoding")


def add_text_flags(group: argparse._ArgumentGroup, default: str) -> None:
    """Adds --input-format, --text-column, --delimiter, --quoting, --encoding and --skip-empty.

    Args:
        group: the argument group to which the flags are added.
        default: description of the default values of the options in MODEL_DEFAULTS, for the help texts.
    """
    group.add_argument(
        "--input-format",
        default="auto",
        choices=("auto", *FORMATS),
        help="format of the input: one text per line, or a table; auto: by the file's suffix (default: %(default)s)",
    )
    group.add_argument("--text-column", metavar="NAME", help=f"column or key of the text (default: {default})")
    group.add_argument(
        "--delimiter",
        metavar="CHARACTER",
        help=f"delimiter of a CSV, \\t for a tab; auto: detect the delimiter from the header (default: {default})",
    )
    add_quoting_flag(group, default)
    group.add_argument(
        "--encoding",
        metavar="NAME",
        help=f"encoding of text files, such as utf-8, cp1252 (Windows), latin-1 or utf-16 (default: {default})",
    )
    group.add_argument(
        "--skip-empty",
        action="store_true",
        help="skip and count the rows of a table that have an empty cell in a column that is read; without this flag "
        "such rows are an error",
    )


def add_quoting_flag(group: argparse._ArgumentGroup, default: str) -> None:
    """Adds --quoting; `default` describes its default value."""
    group.add_argument(
        "--quoting",
        choices=QUOTING,
        help="quotation marks in CSV and TSV files; auto, minimal: they may enclose a field, but auto raises an error "
        f"if most such fields join lines that look like rows; none: they are ordinary characters (default: {default})",
    )


def resolve_text_flags(arguments: argparse.Namespace, model: Path | None) -> None:
    """Fills in the options in MODEL_DEFAULTS that are not given.

    Args:
        arguments: the parsed arguments, changed in place.
        model: folder of the model whose training options are filled in; None: the defaults of DataOptions.

    Raises:
        ModelFolderError: the folder has no usable record of its training.
    """
    from qacg_models.runs.record import read_record

    known = DataOptions() if model is None else read_record(model).data_options
    for name in MODEL_DEFAULTS:
        if getattr(arguments, name) is None:
            setattr(arguments, name, getattr(known, name))
