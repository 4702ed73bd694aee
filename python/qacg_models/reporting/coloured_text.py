"""Signed values as the ground of text: red above 0, blue below, the stronger the further from 0.

The values themselves stand there as text or title, so nothing is said by colour alone. `page/report.css` has the two
colours of each scheme, on which the page's ink can be read.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np


def token_strip(tokens: Sequence[str], values: np.ndarray, limit: float) -> str:
    """HTML of a sentence whose tokens are coloured by signed values, which show when pointed at.

    Args:
        values: (L).
        limit: the absolute value that has the strongest colour.
    """
    parts = []
    for token, value in zip(tokens, values):
        inner = token.startswith("##")
        # Pieces of a word stay together; a line may end between words.
        space = "" if inner or not parts else " "
        kind = "inner " if inner else ""
        shade = _shade(value, limit, kind)
        parts.append(f'{space}<span {shade} title="{value:+.3g}">{html.escape(token.removeprefix("##"))}</span>')
    return f'<p class="strip">{"".join(parts)}</p>'


def signed_table(corner: str, columns: Sequence[str], rows: Sequence[str], values: np.ndarray, limit: float) -> str:
    """HTML table with a signed number in each cell, coloured by it.

    Args:
        corner: what the rows are.
        values: (rows, columns).
        limit: the absolute value that has the strongest colour. Give the same one where tables are compared.
    """

    def heads(scope: str, names: Sequence[str]) -> list[str]:
        return [f'<th scope="{scope}">{html.escape(name)}</th>' for name in names]

    body = "\n".join(
        f"<tr>{head}"
        + "".join(f"<td {_shade(value, limit, 'number ')}>{signed(value)}</td>" for value in line)
        + "</tr>"
        for head, line in zip(heads("row", rows), values)
    )
    header = f'<td><span class="hidden">{html.escape(corner)}</span></td>' + "".join(heads("col", columns))
    return f'<table class="shaded">\n<thead><tr>{header}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>'


def signed(value: float) -> str:
    """A number with its sign, three digits after the point."""
    return f"{value:+.3f}".replace("-", "−")


def _shade(value: float, limit: float, kind: str) -> str:
    sign = "plus" if value > 0 else "minus"
    return f'class="{kind}{sign}" style="--v:{min(1.0, abs(float(value)) / max(limit, 1e-12)):.2f}"'
