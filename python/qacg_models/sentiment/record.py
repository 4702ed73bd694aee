"""Files of a model folder that describe its training.

| file | content |
|---|---|
| `training.json` | the record of the training: options, data, metrics |
| `run.yaml` | all options of the run, which `--config` reads |
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from qacg_models.errors import InputError, ModelFolderError
from qacg_models.sentiment.data_warnings import DataWarning
from qacg_models.sentiment.example import Task
from qacg_models.sentiment.metrics import METRIC_CLASSES, Metrics
from qacg_models.sentiment.options import DataOptions, TrainingOptions, describe_default
from qacg_models.utils.fields import convert_json, format_value, kind_of, read_model_file
from qacg_models.utils.files import atomic_write
from qacg_models.utils.text import lone_surrogate, read_text

RECORD_NAME = "training.json"
RECORD_FORMAT = 1
RUN_NAME = "run.yaml"


@dataclass(frozen=True)
class Selection:
    """The checkpoint whose weights were kept: the split and the metric that selected it, its step, and the value."""

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
        targets: names of the targets; ("",) for a task without targets.
        options: options of training, from `resolve_options`.
        label_shares: share of each label among the rows of the training split.
        overlap: for each pair of splits, their names and the number of sentences that both have.
        evaluations: number of evaluations that could select the checkpoint, those before a resumed run's kill included.
        seconds: duration of training, evaluations included.
        loss: pairs of a step and the training loss, averaged over the steps since the previous pair.
        ended: why training ended: "steps" (all were taken), "patience" (the metric stopped improving) or "minutes".
        commit: of the checkout with which the model was trained; None for an installed package.
        written: time in UTC at which the record was created, in ISO 8601.
        metrics, tfidf, majority, confusion: by split; empty until training has ended. `confusion` has numbers of rows
            by aspect, true label and predicted label.
        bfloat16_agreement: share of the rows of dev with the same label in bfloat16 as in float32; None if training
            ended on a CPU without bfloat16 instructions, on a GPU or without dev, and in older records.
    """

    task: Task
    targets: tuple[str, ...]
    max_length: int
    options: TrainingOptions
    data_options: DataOptions
    selected: Selection
    label_shares: tuple[float, ...]
    overlap: tuple[tuple[str, str, int], ...]
    data: dict[str, SplitFile]
    warnings: tuple[DataWarning, ...]
    steps: int
    evaluations: int
    seconds: float
    loss: tuple[tuple[int, float], ...]
    ended: str
    versions: dict[str, str]
    machine: dict[str, object]
    commit: str | None
    written: str
    metrics: dict[str, Metrics]
    tfidf: dict[str, Metrics]
    majority: dict[str, Metrics]
    confusion: dict[str, dict[str, tuple[tuple[int, ...], ...]]]
    bfloat16_agreement: float | None = None

    def __post_init__(self):
        shares, labels = len(self.label_shares), len(self.task.labels)
        if shares != labels:
            raise InputError(f"label_shares: expected {labels} shares, one for each label, got {shares}")
        named = all(name.strip() for name in self.targets) and len({*self.targets}) == len(self.targets) > 0
        if not (named if self.task.has_targets else self.targets == ("",)):
            expected = "distinct names" if self.task.has_targets else "one empty name, since the task has no targets"
            raise InputError(f"targets: expected {expected}, got {list(self.targets)}")

    @property
    def contexts(self) -> tuple[str, ...]:
        """Names of the contexts; the index is the context id."""
        return self.task.contexts(self.targets)

    @property
    def has_selection(self) -> bool:
        """Whether evaluations selected the checkpoint; False if only the last step was evaluated."""
        return self.evaluations > 1

    def to_json(self) -> dict:
        """Returns the record as values that JSON supports."""
        plain = {"format": RECORD_FORMAT} | asdict(self)
        for name in ("metrics", "tfidf", "majority"):
            plain[name] = {split: metrics.to_json() for split, metrics in getattr(self, name).items()}
        return plain

    @classmethod
    def from_json(cls, content: dict) -> TrainingRecord:
        """Returns the record whose `to_json` returned `content`; InputError names the field that is invalid."""
        given = {name: value for name, value in content.items() if name != "format"}
        if "task" not in given:
            raise InputError("lacks the field task")
        given["task"] = task = convert_json(Task, given["task"], "task")
        read = METRIC_CLASSES[task.metrics].from_json
        for name in given.keys() & {"metrics", "tfidf", "majority"}:
            by_split = convert_json(dict[str, object], given[name], name)
            given[name] = {split: read(value, f"{name}.{split}") for split, value in by_split.items()}
        return convert_json(cls, given)


