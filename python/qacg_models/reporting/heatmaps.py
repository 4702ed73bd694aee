"""Plots of attention maps, gates, token scores and the training loss; colours of signed maps are centred at 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from qacg_models.reporting.attention_maps import ExampleMaps, word_places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

# Colours and dashes of lines. All colours contrast with white; inverted, they contrast with the dark page background.
LINES = ("#2166ac", "#b2182b", "#1b7837", "#762a83")
DASHES = ("-", "--", ":", "-.")
NAMES = {
    "softmax": "P (softmax)",
    "quasi": "λ·G (gated sigmoid)",
    "combined": "A = P + λ·G",
}


@cache
def signed_colours() -> Colormap:
    """Returns the colours of signed values: blue above 0, orange below, white at 0. Red would suggest an error."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    below, above = colormaps["PuOr"](np.linspace(0, 0.5, 128)), colormaps["RdBu"](np.linspace(0.5, 1, 128))
    return ListedColormap(np.concatenate([below, above]))


def layer_figure(maps: ExampleMaps, layer: int) -> Figure:
    """Returns a plot of P, lambda * G and A of every head of one layer: a row of panels per map, a column per head.

    P has a scale from 0 to 1. The strength of its colour is the square root of the value, so that small values are
    visible. The other two rows of panels each have one scale, symmetric about 0, up to the largest absolute value.
    In a panel, queries are rows and keys are columns. Markers such as [CLS] are left out.

    Args:
        maps: maps of one example.
        layer: index of the layer, from 0.
    """
    from matplotlib.figure import Figure

    kept, heads = word_places(maps.tokens), maps.softmax.shape[1]
    tokens = [maps.tokens[place] for place in kept]
    # Sizes in inches. Panels are placed manually, since matplotlib's layout engine would take most of the time.
    panel, gap, letter = max(2.0, 0.145 * len(tokens)), 0.12, 0.065
    longest = max(len(token) for token in tokens) * letter
    left, bottom, top, right = longest + 0.45, longest + 0.15, 0.35, 0.85
    width = left + heads * (panel + gap) + right
    height = bottom + len(NAMES) * (panel + gap) + top
    figure = Figure(figsize=(width, height))

    def axes_at(x: float, y: float, across: float) -> Axes:
        return figure.add_axes((x / width, y / height, across / width, panel / height))

    for line, (field, title) in enumerate(NAMES.items()):
        values = getattr(maps, field)[layer][:, kept][:, :, kept]
        y = bottom + (len(NAMES) - 1 - line) * (panel + gap)
        colours, norm = _shares() if field == "softmax" else _signed(values)
        for head in range(heads):
            axis = axes_at(left + head * (panel + gap), y, panel)
            image = axis.imshow(values[head], cmap=colours, norm=norm, interpolation="none")
            _label(axis, tokens, left=head == 0, below=line == len(NAMES) - 1)
            _mark_ends(axis, maps.tokens, kept)
            if line == 0:
                axis.set_title(f"head {head + 1}", fontsize=10)
            if head == 0:
                axis.set_ylabel(title, fontsize=11)
        bar = figure.colorbar(image, cax=axes_at(width - right, y, 0.15))
        if field == "softmax":
            bar.set_ticks([0, 0.25, 1], labels=["0", "0.25", "1"])
        bar.ax.tick_params(labelsize=8)
    return figure


def lambda_figure(values: np.ndarray, limit: float | None = None, first: int = 0) -> Figure:
    """Returns a heat map of lambda by layer and head, with numbers.

    Args:
        values: lambda, (layers, heads).
        limit: absolute value that gets the strongest colour; plots that are compared require the same value. None: the
            largest absolute value in `values`.
        first: index in the model, from 0, of the first layer of `values`.
    """
    from matplotlib.figure import Figure

    layers, heads = values.shape
    limit = max(float(np.abs(values).max()) if limit is None else limit, 1e-12)
    figure = Figure(figsize=(0.9 * heads + 2.2, 0.55 * layers + 1.1), layout="constrained")
    axis = figure.subplots()
    colours = signed_colours()
    image = axis.imshow(values, cmap=colours, vmin=-limit, vmax=limit, interpolation="none", aspect="auto")
    axis.set_xticks(range(heads), [f"head {head + 1}" for head in range(heads)], fontsize=9)
    axis.set_yticks(range(layers), [f"layer {first + layer + 1}" for layer in range(layers)], fontsize=9)
    for layer in range(layers):
        for head in range(heads):
            value = values[layer, head]
            ink = _ink(image.cmap(image.norm(value)))
            axis.text(head, layer, f"{value:+.3f}", ha="center", va="center", color=ink, fontsize=9)
    figure.colorbar(image).ax.tick_params(labelsize=8)
    return figure


