"""Flags of commands that read a file of texts."""

from __future__ import annotations

import argparse
from pathlib import Path

from qacg_models.data.options import DataOptions
from qacg_models.data.requests import FORMATS

# What a model was trained with, and what therefore holds for the texts that it is asked about.
OF_MODEL = ("text_column", "delimiter", "encoding")


def add_text_flags(group: argparse._ArgumentGroup, default: str) -> None:
    """--input-format, --text-column, --delimiter, --encoding and --skip-empty.

    Args:
        default: what holds where OF_MODEL are not given, for the help text.
    """
    group.add_argument(
        "--input-format",
        default="auto",
        choices=("auto", *FORMATS),
        help="format of the input: a text a line, or a table; auto goes by the suffix (default: %(default)s)",
    )
    group.add_argument("--text-column", metavar="NAME", help=f"column or key of the text (default: {default})")
    group.add_argument(
        "--delimiter",
        metavar="CHARACTER",
        help=f"between the fields of a CSV; \\t is a tab, and auto finds it from the header (default: {default})",
    )
    group.add_argument(
        "--encoding",
        metavar="NAME",
        help=f"of text files, such as utf-8, cp1252 (Windows), latin-1 or utf-16 (default: {default})",
    )
    group.add_argument(
        "--skip-empty",
        action="store_true",
        help="ask nothing about rows of a table with an empty cell in a column that is read, and count them; without "
        "it they are an error",
    )


def settle_text_flags(arguments: argparse.Namespace, model: Path | None) -> None:
    """Sets those of OF_MODEL that were not given to what the model was trained with, or to their defaults.

    Raises:
        ModelFolderError: the model's folder has no usable record of its training.
    """
    from qacg_models.runs.record import read_record

    known = DataOptions() if model is None else read_record(model).data_options
    for name in OF_MODEL:
        if getattr(arguments, name) is None:
            setattr(arguments, name, getattr(known, name))
