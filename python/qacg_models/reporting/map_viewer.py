"""The part of a page that shows signed maps by layer and head: data beside the page's own JavaScript.

The page holds P and lambda * G of every layer and head as 16-bit steps of their largest absolute value, which is finer
than any colour; A is their sum. `page/viewer.js` draws them, `page/viewer.css` is their style.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qacg_models.reporting.attention_maps import ExampleMaps
from qacg_models.reporting.heatmaps import COLOURS, NAMES

_FOLDER = Path(__file__).with_name("page")
_STEPS = 32767
_SHADES = 65  # an odd number, so that one is the white of 0


def viewer_script() -> str:
    """The JavaScript that a page with viewers needs once."""
    return (_FOLDER / "viewer.js").read_text(encoding="utf-8")


def viewer_style() -> str:
    """The CSS that a page with viewers or token strips needs once."""
    return (_FOLDER / "viewer.css").read_text(encoding="utf-8")


def viewer(name: str, maps: Sequence[ExampleMaps]) -> str:
    """HTML of one viewer, which shows rows side by side.

    Args:
        name: of the viewer on its page; letters, digits and hyphens.
        maps: at least one; numbers of tokens may differ.
    """
    from matplotlib import colormaps

    layers, heads = maps[0].softmax.shape[:2]
    data = {
        "layers": layers,
        "heads": heads,
        "names": NAMES,
        "shades": (255 * colormaps[COLOURS](np.linspace(0, 1, _SHADES))[:, :3]).round().astype(int).tolist(),
        "rows": [
            {
                "title": one.row.context,
                "tokens": one.tokens,
                **{kind: _packed(getattr(one, kind)) for kind in ("softmax", "quasi")},
            }
            for one in maps
        ],
    }
    # "<" would let a token end the element.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'<div class="viewer" id="{html.escape(name)}"><script type="application/json">{text}</script>'
        '<noscript><p class="note">The selector needs JavaScript; the folder figures holds every layer.</p></noscript>'
        "</div>"
    )


def token_strip(tokens: Sequence[str], values: np.ndarray, limit: float) -> str:
    """HTML of a sentence whose tokens are coloured by signed values, which show when pointed at.

    Args:
        values: (L).
        limit: the absolute value that has the strongest colour.
    """
    from matplotlib import colormaps

    parts = []
    for token, value in zip(tokens, values):
        red, green, blue, _ = colormaps[COLOURS](0.5 + 0.5 * float(value) / max(limit, 1e-12))
        ink = "#fff" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "#1c1c1c"
        shade = f"rgb({255 * red:.0f},{255 * green:.0f},{255 * blue:.0f})"
        joined = ' class="inner"' if token.startswith("##") else ""
        parts.append(
            f'<span{joined} style="background:{shade};color:{ink}" title="{value:+.3g}">'
            f"{html.escape(token.removeprefix('##'))}</span>"
        )
    return f'<p class="strip">{"".join(parts)}</p>'


def _packed(values: np.ndarray) -> dict:
    limit = max(float(np.abs(values).max()), 1e-12)
    steps = (values / limit * _STEPS).round().astype("<i2")
    return {"step": limit / _STEPS, "values": base64.b64encode(steps.tobytes()).decode("ascii")}
