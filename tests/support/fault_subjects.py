"""Subjects of check_faults.py: short training runs and predictions that write often and are deterministic."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from forked_commands import Outcome, run
from model_sizes import SMALL_FLAGS
from qacg_models.cli.commands import predict
from qacg_models.data import sample_directory

ROWS = {"train": 240, "dev": 80, "test": 80}
SHORT = [*SMALL_FLAGS, "--epochs=2", "--batch-size=16", "--learning-rate=3e-3"]
SHORT += ["--set=eval_every=10", "--set=checkpoint_every=4"]
# Dropout, balanced sampling and the optimizer of the released code each have a state that --resume must restore.
TRAININGS = {
    "training": [*SHORT, "--set=dropout=0.1"],
    "training, released protocol": [*SHORT, "--set=protocol=released", "--set=balance=0.5"],
}
SEEDS = "training, two seeds"
# The parts of records that contain no times and so are deterministic.
RECORDS = {
    "training.json": ("metrics", "majority", "selected", "steps", "loss", "data"),
    "seeds.json": ("seeds", "metrics", "majority"),
}
PREDICTIONS = {"prediction, jsonl": "out.jsonl", "prediction, csv": "out.csv"}
TEXTS = 400
predict.WINDOW = 24  # texts, so that a prediction writes often


@dataclass
class Subject:
    """A command with a deterministic output.

    Attributes:
        name: name in reports.
        command: arguments of qacg, without the output.
        output: name of the output in the working folder.
        unfinished: name of the folder or file of an unfinished run, in the working folder.
        only_killed: whether to skip trials with full disks.
        expected: `contents` of the undisturbed run.
        seconds: duration of the undisturbed run.
    """

    name: str
    command: list[str]
    output: str
    unfinished: str
    only_killed: bool = False
    expected: dict[str, object] = field(default_factory=dict)
    seconds: float = 0.0

    def arguments(self, folder: Path, *more: str) -> list[str]:
        return [*self.command, "--output", str(folder / self.output), *more]

    @property
    def verb(self) -> str:
        return self.command[0]

    @property
    def trains(self) -> bool:
        return self.verb == "train"

    def contents(self, folder: Path) -> dict[str, object]:
        """The contents of the output's files, by name; of records, only the parts that contain no times."""
        output = folder / self.output
        if not self.trains:
            return {output.name: output.read_bytes()}
        found: dict[str, object] = {}
        for path in output.rglob("*"):
            name = path.relative_to(output).as_posix()
            if path.name in RECORDS:
                record = json.loads(path.read_text(encoding="utf-8"))
                found |= {f"{part} of {name}": record[part] for part in RECORDS[path.name]}
            elif path.is_file():
                found[name] = path.read_bytes()
        return found

    def undisturbed(self, folder: Path) -> Outcome:
        """Runs the command without a fault, stores its output as the expected one, and returns the outcome."""
        outcome = run(self.arguments(folder), folder.with_name("log"))
        if outcome.status:
            raise RuntimeError(
                f"{self.name}: expected status 0 of the undisturbed run, got {outcome.status}\n{outcome.err}"
            )
        self.expected, self.seconds = self.contents(folder), outcome.seconds
        return outcome

    def wrong_end(self, folder: Path) -> str | None:
        """What is wrong in the working folder after a run; None if it has exactly the expected files."""
        names = sorted(path.name for path in folder.iterdir())
        if names != [self.output]:
            return f"left {', '.join(names) or 'nothing'}"
        found = self.contents(folder)
        other = [
            name for name in sorted(self.expected.keys() | found.keys()) if self.expected.get(name) != found.get(name)
        ]
        return f"{', '.join(other)} differ from the undisturbed run" if other else None


def write_inputs(folder: Path) -> tuple[Path, Path]:
    """Writes a small data set and a file of texts; returns their paths."""
    data, texts = folder / "data", folder / "texts.txt"
    data.mkdir()
    for split, rows in ROWS.items():
        lines = (sample_directory() / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        (data / f"{split}.tsv").write_text("\n".join(lines[: 1 + rows]) + "\n", encoding="utf-8")
    rows = (sample_directory() / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    sentences = dict.fromkeys(row.split("\t")[1] for row in rows)
    texts.write_text("\n".join([*sentences][:TEXTS]) + "\n", encoding="utf-8")
    return data, texts


def subjects(folder: Path) -> list[Subject]:
    """Makes all subjects (training runs, and predictions by the first trained model) and runs each once undisturbed."""
    data, texts = write_inputs(folder)
    every = [
        Subject(name, ["train", "--data", str(data), *flags], "model", "model.unfinished")
        for name, flags in TRAININGS.items()
    ]
    command = ["train", "--data", str(data), *TRAININGS["training"], "--seeds", "0", "1"]
    every.append(Subject(SEEDS, command, "model", "model", only_killed=True))
    model = folder / "training" / "model"
    command = ["predict", str(model), "--input", str(texts)]
    every += [Subject(name, command, output, f"{output}.partial") for name, output in PREDICTIONS.items()]
    for subject in every:
        place = folder / subject.name
        place.mkdir()
        subject.undisturbed(place)
    return every
