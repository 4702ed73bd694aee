"""The temperatures of a model that has been trained, fitted on dev; never on a split that judges the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qacg_models.inference.trained_model import probabilities_of
from qacg_models.metrics.calibration import reliability
from qacg_models.metrics.temperature import fit_temperatures
from qacg_models.runs.calibration import Calibration, Fit

SPLIT = "dev"


def calibrate(protocol: str, gold: Sequence[int], logits: np.ndarray | None) -> Calibration:
    """The temperatures that suit dev best, or why there are none.

    Args:
        protocol: of training; the released one leaves probabilities as they are.
        gold: (N) true classes of dev.
        logits: (N, classes) of the model on dev; None where the data has no dev.
    """
    reason = _why_not(protocol, gold, logits)
    if reason is not None or logits is None:
        return Calibration(skipped=reason)
    found = fit_temperatures(gold, logits)
    before, after = (reliability(gold, probabilities_of(logits, some)).error for some in ((1.0,), found))
    return Calibration(found, Fit(SPLIT, len(gold), before, after))


def _why_not(protocol: str, gold: Sequence[int], logits: np.ndarray | None) -> str | None:
    if protocol == "released":
        return "as in the released code, whose protocol this is"
    if logits is None or not len(gold):
        return f"there are no rows of {SPLIT}"
    if len(set(gold)) < 2:
        return f"the rows of {SPLIT} have one label only, from which nothing can be learned of the others"
    if not np.isfinite(logits).all():
        return f"the model's logits are not finite on {SPLIT}"
    return None
