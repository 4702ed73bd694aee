"""What check_faults.py disturbs: trainings and predictions that are short, write often, and end the same every time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from forked_commands import Outcome, run
from qacg_models.data import sample_directory

ROWS = {"train": 240, "dev": 80, "test": 80}
SMALL = ["--layers=1", "--hidden-size=16", "--heads=2", "--intermediate-size=32", "--epochs=2", "--batch-size=16"]
SMALL += ["--learning-rate=3e-3", "--eval-every=10", "--checkpoint-every=4"]
# With a dropout, rows drawn by balance, and the released code's optimizer, each of which has a state to go on from.
TRAININGS = {
    "training": [*SMALL, "--dropout=0.1"],
    "training, released protocol": [*SMALL, "--protocol=released", "--balance=0.5"],
}
SEEDS = "training, two seeds"
# Of what holds times too, the parts that are always the same.
RECORDS = {
    "training.json": ("metrics", "majority", "selected", "steps", "loss", "data"),
    "seeds.json": ("seeds", "metrics", "majority"),
}
PREDICTIONS = {"prediction, jsonl": "out.jsonl", "prediction, csv": "out.csv"}
TEXTS = 400


@dataclass
class Subject:
    """A command with an output that is always the same.

    Attributes:
        name: as it is told.
        command: without the output.
        output: its name in the folder where it works.
        unfinished: the name of what an unfinished run leaves there.
        only_killed: not tried on full disks and with damaged files.
        wanted: what the output of an undisturbed run holds, by `contents`.
        seconds: that the undisturbed run took.
    """

    name: str
    command: list[str]
    output: str
    unfinished: str
    only_killed: bool = False
    wanted: dict[str, object] = field(default_factory=dict)
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
        """What the output in a folder holds; of a training's record what does not tell the time."""
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
        """Takes what every other run has to end as."""
        outcome = run(self.arguments(folder), folder.with_name("log"))
        if outcome.status:
            raise RuntimeError(f"{self.name}: the undisturbed run ended with {outcome.status}\n{outcome.err}")
        self.wanted, self.seconds = self.contents(folder), outcome.seconds
        return outcome

    def wrong_end(self, folder: Path) -> str | None:
        """What is wrong with a folder in which a run has ended; None where it holds what it should, and no more."""
        names = sorted(path.name for path in folder.iterdir())
        if names != [self.output]:
            return f"left {', '.join(names) or 'nothing'}"
        found = self.contents(folder)
        other = [name for name in sorted(self.wanted.keys() | found.keys()) if self.wanted.get(name) != found.get(name)]
        return f"other {', '.join(other)} than in the undisturbed run" if other else None


def write_inputs(folder: Path) -> tuple[Path, Path]:
    """A small set of data, and a file of texts."""
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
    """The trainings, and predictions of the first one's model, after an undisturbed run of each."""
    data, texts = write_inputs(folder)
    every = [
        Subject(name, ["train", "--data", str(data), *flags], "model", "model.unfinished")
        for name, flags in TRAININGS.items()
    ]
    command = ["train", "--data", str(data), *TRAININGS["training"], "--seeds", "0", "1"]
    every.append(Subject(SEEDS, command, "model", "model", only_killed=True))
    model = folder / "training" / "model"
    predict = ["predict", str(model), "--input", str(texts), "--window", "24"]
    every += [Subject(name, predict, output, f"{output}.parts") for name, output in PREDICTIONS.items()]
    for subject in every:
        place = folder / subject.name
        place.mkdir()
        subject.undisturbed(place)
    return every
