"""Text with a background colour for signed values: blue above 0, orange below 0, stronger further from 0.

Values are also shown as text or as a tooltip, so that colour is not the only cue. `page/report.css` defines the
colours.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from qacg_models.reporting.attention_maps import MARKERS


def token_strip(tokens: Sequence[str], values: np.ndarray, limit: float) -> str:
    """Returns HTML of tokens coloured by signed values; pointing at a token or tapping it shows its value.

    Markers such as [CLS] are hidden until the reader shows them (`page/viewer.js`).

    Args:
        tokens: L tokens.
        values: (L,) values of the tokens.
        limit: absolute value that gets the strongest colour.
    """
    parts = []
    for token, value in zip(tokens, values):
        inner = token.startswith("##")
        # Line breaks are possible between words, and not inside a word.
        space = "" if inner or not parts else " "
        kind = "inner " if inner else "special " if token in MARKERS else ""
        shade = _shade(value, limit, kind)
        parts.append(f'{space}<span {shade} title="{value:+.3g}">{html.escape(token.removeprefix("##"))}</span>')
    return f'<p class="strip">{"".join(parts)}</p>'


def signed_table(corner: str, columns: Sequence[str], rows: Sequence[str], values: np.ndarray, limit: float) -> str:
    """Returns an HTML table of signed numbers with coloured cells.

    Args:
        corner: header of the column of row names, for screen readers only.
        columns, rows: names of the columns and of the rows.
        values: (rows, columns).
        limit: absolute value that gets the strongest colour; tables that are compared require the same value.
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
    """Formats a number with three decimals and its sign: + or the Unicode minus sign."""
    return f"{value:+.3f}".replace("-", "−")


def _shade(value: float, limit: float, kind: str) -> str:
    sign = "plus" if value > 0 else "minus"
    return f'class="{kind}{sign}" style="--v:{min(1.0, abs(float(value)) / max(limit, 1e-12)):.2f}"'
