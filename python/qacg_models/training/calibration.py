"""The temperatures of a model that has been trained: fitted on dev, kept only if they do better on rows held out.

Three candidates are compared, from the simplest: no temperature, one for all labels, and, from LEAST_SENTENCES
sentences on, one for each label. Each is fitted on nine tenths of dev and judged on the tenth left out, ten times; all
rows of a sentence are in the same tenth. A candidate replaces the one kept so far if its log loss is lower by more than
MARGIN standard errors of the difference, taken over sentences.

The criterion is log loss, because the expected calibration error of few rows is mostly noise of its bins. The margin is
there because temperatures lower the log loss of a few held-out sentences by chance: on five to ten sentences, of models
that need none, in every third to fourth case, and by more than the margin in every seventh to twenty-fifth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qacg_models.data.example import text_digest
from qacg_models.inference.trained_model import probabilities_of
from qacg_models.metrics.reliability import reliability
from qacg_models.metrics.temperature import fit_temperature, fit_temperatures
from qacg_models.runs.calibration import Calibration, Candidate, Fit

SPLIT = "dev"
FOLDS = 10
MARGIN = 1.5
LEAST_SENTENCES = 30

Fitting = Callable[[Sequence[int], np.ndarray], tuple[float, ...]]


def calibrate(protocol: str, gold: Sequence[int], logits: np.ndarray | None, sentences: Sequence[str]) -> Calibration:
    """The temperatures that do best on held-out rows of dev, or why there are none.

    Args:
        protocol: of training; the released one leaves probabilities as they are.
        gold: (N) true classes of dev.
        logits: (N, classes) of the model on dev; None where the data has no dev.
        sentences: (N) text of each row; rows with the same text are held out together.
    """
    reason = _why_not(protocol, gold, logits, sentences)
    if reason is not None or logits is None:
        return Calibration(skipped=reason)
    candidates, folds = _cross_validate(np.asarray(gold), logits, _numbers(sentences))
    none, *others = candidates
    kept = next((one for one in reversed(others) if _better(one)), none)
    count = len(set(sentences))
    fit = Fit(SPLIT, len(gold), none.error, kept.error, count, folds, tuple(candidates))
    if kept is none:
        reason = f"since none lowers the log loss of held-out rows by more than {MARGIN} standard errors"
        return Calibration(fit=fit, skipped=reason)
    return Calibration(_fittings(count)[kept.name](gold, logits), fit)


def _fittings(sentences: int) -> dict[str, Fitting]:
    """What fits the temperatures of each candidate, from the simplest."""
    fittings: dict[str, Fitting] = {
        "none": lambda gold, logits: (1.0,),
        "one": lambda gold, logits: (fit_temperature(gold, logits),),
    }
    return fittings | ({"per label": fit_temperatures} if sentences >= LEAST_SENTENCES else {})


def _better(candidate: Candidate) -> bool:
    return candidate.gain > MARGIN * candidate.gain_error


def _numbers(sentences: Sequence[str]) -> np.ndarray:
    """(N) a number from 0 for each sentence, in an order that depends on the texts alone."""
    texts = sorted(set(sentences), key=text_digest)
    number = {text: index for index, text in enumerate(texts)}
    return np.array([number[text] for text in sentences])


def _cross_validate(gold: np.ndarray, logits: np.ndarray, sentence: np.ndarray) -> tuple[list[Candidate], int]:
    """The candidates from the simplest, each beside the one kept until then, and the number of folds.

    Args:
        gold: (N) true classes.
        logits: (N, classes).
        sentence: (N) number of the sentence of each row.
    """
    count = int(sentence.max()) + 1
    folds = min(FOLDS, count)
    found: list[Candidate] = []
    kept_losses = None
    for name, fitting in _fittings(count).items():
        probabilities = np.empty(logits.shape)
        for fold in range(folds):
            held = sentence % folds == fold
            probabilities[held] = probabilities_of(logits[held], fitting(gold[~held].tolist(), logits[~held]))
        losses = -np.log(np.maximum(probabilities[np.arange(len(gold)), gold], np.finfo(float).tiny))
        gains = np.bincount(sentence, (losses if kept_losses is None else kept_losses) - losses, count)
        candidate = Candidate(
            name,
            float(losses.mean()),
            reliability(gold.tolist(), probabilities).error,
            float(gains.sum() / len(gold)),
            float(gains.std(ddof=1) * count**0.5 / len(gold)),
        )
        if kept_losses is None or _better(candidate):
            kept_losses = losses
        found.append(candidate)
    return found, folds


def _why_not(protocol: str, gold: Sequence[int], logits: np.ndarray | None, sentences: Sequence[str]) -> str | None:
    if protocol == "released":
        return "as in the released code, whose protocol this is"
    if logits is None or not len(gold):
        return f"there are no rows of {SPLIT}"
    if len(set(gold)) < 2:
        return f"the rows of {SPLIT} have one label only, from which nothing can be learned of the others"
    if len(set(sentences)) < 2:
        return f"the rows of {SPLIT} are of one sentence only, so none can be held out"
    if not np.isfinite(logits).all():
        return f"the model's logits are not finite on {SPLIT}"
    return None
