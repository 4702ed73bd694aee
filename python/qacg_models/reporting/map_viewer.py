"""Interactive viewer of attention maps by layer and head, as HTML with JSON data.

The JSON data have P and lambda * G of every layer and head as signed 16-bit integers. A value is its integer times a
step. In each example, P has one step, and lambda * G another: the largest absolute value over all layers and heads,
divided by 32767. `page/viewer.js` computes A = P + lambda * G, and draws the maps; `page/viewer.css` has their style.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qacg_models.reporting.attention_maps import ExampleMaps, word_places
from qacg_models.reporting.heatmaps import NAMES, signed_colours

CAPTIONS = {
    "softmax": "Attention between the words, before the aspect's part is added",
    "quasi": "Attention that the aspect adds (blue) or takes away (orange)",
    "combined": "The attention that the model uses, with the aspect's part",
}
_FOLDER = Path(__file__).with_name("page")
_STEPS = 32767
_SHADES = 65  # odd, so that the middle shade is the white of 0


def viewer_script() -> str:
    """Returns the JavaScript of all viewers of a page."""
    return (_FOLDER / "viewer.js").read_text(encoding="utf-8")


def viewer_style() -> str:
    """Returns the CSS of all viewers of a page."""
    return (_FOLDER / "viewer.css").read_text(encoding="utf-8")


def viewer(name: str, title: str, maps: Sequence[ExampleMaps]) -> str:
    """Returns the HTML of a viewer that shows several examples side by side.

    Args:
        name: id of the element; letters, digits and hyphens.
        title: accessible name of the viewer.
        maps: maps of the examples, at least one; numbers of tokens can differ.
    """
    layers, heads = maps[0].softmax.shape[:2]
    data = {
        "layers": layers,
        "heads": heads,
        "names": NAMES,
        "captions": CAPTIONS,
        "shades": (255 * signed_colours()(np.linspace(0, 1, _SHADES))[:, :3]).round().astype(int).tolist(),
        "rows": [
            {
                "title": one.row.context,
                "tokens": one.tokens,
                "words": word_places(one.tokens),
                **{kind: _packed(getattr(one, kind)) for kind in ("softmax", "quasi")},
            }
            for one in maps
        ],
    }
    # An unescaped "<" in a token could end the element.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'<div class="viewer" id="{html.escape(name)}" role="group" aria-label="{html.escape(title)}">'
        f'<script type="application/json">{text}</script>'
        '<noscript><p class="note">The viewer requires JavaScript. The folder figures has the maps as'
        " plots.</p></noscript>"
        "</div>"
    )


def _packed(values: np.ndarray) -> dict:
    limit = max(float(np.abs(values).max()), 1e-12)
    steps = (values / limit * _STEPS).round().astype("<i2")
    return {"step": limit / _STEPS, "values": base64.b64encode(steps.tobytes()).decode("ascii")}
