"""Tables of results, for a terminal and for a page, from the same cells."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from .metrics import TITLES, SentiHoodMetrics


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of a table: the first column to the left, all others to the right."""
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first = row[0].ljust(widths[0])
        return "  ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as an HTML table; cells are escaped."""

    def line(row: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f"<table>\n<thead>{line(header, 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def metric_cells(results: dict[str, SentiHoodMetrics]) -> tuple[list[str], list[list[str]]]:
    """Header and rows that show results in per cent, one row per name."""
    header = ["in %", *TITLES.values()]
    return header, [
        [name, *(_percent(getattr(result, key)) for key in TITLES)] for name, result in results.items()
    ]


def undefined_notes(results: dict[str, SentiHoodMetrics]) -> list[str]:
    """One line per result that says which figures could not be taken, if any."""
    return [
        f"{name}: only one class, so left out: {', '.join(result.undefined)}"
        for name, result in results.items()
        if result.undefined
    ]


def _percent(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{100 * value:.1f}"
