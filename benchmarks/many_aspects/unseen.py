"""Aspects that training has not seen: `python -m benchmarks.many_aspects.unseen`.

Leaves out one aspect at a time: trains an arm on the rows of all others, and asks about the aspect that was left out on
the whole test split. A model can know it by its name only. The same command resumes an interrupted run.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from qacg_models.cli.libraries import load_libraries
from qacg_models.data import Dataset, Example, load_data
from qacg_models.utils.atomic_files import atomic_write, atomic_write_bytes
from qacg_models.utils.cells import markdown_table
from qacg_models.utils.provenance import origin
from sklearn.metrics import roc_auc_score

from benchmarks.command import exit_status
from benchmarks.evidence.results import as_scores
from benchmarks.many_aspects.arms import ARMS, DATA, Trial
from benchmarks.many_aspects.results import load

FOLDER, TABLE = "unseen", "unseen.md"
UNSEEN_ARMS = ("pairs-0", "quasi-4-computed")
UNSEEN_SEEDS = (1,)
KNOWN = "quasi-4-best"
SETTING = "1e-4-x5"
NONE, POSITIVE = 0, 1  # classes of both data sets
NEGATIVE = {"sentihood": 2, "semeval2014": 3}
DRAWS = 1000  # of texts, for intervals


@dataclass(frozen=True)
class Unseen:
    """One training run.

    Attributes:
        data: name of the data set.
        aspect: the aspect that is left out.
        arm: name of the arm.
        seed: seed of new weights, order and dropout.
    """

    data: str
    aspect: str
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run's files, without suffix."""
        return f"{self.data}_{self.aspect.replace(' ', '-')}_{self.arm}_{self.seed}"


def runs(datasets: Mapping[str, Dataset]) -> list[Unseen]:
    """All training runs, seed by seed."""
    return [
        Unseen(data, aspect, arm, seed)
        for seed in UNSEEN_SEEDS
        for data, dataset in datasets.items()
        for aspect in dict.fromkeys(row.aspect for row in dataset.splits["test"])
        for arm in UNSEEN_ARMS
    ]


def train(run: Unseen, dataset: Dataset, out: Path) -> None:
    """Trains a model without an aspect, and stores its scores for every row of test."""
    from benchmarks.many_aspects.training import fit, prepared, probabilities

    seen = [row for row in dataset.splits["train"] if row.aspect != run.aspect]
    splits = {"train": seen, "test": dataset.splits["test"]}
    model, questions = prepared(run.arm, dataclasses.replace(dataset, splits=splits), run.seed)
    fit(model, questions["train"], Trial(run.data, run.arm, SETTING, run.seed))
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write_bytes(out / f"{run.name}.npy") as handle:
        np.save(handle, as_scores(probabilities(model, questions["test"])))
    with atomic_write(out / f"{run.name}.json") as handle:
        json.dump({"run": asdict(run), "machine": origin()}, handle)
        handle.write("\n")


@dataclass(frozen=True)
class Answers:
    """A model's answers about one aspect.

    Attributes:
        found: probability that the text speaks of the aspect.
        others: the same for the other aspects of the text, averaged; it needs no name.
        positive: positive score minus negative score.
        labels: true class.
        texts: index of each row's text.
    """

    found: np.ndarray
    others: np.ndarray
    positive: np.ndarray
    labels: np.ndarray
    texts: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Example], scores: np.ndarray, aspect: str, negative: int) -> "Answers":
        """Takes the rows of an aspect from log probabilities of all rows."""
        spoken = 1 - np.exp(scores[:, NONE].astype(np.float64))
        elsewhere: dict[tuple[str, str], list[float]] = {}
        for row, one in zip(rows, spoken):
            if row.aspect != aspect:
                elsewhere.setdefault((row.sentence, row.target), []).append(one)
        chosen = [index for index, row in enumerate(rows) if row.aspect == aspect]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(row.sentence for row in rows))}
        return cls(
            spoken[chosen],
            np.array([np.mean(elsewhere[rows[index].sentence, rows[index].target]) for index in chosen]),
            scores[chosen, POSITIVE].astype(np.float64) - scores[chosen, negative],
            np.array([rows[index].label for index in chosen]),
            np.array([numbers[rows[index].sentence] for index in chosen]),
        )

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """Rows of texts that are drawn with replacement."""
        places = np.split(np.argsort(self.texts, kind="stable"), np.cumsum(np.bincount(self.texts))[:-1])
        return np.concatenate([places[text] for text in generator.integers(len(places), size=len(places))])


