"""`calibration.json` in the folder of a model: the temperature of its probabilities, and on what it was fitted."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from qacg_models.errors import InputError, ModelFolderError
from qacg_models.metrics.temperature import LEAST, MOST
from qacg_models.utils.atomic_files import written_whole
from qacg_models.utils.json_fields import typed
from qacg_models.utils.plain_text import parse_json

CALIBRATION_NAME = "calibration.json"
CALIBRATION_FORMAT = 1


@dataclass(frozen=True)
class Fit:
    """Where a temperature comes from.

    Attributes:
        split: on whose rows it was fitted, and `rows` how many they are.
        error_before, error_after: expected calibration error on them, without and with the temperature, as shares.
    """

    split: str
    rows: int
    error_before: float
    error_after: float


@dataclass(frozen=True)
class Calibration:
    """The content of calibration.json.

    Attributes:
        temperature: by which logits are divided before the softmax; 1 where none was fitted.
        fit: None where none was fitted, and then `skipped` says why.

    Raises:
        InputError: a temperature that no fit gives, or one without a fit.
    """

    temperature: float = 1.0
    fit: Fit | None = None
    skipped: str | None = None

    def __post_init__(self):
        if not LEAST <= self.temperature <= MOST:
            raise InputError(f"temperature: got {self.temperature}, wanted a number from {LEAST:g} to {MOST:g}")
        if (self.fit is None) == (self.skipped is None):
            got = "neither" if self.fit is None else "both"
            raise InputError(f"fit, skipped: got {got}, wanted where it was fitted, or why it was not")
        if self.fit is None and self.temperature != 1:
            raise InputError(f"temperature: got {self.temperature} without a fit, wanted 1")

    def describe(self) -> str:
        """One line that says what was done."""
        if self.fit is None:
            return f"temperature: not fitted, {self.skipped}"
        return (
            f"temperature: {self.temperature:.3f}, fitted on {self.fit.rows} rows of {self.fit.split}; expected "
            f"calibration error there {100 * self.fit.error_before:.1f} points before, "
            f"{100 * self.fit.error_after:.1f} after"
        )


UNCALIBRATED = Calibration(skipped=f"the model's folder has no {CALIBRATION_NAME}")


def read_calibration(folder: Path) -> Calibration:
    """The calibration of a model folder; `UNCALIBRATED` for one without the file.

    Raises:
        ModelFolderError: a file that is not such a record, with the field in question.
    """
    path = folder / CALIBRATION_NAME
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return UNCALIBRATED
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path}: is not JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != CALIBRATION_FORMAT:
        raise ModelFolderError(f"{path}: is not a calibration of format {CALIBRATION_FORMAT}")
    try:
        return typed(Calibration, {name: value for name, value in content.items() if name != "format"})
    except InputError as error:
        raise ModelFolderError(f"{path}: {error}") from None


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Writes calibration.json."""
    with written_whole(folder / CALIBRATION_NAME) as handle:
        content = {"format": CALIBRATION_FORMAT} | asdict(calibration)
        handle.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
