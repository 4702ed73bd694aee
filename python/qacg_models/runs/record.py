"""The record of a training, `training.json` in the folder of a model: how it was trained, on what, how well it does."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from qacg_models.configs.limits import MOST, limit
from qacg_models.data.data_warnings import DataWarning
from qacg_models.data.options import DataOptions
from qacg_models.data.task import Task
from qacg_models.errors import InputError, ModelFolderError
from qacg_models.metrics import METRIC_CLASSES, Metrics
from qacg_models.runs.options import TrainingOptions
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.json_fields import convert_json
from qacg_models.utils.plain_text import parse_json, read_text

RECORD_NAME = "training.json"
RECORD_FORMAT = 8


# Why a training ended: all its steps were taken, dev no longer rose, or its minutes were over.
ENDS = ("steps", "patience", "minutes")


@dataclass(frozen=True)
class Selection:
    """Which checkpoint was kept.

    Attributes:
        split: on which the metric was taken.
        metric: of the task, by which checkpoints were compared.
        step: of the checkpoint.
        value: of the metric, as a share.
    """

    split: str
    metric: str
    step: int
    value: float


@dataclass(frozen=True)
class SplitFile:
    """A split as it was read: its number of rows, and the digest of its file."""

    rows: int
    sha256: str


@dataclass(frozen=True)
class TrainingRecord:
    """The content of training.json.

    Attributes:
        task: labels and aspects.
        contexts: names of the contexts; the index is the context id.
        max_length: most tokens of an input.
        options: every choice of training, settled.
        data_options: how the data was read.
        selected: the checkpoint that was kept.
        collapsed_steps: steps of evaluations at which one label was predicted for every row.
        label_shares: share of each label among the rows of the training split.
        overlap: pairs of splits, and the number of sentences that stand in both.
        data: the splits.
        warnings: about the data, as `training_warnings` found them.
        padding: share of padding in batches padded to their longest row.
        steps: how many were taken.
        seconds: how long they took, evaluations included.
        loss: pairs of a step and the loss there.
        versions, machine, commit: with what it was trained; no commit for an installed package.
        written: when, in UTC.
        ended: why training ended, one of ENDS.
        parts: in how many parts batches came to be taken, for which there was no memory at once.
        metrics, tfidf, majority: those of the model, of TF-IDF with logistic regression, and of the majority row, by
            split; none while training goes on, and of `tfidf` none in a record from before it was taken.
    """

    task: Task
    contexts: tuple[str, ...]
    max_length: int
    options: TrainingOptions
    data_options: DataOptions
    selected: Selection
    collapsed_steps: tuple[int, ...]
    label_shares: tuple[float, ...]
    overlap: tuple[tuple[str, str, int], ...]
    data: dict[str, SplitFile]
    warnings: tuple[DataWarning, ...]
    padding: float
    steps: int
    seconds: float
    loss: tuple[tuple[int, float], ...]
    ended: str
    parts: int
    versions: dict[str, str]
    machine: dict[str, object]
    commit: str | None
    written: str
    metrics: dict[str, Metrics]
    tfidf: dict[str, Metrics]
    majority: dict[str, Metrics]

    def __post_init__(self):
        if not 1 <= self.max_length <= MOST["max_position_embeddings"][0]:
            most = limit("max_position_embeddings")
            raise InputError(f"max_length: got {self.max_length}, wanted at least 1 and at most {most}")
        shares, labels = len(self.label_shares), len(self.task.labels)
        if shares != labels:
            raise InputError(f"label_shares: got {shares} shares, wanted {labels}, one for each label")
        for context in self.contexts:
            try:
                self.task.split_context(context)
            except ValueError as error:
                raise InputError(f"contexts: {error}") from None
        if self.ended not in ENDS:
            raise InputError(f"ended: got {self.ended!r}, wanted one of {', '.join(ENDS)}")
        if self.tfidf.keys() - self.metrics.keys():
            raise InputError(f"tfidf: got the splits {[*self.tfidf]}, wanted those of metrics, {[*self.metrics]}")
        if self.metrics.keys() != self.majority.keys():
            raise InputError(f"majority: got the splits {[*self.majority]}, wanted those of metrics, {[*self.metrics]}")

    def to_json(self) -> dict:
        """As plain types for a JSON file."""
        plain = {"format": RECORD_FORMAT} | asdict(self)
        for name in ("metrics", "tfidf", "majority"):
            plain[name] = {split: taken.to_json() for split, taken in getattr(self, name).items()}
        return plain

    @classmethod
    def from_json(cls, content: object) -> TrainingRecord:
        """Inverse of `to_json`.

        Raises:
            InputError: naming the field that is missing, unknown, of another type or out of its limits.
        """
        if isinstance(content, dict) and content.get("format") == 2:
            content = _of_format_2(content)
        if isinstance(content, dict) and content.get("format") == 3:
            content = _of_format_3(content)
        if isinstance(content, dict) and content.get("format") == 4:
            content = _of_format_4(content)
        if isinstance(content, dict) and content.get("format") == 5:
            content = _of_format_5(content)
        if isinstance(content, dict) and content.get("format") == 6:
            content = _of_format_6(content)
        if isinstance(content, dict) and content.get("format") == 7:
            content = _of_format_7(content)
        if not isinstance(content, dict) or content.get("format") != RECORD_FORMAT:
            raise InputError(f"is not a training record of format {RECORD_FORMAT}")
        given = {name: value for name, value in content.items() if name != "format"}
        if "task" not in given:
            raise InputError("lacks task, so it is not whole")
        task = convert_json(Task, given["task"], "task")

        def of_task(value: object, path: str) -> Metrics:
            return METRIC_CLASSES[task.metrics].from_json(value, path)

        return convert_json(cls, given, "", {Metrics: of_task})


def _of_format_2(content: dict) -> dict:
    """A record from before trainings with an open end, as one of after."""
    options = content.get("options")
    if isinstance(options, dict):
        options = {"schedule": "linear", "minutes": 0.0, "word_dropout": 0.0} | options
    return {"tfidf": {}, "ended": "steps"} | content | {"options": options, "format": 3}


def _of_format_3(content: dict) -> dict:
    """A record from before batches were taken in parts and quasi-attention could be left out, as one of after."""
    options = content.get("options")
    if isinstance(options, dict):
        options = {"quasi_scale": None} | options
    return {"parts": 1} | content | {"options": options, "format": 4}


def _of_format_4(content: dict) -> dict:
    """A record from before texts were joined, as one of after."""
    options = content.get("options")
    if isinstance(options, dict):
        options = {"join_texts": 0.0} | options
    return content | {"options": options, "format": 5}


def _of_format_5(content: dict) -> dict:
    """A record from before lambda could be weighted, as one of after."""
    options = content.get("options")
    if isinstance(options, dict):
        options = {"beta": None, "gamma": None} | options
    return content | {"options": options, "format": 6}


def _of_format_6(content: dict) -> dict:
    """A record from before warnings, wide tables, other encodings and empty cells, as one of after."""
    reading = content.get("data_options")
    if isinstance(reading, dict):
        reading = {"encoding": "utf-8", "wide": False, "aspect_columns": None, "skip_empty": False} | reading
    return {"warnings": []} | content | {"data_options": reading, "format": 7}


def _of_format_7(content: dict) -> dict:
    """A record from before the loss adjusted logits, in the present format."""
    options = content.get("options")
    if isinstance(options, dict):
        options = {"logit_adjustment": 0.0} | options
    return content | {"options": options, "format": RECORD_FORMAT}


def read_record(folder: Path | str) -> TrainingRecord:
    """The record of a model folder.

    Raises:
        ModelFolderError: no such folder or file, or one that is not such a record, with the field in question.
    """
    folder = Path(folder)
    path = folder / RECORD_NAME
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: no such folder")
    try:
        content = parse_json(read_text(path))
    except FileNotFoundError:
        raise ModelFolderError(f"{folder}: has no {RECORD_NAME}; `qacg train` writes it") from None
    except ValueError as error:
        raise ModelFolderError(f"{path}: is not JSON ({error})") from None
    try:
        return TrainingRecord.from_json(content)
    except InputError as error:
        raise ModelFolderError(f"{path}: {error}") from None


def write_record(path: Path, record: TrainingRecord) -> None:
    """Writes training.json."""
    with atomic_write(path) as handle:
        handle.write(json.dumps(record.to_json(), indent=1, allow_nan=False) + "\n")