def area(positive: np.ndarray, scores: np.ndarray) -> float:
    """The area under the ROC curve; NaN unless there are positive and negative rows."""
    return roc_auc_score(positive, scores) if 0 < positive.sum() < len(positive) else float("nan")


def detection(a: Answers, rows: np.ndarray) -> float:
    """Area under the ROC curve of "the text speaks of the aspect"; 0.5 is chance."""
    return area(a.labels[rows] != NONE, a.found[rows])


def detection_without_name(a: Answers, rows: np.ndarray) -> float:
    """The same from the scores of the other aspects."""
    return area(a.labels[rows] != NONE, a.others[rows])


def gain(a: Answers, rows: np.ndarray) -> float:
    """How much the name adds to detection."""
    return detection(a, rows) - detection_without_name(a, rows)


def sentiment(a: Answers, rows: np.ndarray, negative: int) -> float:
    """Area under the ROC curve of positive against negative, of rows that are either; 0.5 is chance."""
    rows = rows[np.isin(a.labels[rows], (POSITIVE, negative))]
    return area(a.labels[rows] == POSITIVE, a.positive[rows])


def interval(answers: Answers, measure: Callable[[Answers, np.ndarray], float]) -> tuple[float, float, float]:
    """A measure and its 95 % interval over texts."""
    generator = np.random.default_rng(0)
    drawn = [measure(answers, answers.draw(generator)) for _ in range(DRAWS)]
    return (measure(answers, np.arange(len(answers.labels))), *np.nanquantile(drawn, (0.025, 0.975)))


def table(datasets: Mapping[str, Dataset], results: Path) -> str:
    """A Markdown table of all stored runs, beside the arm KNOWN, which was trained on all aspects."""
    header = ["data", "aspect", "arm", "detection", "gain by the name", "sentiment", "trained: detection", "sentiment"]
    return markdown_table(header, list(_lines(datasets, results)), texts=3)


def _lines(datasets: Mapping[str, Dataset], results: Path) -> Iterator[list[str]]:
    trained = load(results)
    for run in runs(datasets):
        path = results / FOLDER / f"{run.name}.npy"
        if not path.exists():
            continue
        rows, negative = datasets[run.data].splits["test"], NEGATIVE[run.data]
        of_sentiment = partial(sentiment, negative=negative)
        answers = Answers.of(rows, np.load(path), run.aspect, negative)
        measured = [interval(answers, measure) for measure in (detection, gain, of_sentiment)]
        cells = [f"{one:.2f} [{low:.2f}, {high:.2f}]" for one, low, high in measured]
        full = trained.get(Trial(run.data, KNOWN, SETTING, run.seed).name)
        beside = ["", ""]
        if full is not None:
            known = Answers.of(rows, full.scores, run.aspect, negative)
            everything = np.arange(len(known.labels))
            beside = [f"{measure(known, everything):.2f}" for measure in (detection, of_sentiment)]
        yield [run.data, run.aspect, ARMS[run.arm].title, *cells, *beside]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many_aspects.unseen", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=f"folder of {'/ and '.join(DATA)}/")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the study's results")
    parser.add_argument("--table", action="store_true", help="only write the table of the stored results")
    parser.add_argument("--only", nargs="+", metavar="RUN", help="only these training runs")
    options = parser.parse_args(arguments)
    load_libraries(alone=arguments is None)
    return exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    import torch

    torch.set_num_threads(1)
    datasets = {name: load_data(options.data / name, ("train", "test"), DATA[name]) for name in DATA}
    everything = {run.name: run for run in runs(datasets)}
    for name in options.only or []:
        if name not in everything:
            raise ValueError(f"--only: expected one of {', '.join(everything)}, got {name!r}")
    out = options.out / FOLDER
    for name in [] if options.table else options.only or everything:
        if not (out / f"{name}.json").exists():
            print(f"training: {name}", flush=True)
            train(everything[name], datasets[everything[name].data], out)
    text = table(datasets, options.out)
    with atomic_write(options.out / TABLE) as handle:
        handle.write(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
