"""Flags of commands that read a file of texts."""

from __future__ import annotations

import argparse

from qacg_models.data.requests import FORMATS


def add_text_flags(group: argparse._ArgumentGroup) -> None:
    """--input-format, --text-column and --delimiter."""
    group.add_argument(
        "--input-format",
        default="auto",
        choices=("auto", *FORMATS),
        help="format of the input: a text a line, or records; auto goes by the suffix (default: %(default)s)",
    )
    group.add_argument("--text-column", default="text", metavar="NAME", help="column or key (default: %(default)s)")
    group.add_argument(
        "--delimiter",
        default=",",
        metavar="CHARACTER",
        help="between the fields of a CSV; \\t is a tab (default: %(default)s)",
    )