def lambda_histograms(lambdas: Mapping[str, np.ndarray], first: int = 0) -> Figure:
    """Returns histograms of lambda over the tokens: a row of panels per layer, a column per head, an outline per name.

    All panels share both axes. The horizontal axis is symmetric about 0, and a line marks 0. Heights are shares of the
    tokens.

    Args:
        lambdas: lambda, (layers, heads, tokens), by name, at least one; numbers of tokens can differ.
        first: index in the model, from 0, of the first layer of `lambdas`.
    """
    from matplotlib.figure import Figure

    layers, heads = next(iter(lambdas.values())).shape[:2]
    limit = max(*(float(np.abs(values).max()) for values in lambdas.values()), 1e-12)
    edges = np.linspace(-limit, limit, 26)
    width = max(1.0 * heads, 4.0) + 1.2
    # Columns of the legend, by the estimated width of the longest name in inches.
    columns = max(1, int(width // (0.085 * max(map(len, lambdas)) + 0.7)))
    lines = -(-len(lambdas) // columns)
    figure = Figure(figsize=(width, 0.8 * layers + 1.0 + 0.2 * lines), layout="constrained")
    axes = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    handles = []
    for layer in range(layers):
        for head, axis in enumerate(axes[layer]):
            axis.axvline(0, color="0.75", linewidth=0.8)
            for number, values in enumerate(lambdas.values()):
                shares = np.histogram(values[layer, head], edges)[0] / values.shape[-1]
                style = {"color": LINES[number % 4], "linestyle": DASHES[(number + number // 4) % 4], "linewidth": 1.2}
                line = axis.stairs(shares, edges, **style)
                if axis is axes[0][0]:
                    handles.append(line)
            axis.tick_params(labelsize=7, length=2)
            if layer == 0:
                axis.set_title(f"head {head + 1}", fontsize=9)
            if head == 0:
                axis.set_ylabel(f"layer {first + layer + 1}", fontsize=9)
    # matplotlib hides entries whose label begins with "_"; labels that are set afterwards are shown.
    legend = figure.legend(
        handles, [""] * len(handles), loc="outside lower center", fontsize=9, ncols=columns, frameon=False
    )
    for text, name in zip(legend.get_texts(), lambdas):
        text.set_text(name)
    return figure


def token_figure(scores: Mapping[str, tuple[list[str], np.ndarray]], title: str) -> Figure:
    """Returns a bar chart of token scores, a panel per name; all panels share the axis of the scores.

    Args:
        scores: L tokens and their (L,) signed values, by name; at least one name.
        title: name of the score.
    """
    from matplotlib.figure import Figure

    longest = max(len(tokens) for tokens, _ in scores.values())
    figure = Figure(figsize=(max(0.24 * longest, 4.0) + 1.2, 1.9 * len(scores) + 0.3), layout="constrained")
    axes = figure.subplots(len(scores), 1, squeeze=False, sharey=True)[:, 0]
    for axis, (name, (tokens, values)) in zip(axes, scores.items()):
        axis.bar(range(len(tokens)), values, color=["#2166ac" if value > 0 else "#b35806" for value in values])
        axis.axhline(0, color="0.4", linewidth=0.6)
        axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8)
        axis.tick_params(axis="y", labelsize=7)
        axis.set_title(f"{title}: {name}", fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def loss_figure(points: list[list[float]]) -> Figure:
    """Returns a plot of the training loss over steps.

    Args:
        points: (step, loss) pairs.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 2.6), layout="constrained")
    axis = figure.subplots()
    axis.plot([step for step, _ in points], [loss for _, loss in points], color="#2166ac")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("step")
    axis.set_ylabel("cross-entropy")
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _ink(shade: Sequence[float]) -> str:
    """Returns black or white, whichever has the higher contrast with a colour (at least 4.5, WCAG 2.2)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in shade[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "white"


def _label(axis, tokens: list[str], left: bool, below: bool) -> None:
    positions = range(len(tokens))
    axis.tick_params(length=0, pad=1)
    axis.set_yticks(positions if left else [], tokens if left else [], fontsize=7)
    axis.set_xticks(positions if below else [], tokens if below else [], fontsize=7, rotation=90)
    for side in axis.spines.values():
        side.set_color("0.7")


def _mark_ends(axis: Axes, tokens: list[str], kept: list[int]) -> None:
    """Draws thin lines, across and down, between the words of the text and those of the context's name."""
    for place, (before, after) in enumerate(pairwise(kept)):
        if "[SEP]" in tokens[before:after]:
            axis.axvline(place + 0.5, color="0.6", linewidth=0.5)
            axis.axhline(place + 0.5, color="0.6", linewidth=0.5)


def _shares() -> tuple[Colormap, Normalize]:
    """Returns colours and scale of shares from 0 to 1; the strength of the colour is the square root of the share."""
    from matplotlib.colors import ListedColormap, PowerNorm

    return ListedColormap(signed_colours()(np.linspace(0.5, 1, 256))), PowerNorm(0.5, vmin=0, vmax=1)


def _signed(values: np.ndarray) -> tuple[Colormap, Normalize]:
    """Returns colours and scale of signed values, symmetric about 0."""
    from matplotlib.colors import Normalize

    limit = max(float(np.abs(values).max()), 1e-12)
    return signed_colours(), Normalize(-limit, limit)
