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

TELLS = {
    "softmax": "Where each word looks in this layer before the aspect changes anything",
    "quasi": "What the aspect adds to that (red) and takes away (blue)",
    "combined": "Where each word looks in the end; the model goes by this",
}
_FOLDER = Path(__file__).with_name("page")
_STEPS = 32767
_SHADES = 65  # an odd number, so that one is the white of 0


def viewer_script() -> str:
    """The JavaScript that a page with viewers needs once."""
    return (_FOLDER / "viewer.js").read_text(encoding="utf-8")


def viewer_style() -> str:
    """The CSS that a page with viewers needs once."""
    return (_FOLDER / "viewer.css").read_text(encoding="utf-8")


def viewer(name: str, title: str, maps: Sequence[ExampleMaps]) -> str:
    """HTML of one viewer, which shows rows side by side.

    Args:
        name: of the viewer on its page; letters, digits and hyphens.
        title: what a screen reader calls it.
        maps: at least one; numbers of tokens may differ.
    """
    from matplotlib import colormaps

    layers, heads = maps[0].softmax.shape[:2]
    data = {
        "layers": layers,
        "heads": heads,
        "names": NAMES,
        "tells": TELLS,
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
        f'<div class="viewer" id="{html.escape(name)}" role="group" aria-label="{html.escape(title)}">'
        f'<script type="application/json">{text}</script>'
        '<noscript><p class="note">The selector needs JavaScript; the folder figures holds every layer.</p></noscript>'
        "</div>"
    )


def _packed(values: np.ndarray) -> dict:
    limit = max(float(np.abs(values).max()), 1e-12)
    steps = (values / limit * _STEPS).round().astype("<i2")
    return {"step": limit / _STEPS, "values": base64.b64encode(steps.tobytes()).decode("ascii")}
