"""Temperatures of a model's probabilities: their choice on dev, reliability, and the file of a model.

- confidence of a row: the probability of its most probable label;
- expected calibration error (Naeini et al., 2015; Guo et al., 2017, arXiv:1706.04599, equation 3): rows are grouped by
  confidence into 15 bins of equal width between 0 and 1; the error is the mean of |accuracy - mean confidence| over the
  bins, weighted by their numbers of rows. A bin includes its upper end, and excludes its lower end.

Temperature scaling computes softmax(logits / T). Guo et al. choose T by maximum likelihood on held-out labels. For
b = 1 / T, that is the minimum of

    L(b) = sum over rows of  logsumexp(b z) - b z_gold,

which is convex in b, with slope E_p[z] - z_gold and curvature Var_p[z] per row, p = softmax(b z). L has no positive
minimum if every row is correct (b diverges), or if the true label's logit is on average below the row's mean logit (b
falls below 0). Therefore b has a Gamma prior with mode 1 / M, where M = 1 is the model without scaling:

    L(b) + K (M b - log b),    slope + K (M - 1 / b),    curvature + K / b^2.

This sum is strictly convex and diverges at 0 and infinity, so it has one finite positive minimum for any finite logits.
With K = 25, the prior has about the weight of the rows of a few sentences. It dominates a fit to few rows, and is
negligible for thousands of rows.

A model can be calibrated for one label and overconfident for another, for example if training oversamples rare labels.
The temperature of a label is fitted to the rows for which the label is predicted. M is then the common temperature, so
that a label with few rows keeps about the common temperature. Scaling a row changes no predicted label, but can change
the order of rows by probability, and therefore an AUC.

Temperatures are fitted on dev, and kept only if they lower the log loss of held-out rows. Three candidates are
compared, simplest first: no temperature, one for all labels, and, with at least MIN_SENTENCES sentences, one per label.
Each is evaluated in 10-fold cross-validation, with fewer folds for fewer sentences; all rows of a sentence are in the
same fold. A candidate replaces the best previous one if its log loss is lower by more than MARGIN standard errors of
the difference, computed over sentences. The criterion is log loss, because with few rows the expected calibration error
is mostly noise of its bins. docs/how-to/calibration.md has measurements.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from qacg_models.errors import InputError
from qacg_models.sentiment.example import text_digest
from qacg_models.sentiment.metrics import check_finite, ratio
from qacg_models.utils.fields import convert_json, read_model_file
from qacg_models.utils.files import atomic_write
from qacg_models.utils.text import counted

BINS = 15
THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
PRIOR = 25.0  # K of the module's docstring
# Fitted temperatures are clipped to this range.
LEAST, MOST = 0.05, 20.0
SPLIT = "dev"
FOLDS = 10
MARGIN = 1.5
MIN_SENTENCES = 30


def probabilities_of(logits: np.ndarray, temperatures: Sequence[float] = (1.0,)) -> np.ndarray:
    """Returns softmax(logits / temperature), (N, classes) float64.

    `temperatures` has one value for all rows; or one value per class, used for the rows with that predicted class.
    """
    logits = np.asarray(logits, dtype=np.float64)
    by_label = np.broadcast_to(temperatures, logits.shape[-1])
    scaled = logits / by_label[logits.argmax(-1, keepdims=True)]
    powers = np.exp(scaled - scaled.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Bin:
    """The rows whose confidence is above `low` and at most `high`; means are NaN without rows."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Covered:
    """Number, share and accuracy (NaN without rows) of the rows whose confidence is at least a threshold."""

    threshold: float
    rows: int
    coverage: float
    accuracy: float


@dataclass(frozen=True)
class Reliability:
    """Reliability bins by increasing confidence, and the expected calibration error in [0, 1]."""

    bins: tuple[Bin, ...]
    error: float


def reliability(gold: Sequence[int], probabilities: np.ndarray) -> Reliability:
    """Returns reliability bins and expected calibration error, for (N,) true classes and (N, classes) probabilities."""
    confidence, right = _confidence(gold, probabilities)
    # Rounding can give a probability slightly above 1.
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    rows = np.bincount(place, minlength=BINS)
    sums = [np.bincount(place, weights, BINS) for weights in (confidence, right)]
    bins = tuple(
        Bin(index / BINS, (index + 1) / BINS, int(count), *(ratio(total[index], count) for total in sums))
        for index, count in enumerate(rows)
    )
    gaps = [one.rows * abs(one.accuracy - one.confidence) for one in bins if one.rows]
    return Reliability(bins, math.fsum(gaps) / len(confidence))


