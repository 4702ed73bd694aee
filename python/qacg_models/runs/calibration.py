"""`calibration.json` in the folder of a model: the temperatures of its probabilities, and on what they were fitted."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from qacg_models.errors import InputError, ModelFolderError
from qacg_models.metrics.temperature import LEAST, MOST
from qacg_models.utils.atomic_files import written_whole
from qacg_models.utils.json_fields import typed
from qacg_models.utils.plain_text import parse_json, read_text

CALIBRATION_NAME = "calibration.json"
CALIBRATION_FORMAT = 2  # 1 had one temperature for all labels


@dataclass(frozen=True)
class Fit:
    """Where temperatures come from.

    Attributes:
        split: on whose rows they were fitted, and `rows` how many they are.
        error_before, error_after: expected calibration error on them, without and with the temperatures, as shares.
    """

    split: str
    rows: int
    error_before: float
    error_after: float


@dataclass(frozen=True)
class Calibration:
    """The content of calibration.json.

    Attributes:
        temperatures: by which logits are divided before the softmax, one for each label, by the label with the highest
            logit; or a single one for all, which is 1 where none was fitted.
        fit: None where none was fitted, and then `skipped` says why.

    Raises:
        InputError: no temperature, one that no fit gives, or one without a fit.
    """

    temperatures: tuple[float, ...] = (1.0,)
    fit: Fit | None = None
    skipped: str | None = None

    def __post_init__(self):
        if not self.temperatures:
            raise InputError("temperatures: got none, wanted one for each label, or one for all")
        for index, one in enumerate(self.temperatures):
            if not LEAST <= one <= MOST:
                raise InputError(f"temperatures[{index}]: got {one}, wanted a number from {LEAST:g} to {MOST:g}")
        if (self.fit is None) == (self.skipped is None):
            got = "neither" if self.fit is None else "both"
            raise InputError(f"fit, skipped: got {got}, wanted where they were fitted, or why they were not")
        if self.fit is None and self.temperatures != (1.0,):
            raise InputError(f"temperatures: got {self.shown()} without a fit, wanted a single 1")

    def describe(self) -> str:
        """One line that says what was done."""
        if self.fit is None:
            return f"temperatures: not fitted, {self.skipped}"
        return (
            f"temperatures: {self.shown()}, fitted on {self.fit.rows} rows of {self.fit.split}; expected "
            f"calibration error there {100 * self.fit.error_before:.1f} points before, "
            f"{100 * self.fit.error_after:.1f} after"
        )

    def shown(self) -> str:
        """The temperatures in the order of the labels."""
        return ", ".join(f"{one:.3f}" for one in self.temperatures)


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
        content = rest | {"format": CALIBRATION_FORMAT, "temperatures": [content["temperature"]]}
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
