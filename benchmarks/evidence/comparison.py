"""Models of one published set beside one another: figures over seeds, and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from qacg_models.data import load_data
from qacg_models.metrics import METRIC_CLASSES, judge_for, majority_probabilities
from qacg_models.metrics.tfidf import TfidfBaseline

from benchmarks.evidence.intervals import Draws
from benchmarks.evidence.plan import BERT, CONTESTANTS, DATA
from benchmarks.evidence.results import Result

TFIDF, MAJORITY = "tfidf", "majority"
BASELINES = {TFIDF: "TF-IDF, logistic regression", MAJORITY: "majority"}


@dataclass(frozen=True)
class Comparison:
    """All that is known of a set.

    Attributes:
        data: its name.
        titles: metrics and what tables call them.
        results: by contestant, its trainings that were judged.
        draws: of the contestants and baselines.
    """

    data: str
    titles: Mapping[str, str]
    results: Mapping[str, Sequence[Result]]
    draws: Draws

    def pairs(self, baselines: bool) -> list[tuple[str, str]]:
        """Who is compared with whom, as far as both are there.

        All with BERT, and a contestant with the one that differs from it in a single point.
        """
        others = [name for name in (*self.results, *(BASELINES if baselines else ())) if name != BERT]
        with_bert = [(name, BERT) for name in others if BERT in self.results]
        alike = [(told.settings_of, name) for name, told in CONTESTANTS.items() if told.settings_of is not None]
        return with_bert + [pair for pair in alike if {*pair} <= self.results.keys()]


def title_of(name: str) -> str:
    """What tables call a contestant or a baseline."""
    return BASELINES[name] if name in BASELINES else CONTESTANTS[name].title


def compare(data: str, results: Sequence[Result], folder: Path, repeats: int = 1000) -> Comparison | None:
    """What the trainings of a set say; None while there are none.

    Args:
        data: name of the set.
        results: of all trainings.
        folder: of the published sets.
        repeats: of the bootstrap.

    Raises:
        DataError: the set is not there.
        ValueError: a training was judged on another test split than the one that is there.
    """
    judged = [one for one in results if one.trial.data == data and one.scores is not None and not one.trial.check]
    if not judged:
        return None
    dataset = load_data(folder / DATA[data].name, ("train", "test"), DATA[data].options)
    train, rows = dataset.splits["train"], dataset.splits["test"]
    classes = len(dataset.task.labels)
    shares = np.bincount([row.label for row in train], minlength=classes) / len(train)
    probabilities = {
        TFIDF: [TfidfBaseline(train, classes).probabilities(rows)],
        MAJORITY: [majority_probabilities(shares.tolist(), len(rows))],
    }
    of = {name: [one for one in judged if one.trial.contestant == name] for name in CONTESTANTS}
    of = {name: sorted(found, key=lambda one: one.trial.seed) for name, found in of.items() if found}
    for name, found in of.items():
        for one in found:
            if one.scores.shape != (len(rows), classes):
                raise ValueError(
                    f"{one.trial.name}: holds scores {one.scores.shape}, and the test split in {folder / data} wants"
                    f" {(len(rows), classes)}"
                )
        probabilities[name] = [np.exp(one.scores.astype(np.float64)) for one in found]
    judges = {name: [judge_for(dataset.task, rows, one) for one in each] for name, each in probabilities.items()}
    titles = METRIC_CLASSES[dataset.task.metrics].TITLES
    draws = Draws(judges, [row.sentence for row in rows], list(titles), repeats)
    return Comparison(data, titles, of, draws)