def accuracy_by_coverage(
    gold: Sequence[int], probabilities: np.ndarray, thresholds: Sequence[float] = THRESHOLDS
) -> list[Covered]:
    """Returns, for each threshold, number, share and accuracy of the rows with at least this confidence."""
    confidence, right = _confidence(gold, probabilities)
    return [
        Covered(threshold, int(sure.sum()), float(sure.mean()), ratio(right[sure].sum(), sure.sum()))
        for threshold in thresholds
        for sure in [confidence >= threshold]
    ]


def _confidence(gold: Sequence[int], probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (N,) confidences, and (N,) booleans: True where the most probable label is correct."""
    truth, probabilities = np.asarray(gold), np.asarray(probabilities, dtype=np.float64)
    check_finite("probabilities", probabilities)
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == truth


def fit_temperatures(gold: Sequence[int], logits: np.ndarray) -> tuple[float, ...]:
    """Returns a temperature for each label, fitted to the rows for which the label is predicted.

    A label that is never predicted gets the temperature that is fitted to all rows.
    """
    common = fit_temperature(gold, logits)
    truth, scores = np.asarray(gold), np.asarray(logits, dtype=np.float64)
    winners = scores.argmax(axis=1)
    found = []
    for label in range(scores.shape[1]):
        rows = winners == label
        found.append(fit_temperature(truth[rows], scores[rows], common) if rows.any() else common)
    return tuple(found)


def fit_temperature(gold: Sequence[int], logits: np.ndarray, mode: float = 1.0) -> float:
    """Returns the temperature with the highest posterior density, between LEAST and MOST; `mode` is M of the prior."""
    from scipy.optimize import brentq

    truth, scores = np.asarray(gold), np.asarray(logits, dtype=np.float64)
    check_finite("logits", scores)
    scores = scores - scores.max(axis=1, keepdims=True)  # softmax is invariant to a shift
    total = scores[np.arange(len(truth)), truth].sum()

    def slope(inverse: float) -> float:
        shares = np.exp(inverse * scores)
        means = (shares * scores).sum(axis=1) / shares.sum(axis=1)
        return float(means.sum() - total + PRIOR * (mode - 1 / inverse))

    low, high = 1 / MOST, 1 / LEAST
    if slope(low) >= 0:
        return MOST
    if slope(high) <= 0:
        return LEAST
    return 1 / brentq(slope, low, high, xtol=1e-14)


CALIBRATION_NAME = "calibration.json"
CALIBRATION_FORMAT = 1
MIN_FIT_ROWS = 100  # with fewer rows a fit is imprecise, and `Calibration.describe` adds a warning
VALIDITY = (
    "Calibration is measured on dev, and is valid for similar text. On other text (another domain, another source)"
    " confidence can be too high: evaluate labelled rows of such text before you rely on a threshold."
)


@dataclass(frozen=True)
class Candidate:
    """Cross-validation results of a candidate for temperature scaling.

    The name is `none` (no temperature), `one` (one for all labels) or `per label`. `error` is the expected calibration
    error. `gain` is the decrease of the log loss, a mean in nats, relative to the candidate chosen among the earlier
    ones. `gain_error` is its standard error, computed over sentences, because rows of a sentence are not independent.
    """

    name: str
    log_loss: float
    error: float
    gain: float
    gain_error: float

    @property
    def is_better(self) -> bool:
        """Whether the gain is above the margin."""
        return self.gain > MARGIN * self.gain_error


@dataclass(frozen=True)
class Fit:
    """The cross-validation by which temperatures were chosen.

    `error_before` and `error_after` are the expected calibration error on held-out rows, in [0, 1], without
    temperatures and with the chosen candidate. The candidates are in the order in which they were compared.
    """

    split: str
    rows: int
    error_before: float
    error_after: float
    sentences: int
    folds: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Calibration:
    """The content of calibration.json.

    Attributes:
        temperatures: divisors of the logits before the softmax: one for all rows, 1 without temperature scaling; or one
            per label, by which the rows are divided whose highest logit is that of the label.
        fit: the cross-validation; None if no temperature was fitted.
        skipped: the reason why there is no temperature scaling, beginning with "because"; None with it.
    """

    temperatures: tuple[float, ...] = (1.0,)
    fit: Fit | None = None
    skipped: str | None = None

    def __post_init__(self):
        if not self.temperatures:
            raise InputError("temperatures: expected one for each label, or one for all labels, got none")
        for index, one in enumerate(self.temperatures):
            if not LEAST <= one <= MOST:
                raise InputError(f"temperatures[{index}]: expected a number from {LEAST:g} to {MOST:g}, got {one}")

    def describe(self) -> str:
        """Returns a line with the temperatures, or why there are none, and the results of the fit."""
        if self.fit is None:
            return f"temperatures: not fitted, {self.skipped}"
        fit = self.fit
        rows = f"{counted(fit.rows, 'row')} of {fit.split}"
        if self.skipped is not None:
            line = f"temperatures: fitted on {rows}, but not kept, {self.skipped}"
        else:
            line = f"temperatures: {', '.join(f'{one:.3f}' for one in self.temperatures)}, fitted on {rows}"
        line += f"; expected calibration error in {fit.folds}-fold cross-validation {100 * fit.error_before:.1f} points"
        line += f" before, {100 * fit.error_after:.1f} after" if self.skipped is None else ""
        if fit.rows < MIN_FIT_ROWS:
            line += f"; warning: fewer than {MIN_FIT_ROWS} rows make probabilities imprecise; label more rows for dev"
        return line


UNCALIBRATED = Calibration(skipped=f"because the model folder has no {CALIBRATION_NAME}")


def read_calibration(folder: Path) -> Calibration:
    """Reads the calibration of a model folder; returns `UNCALIBRATED` if the folder has no calibration.json."""
    path = folder / CALIBRATION_NAME
    if not path.is_file():
        return UNCALIBRATED
    return read_model_file(path, CALIBRATION_FORMAT, lambda content: convert_json(Calibration, content))


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Writes calibration.json to a model folder."""
    with atomic_write(folder / CALIBRATION_NAME) as handle:
        content = {"format": CALIBRATION_FORMAT} | asdict(calibration)
        handle.write(json.dumps(content, indent=1, allow_nan=False) + "\n")


def calibrate(protocol: str, gold: Sequence[int], logits: np.ndarray | None, sentences: Sequence[str]) -> Calibration:
    """Returns the temperatures of the best candidate in cross-validation on dev, or the reason why there are none.

    `gold`, `logits` and `sentences` are those of the rows of dev; `logits` is None if the data has no dev.
    """
    reason = _why_not(protocol, gold, logits, sentences)
    if reason is not None or logits is None:
        return Calibration(skipped=reason)
    fittings: dict[str, Fitting] = {
        "none": lambda gold, logits: (1.0,),
        "one": lambda gold, logits: (fit_temperature(gold, logits),),
    }
    count = len(set(sentences))
    if count >= MIN_SENTENCES:
        fittings["per label"] = fit_temperatures
    candidates = _cross_validate(fittings, np.asarray(gold), logits, sentences)
    none, *others = candidates
    kept = next((one for one in reversed(others) if one.is_better), none)
    fit = Fit(SPLIT, len(gold), none.error, kept.error, count, min(FOLDS, count), tuple(candidates))
    if kept is none:
        reason = f"because none lowers the log loss of held-out rows by more than {MARGIN} standard errors"
        return Calibration(fit=fit, skipped=reason)
    return Calibration(fittings[kept.name](gold, logits), fit)


Fitting = Callable[[Sequence[int], np.ndarray], tuple[float, ...]]


def _cross_validate(
    fittings: dict[str, Fitting], gold: np.ndarray, logits: np.ndarray, sentences: Sequence[str]
) -> list[Candidate]:
    """Returns the candidates, each compared with the best previous one."""
    texts = sorted(set(sentences), key=text_digest)  # so that the order of the rows does not change the folds
    number = {text: index for index, text in enumerate(texts)}
    sentence, count = np.array([number[text] for text in sentences]), len(texts)
    found: list[Candidate] = []
    kept_losses = None
    for name, fitting in fittings.items():
        probabilities = np.empty(logits.shape)
        for fold in range(min(FOLDS, count)):
            test = sentence % min(FOLDS, count) == fold
            probabilities[test] = probabilities_of(logits[test], fitting(gold[~test].tolist(), logits[~test]))
        losses = -np.log(np.maximum(probabilities[np.arange(len(gold)), gold], np.finfo(float).tiny))
        gains = np.bincount(sentence, (losses if kept_losses is None else kept_losses) - losses, count)
        candidate = Candidate(
            name,
            float(losses.mean()),
            reliability(gold.tolist(), probabilities).error,
            float(gains.sum() / len(gold)),
            float(gains.std(ddof=1) * count**0.5 / len(gold)),
        )
        if kept_losses is None or candidate.is_better:
            kept_losses = losses
        found.append(candidate)
    return found


def _why_not(protocol: str, gold: Sequence[int], logits: np.ndarray | None, sentences: Sequence[str]) -> str | None:
    if protocol == "released":
        return "because the protocol is that of the released code"
    if logits is None or not len(gold):
        return f"because there are no rows of {SPLIT}"
    if len(set(gold)) < 2:
        return f"because the rows of {SPLIT} have a single label"
    if len(set(sentences)) < 2:
        return f"because the rows of {SPLIT} have a single sentence, so none can be held out"
    if not np.isfinite(logits).all():
        return f"because the model's logits are not finite on {SPLIT}"
    return None
