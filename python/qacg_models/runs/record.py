"""The record of a training, `training.json` in a model folder: options, data, metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qacg_models.data.data_warnings import DataWarning
from qacg_models.data.options import DataOptions
from qacg_models.data.task import Task
from qacg_models.errors import InputError, ModelFolderError
from qacg_models.metrics import METRIC_CLASSES, Metrics
from qacg_models.runs.options import TrainingOptions
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.field_checks import MOST, limit
from qacg_models.utils.json_fields import convert_json, read_model_file

RECORD_NAME = "training.json"
RECORD_FORMAT = 1


# Why a training ended: all steps were taken, the selection metric stopped improving, or the time limit was reached.
ENDS = ("steps", "patience", "minutes")


@dataclass(frozen=True)
class Selection:
    """The checkpoint whose weights were kept.

    Attributes:
        split: split on which the metric was computed.
        metric: name of the metric by which checkpoints were compared.
        step: training step of the checkpoint.
        value: value of the metric, in [0, 1].
    """

    split: str
    metric: str
    step: int
    value: float


@dataclass(frozen=True)
class SplitFile:
    """The number of rows of a split, and the SHA-256 of its concatenated files as hexadecimal digits."""

    rows: int
    sha256: str


@dataclass(frozen=True)
class TrainingRecord:
    """The content of training.json.

    Attributes:
        task: labels and aspects.
        targets: names of the targets; ("",) for a task without targets.
        max_length: maximum number of tokens of an input.
        options: options of training, from `resolve_options`.
        data_options: options with which the data was read.
        selected: the checkpoint whose weights the model has.
        collapsed_steps: training steps after which an evaluation found the same predicted label for every row.
        label_shares: share of each label among the rows of the training split.
        overlap: for each pair of splits, their names and the number of sentences that both have.
        data: number of rows and digest of each split.
        warnings: warnings about the data, from `training_warnings`.
        padding: share of padding among the tokens of random batches, each padded to its longest row; in [0, 1).
        steps: number of optimizer steps.
        evaluations: number of evaluations that could select the checkpoint, those before a resumed run's kill included;
            None in old records.
        seconds: duration of training, evaluations included.
        loss: pairs of a step and the training loss, averaged over the steps since the previous pair.
        ended: why training ended, one of ENDS.
        parts: number of micro-batches into which each batch was split at the end of training; above 1 if a batch did
            not fit into memory.
        versions, machine, commit: software and hardware of the training; `commit` is None for an installed package.
        written: time in UTC at which the record was created, in ISO 8601.
        metrics, tfidf, majority: metrics of the model, of TF-IDF with logistic regression, and of the majority
            baseline, by split; empty until training has ended.
        confusion: by split and aspect, numbers of rows by true label and predicted label; empty until training has
            ended.

    Raises:
        InputError: a field contradicts another one or is out of its limits.
    """

    task: Task
    targets: tuple[str, ...]
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
    evaluations: int | None
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
    confusion: dict[str, dict[str, tuple[tuple[int, ...], ...]]]

    def __post_init__(self):
        if not 1 <= self.max_length <= MOST["max_position_embeddings"][0]:
            most = limit("max_position_embeddings")
            raise InputError(f"max_length: expected 1 to {most}, got {self.max_length}")
        shares, labels = len(self.label_shares), len(self.task.labels)
        if shares != labels:
            raise InputError(f"label_shares: expected {labels} shares, one for each label, got {shares}")
        named = all(name.strip() for name in self.targets) and len({*self.targets}) == len(self.targets) > 0
        if not (named if self.task.has_targets else self.targets == ("",)):
            expected = "distinct names" if self.task.has_targets else "one empty name, since the task has no targets"
            raise InputError(f"targets: expected {expected}, got {list(self.targets)}")
        if self.ended not in ENDS:
            raise InputError(f"ended: expected one of {', '.join(ENDS)}, got {self.ended!r}")
        if self.tfidf.keys() - self.metrics.keys():
            raise InputError(f"tfidf: expected only splits in metrics, {[*self.metrics]}, got {[*self.tfidf]}")
        if self.metrics.keys() != self.majority.keys():
            raise InputError(f"majority: expected the splits in metrics, {[*self.metrics]}, got {[*self.majority]}")
        for split, by_aspect in self.confusion.items():
            for aspect, matrix in by_aspect.items():
                lengths = [len(row) for row in matrix]
                if lengths != [labels] * labels:
                    raise InputError(
                        f"confusion.{split}.{aspect}: expected {labels} rows of {labels} numbers, got rows of {lengths}"
                        " numbers"
                    )

    @property
    def contexts(self) -> tuple[str, ...]:
        """Names of the contexts; the index is the context id."""
        return self.task.contexts(self.targets)

    @property
    def has_selection(self) -> bool:
        """Whether evaluations selected the checkpoint; False if only the last step was evaluated."""
        return has_selection(vars(self.options), self.selected.step, self.steps, self.evaluations)

    def to_json(self) -> dict:
        """Returns the record as values that JSON supports."""
        plain = {"format": RECORD_FORMAT} | asdict(self)
        for name in ("metrics", "tfidf", "majority"):
            plain[name] = {split: metrics.to_json() for split, metrics in getattr(self, name).items()}
        return plain

    @classmethod
    def from_json(cls, content: object) -> TrainingRecord:
        """Returns the record whose `to_json` returned `content`.

        Raises:
            InputError: a field is missing, unknown, of another type or out of its limits; the message names the field.
        """
        if not isinstance(content, dict) or content.get("format") != RECORD_FORMAT:
            found = content.get("format") if isinstance(content, dict) else None
            raise InputError(f"format: expected {RECORD_FORMAT}, got {found!r}. Train the model again.")
        given = {"evaluations": None} | {name: value for name, value in content.items() if name != "format"}
        if isinstance(given.get("data_options"), dict):  # old records have no `quoting`
            given["data_options"] = {"quoting": DataOptions.quoting} | given["data_options"]
        if "task" not in given:
            raise InputError("lacks the field task")
        task = convert_json(Task, given["task"], "task")
        if isinstance(contexts := given.get("contexts"), list) and all(isinstance(name, str) for name in contexts):
            # An earlier version stored the names of contexts: for each target, one for every aspect.
            first = task.context("", task.aspects[0])
            given["targets"] = [name.removesuffix(first) for name in given.pop("contexts")[:: len(task.aspects)]]

        def metrics_of_task(value: object, path: str) -> Metrics:
            return METRIC_CLASSES[task.metrics].from_json(value, path)

        return convert_json(cls, given, "", {Metrics: metrics_of_task})


def has_selection(options: Mapping[str, Any], selected: int, steps: int | None, evaluations: int | None = None) -> bool:
    """Returns whether evaluations selected the checkpoint; False if only the last step was evaluated.

    Args:
        options: the options of training, by name.
        selected: step of the checkpoint.
        steps: number of steps of the training; None if it is unknown.
        evaluations: number of evaluations; None if it is unknown: then the options decide.
    """
    if evaluations is not None:
        return evaluations > 1
    if steps is None or selected < steps:
        return True
    if options.get("eval_every"):
        return steps > options["eval_every"]
    # Evaluations are once per epoch. The number of steps of an epoch is not known here.
    return options.get("epochs") != 1 or options.get("max_steps") is not None


def read_record(folder: Path | str) -> TrainingRecord:
    """Reads the record of a model folder.

    Raises:
        ModelFolderError: the folder or the file does not exist, or the file is not a record; the message names the
            file or the field.
    """
    folder = Path(folder)
    path = folder / RECORD_NAME
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: no such folder")
    if not path.is_file():
        raise ModelFolderError(f"{folder}: expected a model folder of `qacg train`, got a folder without {RECORD_NAME}")
    return read_model_file(path, TrainingRecord.from_json)


def write_record(path: Path, record: TrainingRecord) -> None:
    """Writes a record to the file `path`; raises InputError if it cannot be written."""
    with atomic_write(path) as handle:
        handle.write(json.dumps(record.to_json(), indent=1, allow_nan=False) + "\n")
