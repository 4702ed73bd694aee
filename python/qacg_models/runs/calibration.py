"""`calibration.json` in the folder of a model: the temperatures of its probabilities, and on what they were fitted."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from qacg_models.errors import InputError, ModelFolderError
from qacg_models.metrics.temperature import LEAST, MOST
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.json_fields import convert_json
from qacg_models.utils.plain_text import parse_json, read_text

CALIBRATION_NAME = "calibration.json"
CALIBRATION_FORMAT = 3  # 1 had one temperature for all labels, 2 no cross-validation
# Below so many rows, what a fit gives is rough.
LEAST_FIT_ROWS = 100
VALIDITY = (
    "Calibration is measured on dev, and holds for text like dev. On text unlike the training text (another domain,"
    " another source) confidence is too high: evaluate labelled rows of such text before you rely on a threshold."
)


@dataclass(frozen=True)
class Candidate:
    """A way to set temperatures, judged on rows that were held out of its fit.

    Attributes:
        name: `none`, `one` for all labels, or `per label`.
        log_loss: mean over the rows, in nats.
        error: expected calibration error, as a share.
        gain: by how much the log loss is lower than that of the candidate kept so far; 0 for `none`.
        gain_error: standard error of the gain, over sentences.
    """

    name: str
    log_loss: float
    error: float
    gain: float
    gain_error: float


@dataclass(frozen=True)
class Fit:
    """The rows on which temperatures were fitted, and what came of it.

    Attributes:
        split: name of the split, and `rows` the number of its rows.
        error_before, error_after: expected calibration error on the rows, without temperatures and with those that
            were kept, as shares; of rows held out of the fit where there are folds.
        sentences, folds: of the cross-validation; 0 for a file of format 2 or older, which had none.
        candidates: in the order in which they were compared.
    """

    split: str
    rows: int
    error_before: float
    error_after: float
    sentences: int = 0
    folds: int = 0
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Calibration:
    """The content of calibration.json.

    Attributes:
        temperatures: by which logits are divided before the softmax, one for each label, by the label with the highest
            logit; or a single one for all, which is 1 where none is kept.
        fit: None where none could be fitted.
        skipped: why no temperature is kept; None where one is.

    Raises:
        InputError: no temperature, one that no fit gives, or one that is not 1 without a fit or beside `skipped`.
    """

    temperatures: tuple[float, ...] = (1.0,)
    fit: Fit | None = None
    skipped: str | None = None

    def __post_init__(self):
        if not self.temperatures:
            raise InputError("temperatures: got none, expected one for each label, or one for all")
        for index, one in enumerate(self.temperatures):
            if not LEAST <= one <= MOST:
                raise InputError(f"temperatures[{index}]: got {one}, expected a number from {LEAST:g} to {MOST:g}")
        if self.fit is None and self.skipped is None:
            raise InputError("fit, skipped: got neither, expected the fit, or why there is none")
        if self.skipped is not None and self.temperatures != (1.0,):
            raise InputError(f"temperatures: got {self.shown()} beside skipped, expected a single 1")

    def describe(self) -> str:
        """One line: the temperatures that are kept, why, and whether there were enough rows."""
        if self.fit is None:
            return f"temperatures: not fitted, {self.skipped}"
        fit = self.fit
        rows = f"{fit.rows:,} rows of {fit.split}"
        if self.skipped is not None:
            line = f"temperatures: fitted on {rows}, but not kept, {self.skipped}"
        else:
            line = f"temperatures: {self.shown()}, fitted on {rows}"
        line += "; expected calibration error there"
        line += f" in {fit.folds}-fold cross-validation" if fit.folds else ""
        line += f" {100 * fit.error_before:.1f} points"
        line += f" before, {100 * fit.error_after:.1f} after" if self.skipped is None else ""
        for one in fit.candidates[1:]:
            direction = "lower" if one.gain >= 0 else "higher"
            line += f"; log loss {abs(one.gain):.4f} {direction} (standard error {one.gain_error:.4f})"
            line += f" with {_WORDS[one.name]}"
        if fit.rows < LEAST_FIT_ROWS:
            line += f"; warning: fewer than {LEAST_FIT_ROWS} rows, so probabilities are rough; label more rows for dev"
        return line

    def shown(self) -> str:
        """The temperatures in the order of the labels."""
        return ", ".join(f"{one:.3f}" for one in self.temperatures)


_WORDS = {"one": "one temperature", "per label": "one for each label"}
UNCALIBRATED = Calibration(skipped=f"the model's folder has no {CALIBRATION_NAME}")


def read_calibration(folder: Path) -> Calibration:
    """The calibration of a model folder; `UNCALIBRATED` for one without the file.

    Raises:
        ModelFolderError: a file that is not such a record, with the field in question.
    """
    path = folder / CALIBRATION_NAME
    try:
        content = parse_json(read_text(path))
    except FileNotFoundError:
        return UNCALIBRATED
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path}: is not JSON ({error})") from None
    if isinstance(content, dict) and content.get("format") == 1 and "temperature" in content:
        rest = {name: value for name, value in content.items() if name != "temperature"}
        content = rest | {"format": 2, "temperatures": [content["temperature"]]}
    if isinstance(content, dict) and content.get("format") == 2:
        added = {"sentences": 0, "folds": 0, "candidates": []}
        fit = content.get("fit")
        content = content | {"format": CALIBRATION_FORMAT, "fit": fit | added if isinstance(fit, dict) else fit}
    if not isinstance(content, dict) or content.get("format") != CALIBRATION_FORMAT:
        raise ModelFolderError(f"{path}: is not a calibration of format {CALIBRATION_FORMAT}")
    try:
        return convert_json(Calibration, {name: value for name, value in content.items() if name != "format"})
    except InputError as error:
        raise ModelFolderError(f"{path}: {error}") from None


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Writes calibration.json."""
    with atomic_write(folder / CALIBRATION_NAME) as handle:
        content = {"format": CALIBRATION_FORMAT} | asdict(calibration)
        handle.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
