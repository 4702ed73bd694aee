"""Evaluates models on aspects that training has not seen: `python -m benchmarks.many_aspects --unseen`.

Leaves out one aspect at a time: trains an arm on the examples of all other aspects, and evaluates its answers about the
left-out aspect on the test split. The model gets the name of this aspect, and nothing else about it.
"""

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from qacg_models.data import DataOptions, Dataset, Example, load_data, sample_reviews
from qacg_models.metrics.bootstrap import resampled
from qacg_models.metrics.sentihood import Auc
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.cells import markdown_table
from qacg_models.utils.provenance import origin

from benchmarks.evidence.results import as_scores, require_known, write_files
from benchmarks.many_aspects.arms import ARMS, DATA, Trial
from benchmarks.many_aspects.results import load
from benchmarks.many_aspects.training import fit, prepared, probabilities

FOLDER, TABLE = "unseen", "unseen.md"
UNSEEN_ARMS = ("pairs-0", "quasi-4-computed")
UNSEEN_SEEDS = (1,)
KNOWN = "quasi-4-best"
SETTING = "1e-4-x5"
REVIEWS = "reviews"  # the bundled reviews, which were written for this project
NONE = 0  # the class "no opinion" in all data sets
POSITIVE_NEGATIVE = {"sentihood": (1, 2), "semeval2014": (1, 3), REVIEWS: (2, 1)}
DRAWS = 1000  # of texts, for intervals


@dataclass(frozen=True)
class Unseen:
    """One training run, without the examples of one aspect.

    Attributes:
        data: name of the data set.
        aspect: the aspect that is left out.
        arm: name of the trained model variant, one of the arms of the study.
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
    """Trains a model on the rows without the run's aspect, and stores its scores for every row of test."""
    seen = [row for row in dataset.splits["train"] if row.aspect != run.aspect]
    splits = {"train": seen, "test": dataset.splits["test"]}
    model, questions = prepared(run.arm, dataclasses.replace(dataset, splits=splits), run.seed)
    fit(model, questions["train"], Trial(run.data, run.arm, SETTING, run.seed))
    scores = as_scores(probabilities(model, questions["test"]))
    write_files(out, run.name, {"run": asdict(run), "machine": origin()}, scores)


