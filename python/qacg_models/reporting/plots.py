"""Plots of a page as SVG in the colours of the page: the training loss, and a reliability diagram."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qacg_models.metrics.calibration import Reliability

_LEFT, _BELOW = 46, 34  # pixels for the labels of the axes


@dataclass(frozen=True)
class _Panel:
    """A plotting area; data range from 0 to `most_x` and from 0 to `most_y`, other values are pixels.

    The kinds of marks are the CSS classes of `.plot` in `page/report.css`.
    """

    above: int
    width: int
    height: int
    most_x: float = 1.0
    most_y: float = 1.0

    def x(self, value: float) -> str:
        return f"{_LEFT + self.width * value / self.most_x:.1f}"

    def y(self, value: float) -> str:
        return f"{self.above + self.height * (1 - value / self.most_y):.1f}"

    def axes(self, across: str, up: str, ticks_x: Sequence[float] = (), ticks_y: Sequence[float] = ()) -> str:
        """Returns both axes, the numbers beside them, and their titles (`across` for x, `up` for y)."""
        bottom, left = self.above + self.height, _LEFT
        parts = [f'<path class="axis" d="M{left} {self.above}V{bottom}H{left + self.width}"/>']
        parts += [_text(self.x(value), bottom + 14, f"{value:g}", "middle") for value in ticks_x]
        parts += [_text(left - 5, float(self.y(value)) + 4, f"{value:g}", "end") for value in ticks_y]
        if across:
            parts.append(_text(left + self.width / 2, bottom + 30, across, "middle"))
        middle = self.above + self.height / 2
        parts.append(
            f'<text transform="translate(11 {middle:g}) rotate(-90)" text-anchor="middle">{html.escape(up)}</text>'
        )
        return "".join(parts)

    def line(self, kind: str, points: Sequence[Sequence[float]]) -> str:
        places = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)
        return f'<polyline class="{kind}" points="{places}"/>'

    def bar(self, kind: str, low: float, high: float, value: float) -> str:
        width, top = float(self.x(high)) - float(self.x(low)) - 1, self.y(value)
        height = self.above + self.height - float(top)
        return f'<rect class="{kind}" x="{self.x(low)}" y="{top}" width="{width:.1f}" height="{height:.1f}"/>'

    def dot(self, x: float, y: float) -> str:
        return f'<circle class="dot" cx="{self.x(x)}" cy="{self.y(y)}" r="4"/>'


def _text(x: float | str, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y:g}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _picture(width: int, height: int, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" style="width:{width}px"'
    return f'<svg class="plot" {size} xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


def loss_plot(points: Sequence[Sequence[float]]) -> str:
    """Returns a plot of the training loss.

    Args:
        points: (step, loss) pairs, at least one.
    """
    steps, losses = zip(*points)
    panel = _Panel(10, 440, 170, max(*steps, 1), max(*losses, 1e-12))
    ticks = [round(panel.most_y * share, 2) for share in (0, 0.5, 1)]
    axes = panel.axes("step", "cross-entropy", [0, steps[-1]], ticks)
    return _picture(_LEFT + 460, 10 + 170 + _BELOW, [axes, panel.line("line", points)])


def reliability_plot(panels: Mapping[str, Reliability]) -> str:
    """Returns a reliability diagram for each title in `panels`.

    Upper bars are the accuracy of the rows in a bin of confidence, dots the mean confidence, and lower bars the shares
    of the rows. On the dashed line, accuracy equals confidence.
    """
    return "\n".join(_reliability(title, found) for title, found in panels.items())


def _reliability(title: str, found: Reliability) -> str:
    filled = [one for one in found.bins if one.rows]
    total = sum(one.rows for one in filled)
    upper, lower = _Panel(24, 250, 170), _Panel(204, 250, 50)
    parts = [_text(_LEFT + 125, 14, f"{title}: {100 * found.error:.1f} points", "middle")]
    parts.append(upper.axes("", "accuracy", ticks_y=(0, 0.5, 1)))
    parts += [upper.bar("fill", one.low, one.high, one.accuracy) for one in filled]
    parts.append(upper.line("diagonal", [(0, 0), (1, 1)]))
    parts += [upper.dot(one.confidence, one.accuracy) for one in filled]
    parts.append(lower.axes("confidence", "rows", (0, 0.5, 1), (0, 1)))
    parts += [lower.bar("share", one.low, one.high, one.rows / total) for one in filled]
    return _picture(_LEFT + 260, 204 + 50 + _BELOW, parts)
