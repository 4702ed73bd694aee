"""Models, or variants of one, on a published set beside one another: figures over seeds, and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from qacg_models.data import load_data
from qacg_models.metrics import METRIC_CLASSES, judge_for, majority_probabilities
from qacg_models.metrics.tfidf import TfidfBaseline

from benchmarks.evidence.intervals import Draws
from benchmarks.evidence.plan import BERT, CHECKED, CONTESTANTS, DATA, HYPOTHESES, TRIED_ON
from benchmarks.evidence.results import Result

TFIDF, MAJORITY = "tfidf", "majority"
BASELINES = {TFIDF: "TF-IDF, logistic regression", MAJORITY: "majority"}


# What tables call the variants of CHECKED by how its second map is let in.
VARIANTS = {"lambda-0": "no second map", CHECKED: "as published"} | {
    name: told.title for name, told in HYPOTHESES.items()
}


@dataclass(frozen=True)
class Comparison:
    """All that is known of a set.

    Attributes:
        data: its name.
        titles: metrics and what tables call them.
        names: contestants or variants, then baselines, and what tables call them.
        results: by contestant or variant, its trainings that were judged.
        draws: of all of them.
        compared: who is compared with whom.
    """

    data: str
    titles: Mapping[str, str]
    names: Mapping[str, str]
    results: Mapping[str, Sequence[Result]]
    draws: Draws
    compared: Sequence[tuple[str, str]]

    @property
    def compared_models(self) -> list[tuple[str, str]]:
        """Who is compared with whom, without the baselines."""
        return [pair for pair in self.compared if not BASELINES.keys() & {*pair}]


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
    of = {name: [one for one in judged if one.trial.contestant == name] for name in CONTESTANTS}
    of = {name: sorted(found, key=lambda one: one.trial.seed) for name, found in of.items() if found}
    compared = [(name, BERT) for name in (*of, *BASELINES) if name != BERT and BERT in of]
    alike = [(told.settings_of, name) for name, told in CONTESTANTS.items() if told.settings_of is not None]
    compared += [pair for pair in alike if {*pair} <= of.keys()]
    names = {name: told.title for name, told in CONTESTANTS.items()} | BASELINES
    return _compared(data, folder, names, of, compared, repeats)


def compare_variants(results: Sequence[Result], folder: Path, repeats: int = 1000) -> Comparison | None:
    """CHECKED by how its second map is let in, over those seeds that all variants have; None while there is none.

    Args, Raises: as of `compare`.
    """
    found: dict[str, dict[int, Result]] = {name: {} for name in VARIANTS}
    for one in results:
        variant = one.trial.check or one.trial.contestant
        if variant in found and one.trial.data == TRIED_ON and one.scores is not None:
            found[variant][one.trial.seed] = one
    seeds = sorted(set.intersection(*(set(of) for of in found.values())))
    if not seeds:
        return None
    of = {name: [by_seed[seed] for seed in seeds] for name, by_seed in found.items()}
    return _compared(TRIED_ON, folder, VARIANTS, of, [(name, CHECKED) for name in of if name != CHECKED], repeats)


def _compared(
    data: str,
    folder: Path,
    names: Mapping[str, str],
    results: Mapping[str, Sequence[Result]],
    compared: Sequence[tuple[str, str]],
    repeats: int,
) -> Comparison:
    dataset = load_data(folder / DATA[data].name, ("train", "test"), DATA[data].options)
    train, rows = dataset.splits["train"], dataset.splits["test"]
    classes = len(dataset.task.labels)
    probabilities: dict[str, list[np.ndarray]] = {}
    if BASELINES.keys() <= names.keys():
        shares = np.bincount([row.label for row in train], minlength=classes) / len(train)
        probabilities[TFIDF] = [TfidfBaseline(train, dataset.task).probabilities(rows)]
        probabilities[MAJORITY] = [majority_probabilities(shares.tolist(), len(rows))]
    for name, found in results.items():
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
    return Comparison(data, titles, names, results, draws, compared)
