"""Figures of signed maps: colours are centred at 0, since lambda * G and A may be negative."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .maps import RowMaps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "RdBu_r"  # red above 0, blue below, white at 0
NAMES = {
    "softmax": "P (softmax)",
    "quasi": "λ·G (gated sigmoid)",
    "combined": "A = P + λ·G",
}


def layer_figure(maps: RowMaps, layer: int) -> Figure:
    """The three maps of every head of one layer: a row per map, a column per head.

    Each row of panels shares one scale, symmetric about 0, whose ends are the largest absolute value in it.
    Queries go down, keys across.

    Args:
        maps: of one row.
        layer: counted from 0.
    """
    from matplotlib.figure import Figure

    tokens = maps.tokens
    heads = maps.softmax.shape[1]
    panel = max(2.0, 0.145 * len(tokens))
    figure = Figure(figsize=(panel * heads + 1.9, panel * len(NAMES) + 1.2), layout="constrained")
    axes = figure.subplots(len(NAMES), heads, squeeze=False)
    for line, (field, title) in enumerate(NAMES.items()):
        values = getattr(maps, field)[layer]
        limit = max(float(np.abs(values).max()), 1e-12)
        for head, axis in enumerate(axes[line]):
            image = axis.imshow(values[head], cmap=COLOURS, vmin=-limit, vmax=limit, interpolation="none")
            _label(axis, tokens, left=head == 0, below=line == len(NAMES) - 1)
            if line == 0:
                axis.set_title(f"head {head + 1}", fontsize=10)
            if head == 0:
                axis.set_ylabel(title, fontsize=11)
        bar = figure.colorbar(image, ax=list(axes[line]), fraction=0.02, pad=0.01)
        bar.ax.tick_params(labelsize=8)
    return figure


def lambda_figure(values: np.ndarray) -> Figure:
    """Lambda per layer and head, with the number in each cell.

    Args:
        values: (layers, heads).
    """
    from matplotlib.figure import Figure

    layers, heads = values.shape
    limit = max(float(np.abs(values).max()), 1e-12)
    figure = Figure(figsize=(0.9 * heads + 2.2, 0.55 * layers + 1.1), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(values, cmap=COLOURS, vmin=-limit, vmax=limit, interpolation="none", aspect="auto")
    axis.set_xticks(range(heads), [f"head {head + 1}" for head in range(heads)], fontsize=9)
    axis.set_yticks(range(layers), [f"layer {layer + 1}" for layer in range(layers)], fontsize=9)
    for layer in range(layers):
        for head in range(heads):
            value = values[layer, head]
            shade = "white" if abs(value) > 0.6 * limit else "black"
            axis.text(head, layer, f"{value:+.3f}", ha="center", va="center", color=shade, fontsize=9)
    figure.colorbar(image).ax.tick_params(labelsize=8)
    return figure


def loss_figure(points: list[list[float]]) -> Figure:
    """The training loss over steps.

    Args:
        points: (step, loss) pairs.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 2.6), layout="constrained")
    axis = figure.subplots()
    axis.plot([step for step, _ in points], [loss for _, loss in points], color="#2166ac")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("step")
    axis.set_ylabel("cross-entropy")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure


def _label(axis, tokens: list[str], left: bool, below: bool) -> None:
    positions = range(len(tokens))
    axis.tick_params(length=0, pad=1)
    axis.set_yticks(positions, tokens if left else [], fontsize=7)
    axis.set_xticks(positions, tokens if below else [], fontsize=7, rotation=90)
    # A thin line before each piece that closes or opens a segment shows where the context name begins.
    for position, token in enumerate(tokens[:-1]):
        if token == "[SEP]":
            axis.axvline(position + 0.5, color="0.6", linewidth=0.5)
            axis.axhline(position + 0.5, color="0.6", linewidth=0.5)
    for side in axis.spines.values():
        side.set_color("0.7")
