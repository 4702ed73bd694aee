"""Lambda by layer and head on a page: a table of numbers that are coloured by their sign and size."""

from __future__ import annotations

import numpy as np

from qacg_models.reporting import plain_words
from qacg_models.reporting.coloured_text import signed_table
from qacg_models.reporting.heatmaps import lambda_figure
from qacg_models.reporting.html_report import Report, Section, framed


def lambda_table(
    report: Report, section: Section, name: str, values: np.ndarray, limit: float | None = None, whose: str = ""
) -> None:
    """Add the table with the sentence that it says, and keep it as figures/NAME.svg and .png.

    Args:
        values: (layers, heads).
        limit: value of the strongest colour; None: the largest absolute value. Give one where tables are compared.
        whose: the one it is about, where several tables follow each other.
    """
    layers, heads = values.shape
    limit = float(np.abs(values).max()) if limit is None else limit
    table = signed_table(
        "layer",
        [f"head {head + 1}" for head in range(heads)],
        [f"layer {layer + 1}" for layer in range(layers)],
        values,
        limit,
    )
    named = " of ".join(filter(None, ("lambda by layer and head", whose)))
    section.picture(framed(table, named), plain_words.of_lambda(values), whose=whose)
    report.keep(name, lambda_figure(values, limit))
