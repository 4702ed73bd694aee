"""Calibration of a model on labelled rows, as a line of text, a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qacg_models.data import Example
from qacg_models.inference.trained_model import TrainedModel, probabilities_of
from qacg_models.metrics.calibration import BINS, Covered, Reliability, accuracy_by_coverage, reliability
from qacg_models.metrics.metrics import plain
from qacg_models.utils.cells import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEFINITION = (
    f"Confidence is the probability of the most probable label. The expected calibration error is the mean absolute"
    f" difference between accuracy and confidence over {BINS} bins of equal width, weighted by the number of rows in"
    " each bin."
)


@dataclass(frozen=True)
class Confidence:
    """Calibration of a model on labelled rows.

    Attributes:
        temperatures: temperatures of the model; None for a model without temperature scaling, for which `before` and
            `after` are equal.
        before, after: reliability without and with temperature scaling.
        covered: accuracy by coverage, with temperature scaling.
    """

    temperatures: tuple[float, ...] | None
    before: Reliability
    after: Reliability
    covered: list[Covered]

    @classmethod
    def of(cls, trained: TrainedModel, rows: Sequence[Example], logits: np.ndarray) -> Confidence:
        """Returns the calibration of a model.

        Args:
            trained: the model, whose temperatures are used.
            rows: labelled rows, at least one.
            logits: (N, classes) logits of the model, in the order of `rows`.

        Raises:
            ValueError: there are no rows, sizes differ, a row has no label, or a logit is not finite.
        """
        gold, temperatures = [row.label for row in rows], trained.calibration.temperatures
        probabilities = probabilities_of(logits, temperatures)
        return cls(
            temperatures if trained.calibration.skipped is None else None,
            reliability(gold, probabilities_of(logits)),
            reliability(gold, probabilities),
            accuracy_by_coverage(gold, probabilities),
        )

    def note(self) -> str:
        """Returns one line with the expected calibration error."""
        before, after = (f"{100 * one.error:.1f}" for one in (self.before, self.after))
        if self.temperatures is None:
            return f"expected calibration error: {after} points; this model has no temperature scaling"
        shown = ", ".join(f"{one:.3f}" for one in self.temperatures)
        return (
            f"expected calibration error: {before} points before temperature scaling, {after} after it"
            f" (temperatures {shown})"
        )

    def caption(self) -> str:
        """Returns one sentence that compares mean confidence with accuracy."""
        filled = [one for one in self.after.bins if one.rows]
        total = sum(one.rows for one in filled)
        confidence = sum(one.rows * one.confidence for one in filled) / total
        accuracy = sum(one.rows * one.accuracy for one in filled) / total
        if abs(confidence - accuracy) < 0.01:
            finding = "well calibrated on average"
        else:
            finding = "overconfident" if confidence > accuracy else "underconfident"
        return (
            f"The model is {finding}: its mean confidence is {confidence:.0%}, and {accuracy:.0%} of its predictions"
            " are correct."
        )

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows of the table of accuracy by coverage."""
        header = ["confidence at least", "rows", "coverage in %", "accuracy in %"]
        return header, [
            [f"{one.threshold:.2f}", str(one.rows), f"{100 * one.coverage:.1f}", percent(one.accuracy)]
            for one in self.covered
        ]

    def to_json(self) -> dict:
        """Returns the calibration as JSON types, with NaN as None."""

        return {
            "temperatures": self.temperatures,
            "error_before": self.before.error,
            "error_after": self.after.error,
            "bins_before": [plain(one) for one in self.before.bins],
            "bins_after": [plain(one) for one in self.after.bins],
            "coverage": [plain(one) for one in self.covered],
        }

    def figure(self) -> Figure:
        """Returns a reliability diagram: accuracy by confidence in upper panels, shares of rows in lower panels.

        The figure of a model with temperatures has two columns of panels, before and after temperature scaling; the
        figure of any other model has one column.
        """
        from matplotlib.figure import Figure

        panels = {"no temperature scaling": self.after}
        if self.temperatures is not None:
            panels = {"before temperature scaling": self.before, "after temperature scaling": self.after}
        figure = Figure(figsize=(3.6 * len(panels), 4.2), layout="constrained")
        axes = figure.subplots(
            2, len(panels), squeeze=False, sharex=True, sharey="row", gridspec_kw={"height_ratios": (3, 1)}
        )
        for (title, found), above, below in zip(panels.items(), *axes):
            above.set_title(f"{title}: {100 * found.error:.1f} points", fontsize=10)
            _draw(found, above, below)
        axes[0][0].set_ylabel("accuracy")
        axes[1][0].set_ylabel("share of rows")
        return figure


def _draw(found: Reliability, above: Axes, below: Axes) -> None:
    filled = [one for one in found.bins if one.rows]
    total, width = sum(one.rows for one in filled), 1 / len(found.bins)
    left = [one.low for one in filled]
    above.bar(left, [one.accuracy for one in filled], width, align="edge", color="#2166ac", edgecolor="white")
    above.plot([0, 1], [0, 1], color="0.4", linewidth=0.8, linestyle="--")
    above.plot([one.confidence for one in filled], [one.accuracy for one in filled], "o", color="#b2182b", markersize=4)
    below.bar(left, [one.rows / total for one in filled], width, align="edge", color="0.6", edgecolor="white")
    below.set_xlabel("confidence")
    for axis in (above, below):
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1)
        axis.spines[["top", "right"]].set_visible(False)