class Answers:
    """Areas under ROC curves of a model's answers about one aspect; 0.5 is chance.

    Args:
        rows: examples of a split.
        scores: log probabilities of all rows, (rows, classes).
        aspect: the aspect.
        opposites: the classes of positive and of negative sentiment.

    Attributes:
        texts: the text of each row about the aspect.

    The argument `weights` of a method has the weight of each row about the aspect, in the order of `texts`.
    """

    def __init__(self, rows: Sequence[Example], scores: np.ndarray, aspect: str, opposites: tuple[int, int]):
        found = 1 - np.exp(scores[:, NONE].astype(np.float64))
        elsewhere: dict[tuple[str, str], list[float]] = {}
        for row, one in zip(rows, found):
            if row.aspect != aspect:
                elsewhere.setdefault((row.sentence, row.target), []).append(one)
        chosen = [index for index, row in enumerate(rows) if row.aspect == aspect]
        asked = [rows[index] for index in chosen]
        labels = np.array([row.label for row in asked])
        positive, negative = opposites
        leaning = scores[chosen, positive].astype(np.float64) - scores[chosen, negative]
        self.texts = [row.sentence for row in asked]
        self._found = Auc(labels != NONE, found[chosen])
        self._elsewhere = Auc(labels != NONE, np.array([np.mean(elsewhere[row.sentence, row.target]) for row in asked]))
        self._kept = np.isin(labels, opposites)
        self._positive = Auc(labels[self._kept] == positive, leaning[self._kept])

    def detection(self, weights: np.ndarray) -> float:
        """The area under the ROC curve that separates texts with an opinion on the aspect from texts without one.

        The score of a text is the predicted probability that it has an opinion on the aspect.
        """
        return self._found(weights)

    def gain(self, weights: np.ndarray) -> float:
        """`detection` minus the same area for a score that does not use the aspect's name.

        That score of a text is the mean predicted probability of an opinion, over its other aspects.
        """
        return self._found(weights) - self._elsewhere(weights)

    def sentiment(self, weights: np.ndarray) -> float:
        """The area under the ROC curve that separates texts with positive sentiment from texts with negative sentiment.

        The score of a text is its log probability of positive sentiment, minus that of negative sentiment. Texts with
        another label are left out.
        """
        return self._positive(weights[self._kept])

    def values(self) -> list[float]:
        """Detection, gain and sentiment."""
        return self._all(np.ones(len(self.texts)))

    def intervals(self) -> np.ndarray:
        """The 95 % intervals of `values` over texts, (2, 3): the lower bounds, then the upper bounds."""
        drawn = [self._all(weights) for weights in resampled(self.texts, DRAWS, np.random.default_rng(0))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an area that is undefined in all samples gives NaN
            return np.nanquantile(drawn, (0.025, 0.975), axis=0)

    def _all(self, weights: np.ndarray) -> list[float]:
        return [self.detection(weights), self.gain(weights), self.sentiment(weights)]


def table(datasets: Mapping[str, Dataset], results: Path) -> str:
    """A Markdown table of all stored runs; the last two columns are of the arm KNOWN, trained on all aspects."""
    header = ["data", "aspect", "arm", "detection", "gain by the name", "sentiment", "trained: detection", "sentiment"]
    return markdown_table(header, list(_lines(datasets, results)), texts=3)


def _lines(datasets: Mapping[str, Dataset], results: Path) -> Iterator[list[str]]:
    trained = load(results)
    for run in runs(datasets):
        path = results / FOLDER / f"{run.name}.npy"
        if not path.exists():
            continue
        rows, opposites = datasets[run.data].splits["test"], POSITIVE_NEGATIVE[run.data]
        answers = Answers(rows, np.load(path), run.aspect, opposites)
        measured = zip(answers.values(), *answers.intervals())
        cells = [f"{one:.2f} [{low:.2f}, {high:.2f}]" for one, low, high in measured]
        full = trained.get(Trial(run.data, KNOWN, SETTING, run.seed).name)
        beside = ["", ""]
        if full is not None:
            detection, _, sentiment = Answers(rows, full.scores, run.aspect, opposites).values()
            beside = [f"{detection:.2f}", f"{sentiment:.2f}"]
        yield [run.data, run.aspect, ARMS[run.arm].title, *cells, *beside]


def load_datasets(data: Path) -> dict[str, Dataset]:
    """Loads train and test of the published data sets in the folder `data`, and of the bundled reviews.

    Returns:
        The data sets by name.
    """
    datasets = {name: load_data(data / name, ("train", "test"), DATA[name]) for name in DATA}
    return datasets | {REVIEWS: load_data(sample_reviews(), ("train", "test"), DataOptions(wide=True))}


def run_all(data: Path, out: Path, only: Sequence[str] | None, train_runs: bool) -> str:
    """Trains the runs without a result, and writes and returns the table of all stored results.

    Args:
        data: folder of the published data sets.
        out: folder of the study's results.
        only: names of training runs; None for all.
        train_runs: whether to train; if False, only the table is written.

    Raises:
        ValueError: a name of `only` is unknown.
    """
    datasets = load_datasets(data)
    everything = {run.name: run for run in runs(datasets)}
    require_known(only, everything)
    for name in (only or everything) if train_runs else []:
        if not (out / FOLDER / f"{name}.json").exists():
            print(f"training: {name}", flush=True)
            train(everything[name], datasets[everything[name].data], out / FOLDER)
    text = table(datasets, out)
    with atomic_write(out / TABLE) as handle:
        handle.write(text + "\n")
    return text
