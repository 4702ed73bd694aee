"""Tables of results for the terminal and for HTML pages."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

from qacg_models.metrics import Metrics
from qacg_models.utils.cells import percent

CARD = 40  # if a cell has more than this number of characters, the rows of its table become cards on a phone


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a text table; columns of numbers are right-aligned.

    Args:
        header: titles of the columns.
        rows: the cells of each row.
    """
    cells = [header, *rows]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(header))]
    numbers = _number_columns(header, rows)

    def line(row: Sequence[str]) -> str:
        spaces = [" " * (width - _width(cell)) for cell, width in zip(row, widths)]
        padded = [space + cell if right else cell + space for cell, space, right in zip(row, spaces, numbers)]
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def _width(text: str) -> int:
    """Returns the width of a text on the terminal, where a Chinese character is as wide as two Latin letters."""
    marks = sum(bool(unicodedata.combining(letter)) for letter in text)
    return len(text) - marks + sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] = ()) -> str:
    """Returns an HTML table with escaped cells; the cells of a non-numeric first column are row headers.

    On a phone each row of a table with long cells is shown as a card, with the titles of the columns beside the cells.

    Args:
        header: titles of the columns.
        rows: the cells of each row.
        classes: a CSS class for each row; empty: no classes.
    """
    numbers = _number_columns(header, rows)
    cards = any(len(cell) > CARD for row in rows for cell in row)

    def cell(text: str, role: str, number: bool, title: str) -> str:
        kind = ' class="number"' if number else ""
        kind += f' data-title="{html.escape(title)}"' if cards and role != "col" else ""
        scope = f' scope="{role}"' if role in ("row", "col") else ""
        name = "th" if scope else "td"
        return f"<{name}{scope}{kind}>{html.escape(text)}</{name}>"

    def line(row: Sequence[str], first: str, others: str, kind: str = "") -> str:
        roles = [first, *[others] * (len(row) - 1)]
        named = f' class="{kind}"' if kind else ""
        return f"<tr{named}>{''.join(map(cell, row, roles, numbers, header))}</tr>"

    named = "cell" if numbers and numbers[0] else "row"
    body = "\n".join(line(row, named, "cell", kind) for row, kind in zip_longest(rows, classes, fillvalue=""))
    head = line(header, "col", "col")
    kind = ' class="cards"' if cards else ""
    return f"<table{kind}>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def metric_cells(
    results: Mapping[str, Metrics], bounds: Mapping[str, Mapping[str, tuple[float, float]]] = MappingProxyType({})
) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows of a table of metrics in per cent.

    Args:
        results: metrics by name, at least one name; all values are of the same class.
        bounds: (lower, upper) bounds of confidence intervals, by name and metric. Below the row of a name in `bounds`,
            the table has a row with the lower bounds and a row with the upper bounds.
    """
    titles = next(iter(results.values())).TITLES
    rows = []
    for name, result in results.items():
        rows.append([name, *(percent(getattr(result, key)) for key in titles)])
        for side, title in enumerate(("from", "to") if name in bounds else ()):
            rows.append([f"  {title}", *(percent(bounds[name][key][side]) for key in titles)])
    return ["in %", *titles.values()], rows


def undefined_notes(results: Mapping[str, Metrics]) -> list[str]:
    """Returns one line for each result that has undefined metrics."""
    return [
        f"{name}: undefined for these rows and labels: {', '.join(result.undefined)}"
        for name, result in results.items()
        if result.undefined
    ]


def _number_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Returns, for each column, whether there are rows and all cells of the column are numbers, empty or n/a."""
    if not rows:
        return [False] * len(header)
    return [all(_is_number(cell) for cell in column) for column in zip(*rows)]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell in ("", "n/a")
    return True
