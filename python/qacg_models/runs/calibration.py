"""`calibration.json` in a model folder: the temperatures of the model's probabilities, and how they were fitted."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from qacg_models.errors import InputError
from qacg_models.metrics.calibration import LEAST, MOST
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.cells import counted
from qacg_models.utils.json_fields import convert_json, read_model_file

CALIBRATION_NAME = "calibration.json"
CALIBRATION_FORMAT = 1
# With fewer rows a fit is imprecise, and `Calibration.describe` adds a warning.
MIN_FIT_ROWS = 100
VALIDITY = (
    "Calibration is measured on dev, and is valid for similar text. On other text (another domain, another source)"
    " confidence can be too high: evaluate labelled rows of such text before you rely on a threshold."
)


@dataclass(frozen=True)
class Candidate:
    """Cross-validation results of a candidate for temperature scaling.

    Attributes:
        name: `none` (no temperature), `one` (one for all labels) or `per label` (one for each label).
        log_loss: mean log loss over the rows, in nats.
        error: expected calibration error, in [0, 1].
        gain: decrease of the mean log loss, in nats, relative to the candidate chosen among the earlier ones; 0 for
            `none`.
        gain_error: standard error of the gain, computed over sentences, because rows of a sentence are not independent.
    """

    name: str
    log_loss: float
    error: float
    gain: float
    gain_error: float


@dataclass(frozen=True)
class Fit:
    """The cross-validation by which temperatures were chosen.

    Attributes:
        split: name of the split.
        rows: number of rows of the split.
        error_before, error_after: expected calibration error on held-out rows, in [0, 1], without temperatures and
            with the chosen candidate. They are equal if the chosen candidate is `none`.
        sentences: number of distinct sentences.
        folds: number of folds.
        candidates: the candidates, in the order in which they were compared.
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
        temperatures: divisors of the logits before the softmax. A single temperature applies to all rows; it is 1
            without temperature scaling. With one temperature per label, the logits of a row are divided by the
            temperature of the label with the highest logit.
        fit: the cross-validation; None if no temperature was fitted.
        skipped: the reason why there is no temperature scaling, beginning with "because"; None with temperature
            scaling.

    Raises:
        InputError: `temperatures` is empty or has a value outside [LEAST, MOST] of `metrics.temperature`; `fit` and
            `skipped` are both None; or `skipped` is set and `temperatures` is not (1.0,).
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
        if self.fit is None and self.skipped is None:
            raise InputError("fit, skipped: expected the fit, or the reason why there is none, got neither")
        if self.skipped is not None and self.temperatures != (1.0,):
            raise InputError(
                "temperatures: expected one temperature of 1, because skipped is set, got"
                f" {self.format_temperatures()}. Omit temperatures or skipped."
            )

    def describe(self) -> str:
        """Returns a line with the temperatures, or why there are none, and the results of the fit, if there was one."""
        if self.fit is None:
            return f"temperatures: not fitted, {self.skipped}"
        fit = self.fit
        rows = f"{counted(fit.rows, 'row')} of {fit.split}"
        if self.skipped is not None:
            line = f"temperatures: fitted on {rows}, but not kept, {self.skipped}"
        else:
            line = f"temperatures: {self.format_temperatures()}, fitted on {rows}"
        line += f"; expected calibration error in {fit.folds}-fold cross-validation {100 * fit.error_before:.1f} points"
        line += f" before, {100 * fit.error_after:.1f} after" if self.skipped is None else ""
        for one in fit.candidates[1:]:
            direction = "lower" if one.gain >= 0 else "higher"
            line += f"; log loss {abs(one.gain):.4f} {direction} (standard error {one.gain_error:.4f})"
            line += f" with {_WORDS[one.name]}"
        if fit.rows < MIN_FIT_ROWS:
            line += f"; warning: fewer than {MIN_FIT_ROWS} rows make probabilities imprecise; label more rows for dev"
        return line

    def format_temperatures(self) -> str:
        """Returns the temperatures as text, in the order of the labels, such as "1.204, 0.950"."""
        return ", ".join(f"{one:.3f}" for one in self.temperatures)


_WORDS = {"one": "one temperature", "per label": "one for each label"}
UNCALIBRATED = Calibration(skipped=f"because the model folder has no {CALIBRATION_NAME}")


def read_calibration(folder: Path) -> Calibration:
    """Reads the calibration of a model folder; returns `UNCALIBRATED` if the folder has no calibration.json.

    Raises:
        ModelFolderError: the file cannot be read, or is no calibration; the message names the file and the field.
    """
    path = folder / CALIBRATION_NAME
    if not path.is_file():
        return UNCALIBRATED
    return read_model_file(path, CALIBRATION_FORMAT, lambda content: convert_json(Calibration, content))


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Writes calibration.json to a model folder; raises InputError if it cannot be written."""
    with atomic_write(folder / CALIBRATION_NAME) as handle:
        content = {"format": CALIBRATION_FORMAT} | asdict(calibration)
        handle.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