def read_record(folder: Path | str) -> TrainingRecord:
    """Reads the record of a model folder; ModelFolderError names the file or the field that is invalid."""
    folder = Path(folder)
    path = folder / RECORD_NAME
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: no such folder")
    if not path.is_file():
        raise ModelFolderError(f"{folder}: expected a model folder of `qacg train`, got a folder without {RECORD_NAME}")
    return read_model_file(path, RECORD_FORMAT, TrainingRecord.from_json)


def write_record(path: Path, record: TrainingRecord) -> None:
    """Writes a record to the file `path`."""
    with atomic_write(path) as handle:
        handle.write(json.dumps(record.to_json(), indent=1, allow_nan=False) + "\n")


def read_run_file(path: Path | str) -> dict[str, object]:
    """Reads the options of a run file, YAML or JSON, as `checked_options` returns them."""
    import yaml

    path = Path(path)
    try:
        content = yaml.safe_load(read_text(path))  # JSON is YAML too
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8, or an impossible number or date
        raise InputError(f"{path}: cannot be read as YAML or JSON ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected option names with values, got a {type(content).__name__}.")
    return checked_options(content, path)


def checked_options(content: dict, source: Path | str, names: Sequence[str] | None = None) -> dict[str, object]:
    """Returns options with values of their types; options with the value None are left out.

    `source` is the file or flag that has the options, for errors. `names` are the allowed options; None: all.
    """
    by_field = [*fields(DataOptions), *(field for field in fields(TrainingOptions) if field.name != "seed")]
    kinds = {"data": list, "output": str, "seeds": list} | {field.name: kind_of(field) for field in by_field}
    known = list(kinds) if names is None else names
    for name, value in content.items():
        if name not in known:
            raise InputError(f"{source}: unknown option {name!r}. Available: {', '.join(known)}.")
        if value == "":
            raise InputError(
                f"{source}: {name}: expected a value, got none. {describe_options().get(name, '')}".strip()
            )
    return {name: _typed(source, name, value, kinds[name]) for name, value in content.items() if value is not None}


def describe_options() -> dict[str, str]:
    """Returns meaning, values and default of every option of a run file, by name."""
    found = {}
    for options in (DataOptions, TrainingOptions):
        for field in fields(options):
            text, choices, default = field.metadata["help"], field.metadata["choices"], None
            if field.default is not None:
                default = format_value(field.default)
            elif options is TrainingOptions:
                default = describe_default(field.name)
            values = f" Values: {', '.join(choices)}." if choices else ""
            least, most, below = (field.metadata[name] for name in ("least", "most", "below"))
            if min(most, below) < math.inf:
                values = f" In [{least:,}, {f'{most:,}]' if most < below else f'{below:,})'}."
            found[field.name] = f"{text[0].upper()}{text[1:]}.{values}" + (f" Default: {default}." if default else "")
    return found


def write_run_file(
    path: Path, data: Sequence[Path], data_options: DataOptions, options: TrainingOptions, seeds: list[int]
) -> None:
    """Writes all options of a run, given or resolved, except the output folder and the seed of `options`.

    Data from memory, which `--config` cannot read again, has no paths.
    """
    import yaml

    paths = [str(source) for source in data]
    content: dict[str, object] = {"data": paths[0] if len(paths) == 1 else paths} if paths else {}
    content["seeds"] = seeds
    for source in (data_options, options):
        values = {field.name: getattr(source, field.name) for field in fields(source) if field.name != "seed"}
        content |= {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    with atomic_write(path) as handle:
        handle.write(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _typed(source: Path | str, name: str, value: object, kind: type) -> object:
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and (half := lone_surrogate(text)):
            raise InputError(
                f"{source}: {name}: expected text that UTF-8 can encode, got {half}, half of a character. Remove it."
            )
    # YAML reads 2e-5 as a text, because it has no decimal point.
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            return float(value)
    if name == "data" and isinstance(value, str):
        return [value]
    if kind is list and isinstance(value, list):
        if name != "seeds":
            return [str(item) for item in value]
        wrong = [item for item in value if isinstance(item, bool) or not isinstance(item, int)]
        if wrong:
            raise InputError(f"{source}: seeds: expected integers, got {wrong[0]!r}.")
        return value
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"{source}: {name}: expected a value of type {kind.__name__}, got {value!r}.")
    return value
