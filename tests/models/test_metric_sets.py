"""Metrics of SemEval and of your own labels, weights, and bootstrap, compared with independent counts."""

import dataclasses
import math

import numpy as np
import pytest
from errors import raises
from qacg_models.data.example import Example
from qacg_models.data.task import SEMEVAL, SENTIHOOD, Task
from qacg_models.metrics import intervals, judge, judge_for, majority_probabilities
from qacg_models.metrics.classification import ClassificationJudge
from qacg_models.metrics.semeval import SemEvalJudge
from qacg_models.metrics.sentihood import Auc, SentiHoodJudge
from sklearn.metrics import f1_score, precision_recall_fscore_support, roc_auc_score

RNG = np.random.default_rng(5)
SENTENCES = 60
GROUPS = [f"s{number}" for number in range(SENTENCES) for _ in SEMEVAL.aspects]
ASPECTS = list(SEMEVAL.aspects) * SENTENCES
GOLD = RNG.integers(0, 5, len(GROUPS))
PROBABILITIES = RNG.dirichlet(np.ones(5), len(GROUPS))


def as_dict(figures):
    return {name: getattr(figures, name) for name in figures.TITLES}


def test_semeval_matches_an_independent_count():
    figures = SemEvalJudge(GROUPS, ASPECTS, GOLD, PROBABILITIES)()
    guess = PROBABILITIES.argmax(axis=1)
    precision, recall, f1, _ = precision_recall_fscore_support(GOLD != 0, guess != 0, average="binary")
    assert (figures.aspect_precision, figures.aspect_recall) == (precision, recall)
    assert figures.aspect_f1 == pytest.approx(f1)
    for count, allowed in ((4, [1, 2, 3, 4]), (3, [1, 2, 3]), (2, [1, 3])):
        rows = [row for row, label in enumerate(GOLD) if label in allowed]
        right = [max(allowed, key=lambda label, row=row: PROBABILITIES[row][label]) == GOLD[row] for row in rows]
        assert getattr(figures, f"accuracy_{count}") == sum(right) / len(rows)
    assert figures.undefined == ()


def test_semeval_zero_predictions_are_defined():
    silent = np.eye(5)[np.zeros(len(GOLD), int)]
    figures = SemEvalJudge(GROUPS, ASPECTS, GOLD, silent)()
    assert (figures.aspect_precision, figures.aspect_recall, figures.aspect_f1) == (0.0, 0.0, 0.0)
    none = SemEvalJudge(GROUPS, ASPECTS, np.zeros_like(GOLD), PROBABILITIES)()
    assert all(math.isnan(value) for value in as_dict(none).values())
    assert set(none.undefined) == set(none.TITLES)
    with raises("ValueError: has no row for the aspect"):
        SemEvalJudge(GROUPS[1:], ASPECTS[1:], GOLD[1:], PROBABILITIES[1:])
    with raises("ValueError: gold: expected classes from 0 to 4"):
        SemEvalJudge(GROUPS, ASPECTS, GOLD + 1, PROBABILITIES)


def test_classification_matches_an_independent_count():
    groups = [f"g{number // 3}" for number in range(len(GOLD))]  # groups of any size
    figures = ClassificationJudge(groups, GOLD, PROBABILITIES, has_absent=True)()
    guess = PROBABILITIES.argmax(axis=1)
    assert figures.accuracy == (guess == GOLD).mean()
    assert figures.macro_f1 == pytest.approx(f1_score(GOLD, guess, average="macro"))
    assert figures.aspect_f1 == pytest.approx(f1_score(GOLD != 0, guess != 0))
    whole = [(guess[start : start + 3] == GOLD[start : start + 3]).all() for start in range(0, len(GOLD), 3)]
    assert figures.strict_accuracy == np.mean(whole)
    opinion = GOLD != 0
    assert figures.sentiment_accuracy == (1 + PROBABILITIES[opinion, 1:].argmax(axis=1) == GOLD[opinion]).mean()
    plain = ClassificationJudge(groups, GOLD, PROBABILITIES, has_absent=False)()
    assert plain.undefined == ("aspect_f1", "sentiment_accuracy")
    assert plain.macro_f1 == figures.macro_f1


def test_auc_with_weights_and_ties():
    score = RNG.integers(0, 6, 200) / 5
    truth, weights = RNG.random(200) < 0.3, RNG.integers(0, 4, 200).astype(float)
    assert Auc(truth, score)(weights) == pytest.approx(roc_auc_score(truth, score, sample_weight=weights))
    assert math.isnan(Auc(truth, score)(weights * truth))


def sentihood_judge(gold=GOLD % 3, probabilities=PROBABILITIES[:, :3], groups=GROUPS, aspects=ASPECTS):
    kept = [index for index, aspect in enumerate(aspects) if aspect != "price"]  # groups of four
    return SentiHoodJudge(
        [groups[index] for index in kept], [aspects[index] for index in kept], gold[kept], probabilities[kept]
    )


def own_judge(gold=GOLD, probabilities=PROBABILITIES, groups=GROUPS, aspects=ASPECTS):
    rows = [f"{group} {aspect}" for group, aspect in zip(groups, aspects)]  # groups of one
    return ClassificationJudge(rows, gold % 3, probabilities[:, :3], has_absent=True)


JUDGES = {
    "sentihood": (sentihood_judge(), 4),
    "semeval": (SemEvalJudge(GROUPS, ASPECTS, GOLD, PROBABILITIES), 5),
    "own": (own_judge(), 5),
}


@pytest.mark.parametrize("name", JUDGES)
def test_weights_equal_repeated_rows(name):
    judge_rows, size = JUDGES[name]
    counts = RNG.integers(0, 3, SENTENCES)
    weighted = judge_rows(np.repeat(counts, size).astype(float))
    copies = [(copy, number) for number in range(SENTENCES) for copy in range(counts[number])]
    groups = [f"{copy}-{number}" for copy, number in copies for _ in SEMEVAL.aspects]
    aspects = list(SEMEVAL.aspects) * len(copies)
    rows = np.concatenate([np.arange(5) + 5 * number for _, number in copies])
    gold, probabilities = GOLD[rows], PROBABILITIES[rows]
    if name == "sentihood":
        expected = sentihood_judge(gold % 3, probabilities[:, :3], groups, aspects)()
    elif name == "semeval":
        expected = SemEvalJudge(groups, aspects, gold, probabilities)()
    else:
        expected = own_judge(gold, probabilities, groups, aspects)()
    assert as_dict(weighted) == pytest.approx(as_dict(expected))


@pytest.mark.parametrize("name", JUDGES)
def test_intervals_contain_the_metric_reproducibly(name):
    judge_rows, size = JUDGES[name]
    sentences = [number // size for number in range(SENTENCES * size)]
    figures = as_dict(judge_rows(None))
    found = intervals(judge_rows, sentences, repeats=200, seed=3)
    for figure, (low, high) in found.items():
        assert low < figures[figure] < high
    assert intervals(judge_rows, sentences, repeats=200, seed=3) == found
    assert intervals(judge_rows, sentences, repeats=200, seed=4) != found


def test_intervals_of_clustered_rows_are_wider():
    # All rows of a sentence are right or all are wrong: 160 rows have the information of 40.
    gold = np.zeros(160, int)
    probabilities = np.eye(2)[np.repeat(RNG.permutation([0, 1] * 20), 4)]
    judge_rows = ClassificationJudge(list(range(160)), gold, probabilities, has_absent=False)
    low, high = intervals(judge_rows, [row // 4 for row in range(160)], repeats=500)["accuracy"]
    near, far = intervals(judge_rows, list(range(160)), repeats=500)["accuracy"]
    assert (high - low) / (far - near) == pytest.approx(2, rel=0.15)
    # 1.96 standard errors of a mean of 40, by the formula.
    assert (high - low) / 2 == pytest.approx(1.96 * 0.5 / 40**0.5, rel=0.15)


def test_intervals_of_undefined_metrics_are_nan():
    judge_rows = ClassificationJudge(["a", "b"], [0, 1], np.eye(2), has_absent=False)
    assert all(math.isnan(bound) for bound in intervals(judge_rows, ["a", "b"], repeats=10)["aspect_f1"])
    for wrong in ({"repeats": 1}, {"level": 1.0}):
        with raises("InputError: bootstrap: expected at least 2 repeats"):
            intervals(judge_rows, ["a", "b"], **wrong)


def test_judge_uses_the_metrics_of_the_task():
    own = Task(name="own", labels=("no", "yes"), aspects=("a", "b"))
    for task, size in ((SENTIHOOD, 3), (SEMEVAL, 5), (own, 2)):
        rows = [
            Example(str(number), f"text {number}", aspect, "", aspect, (number + index) % size, 1)
            for number in range(6)
            for index, aspect in enumerate(task.aspects)
        ]
        shares = [0.6, *[0.4 / (size - 1)] * (size - 1)]
        figures = judge(task, rows, majority_probabilities(shares, len(rows)))
        assert task.selection in figures.TITLES
        assert judge_for(task, rows, majority_probabilities(shares, len(rows)))(np.ones(len(rows))) == figures
        back = type(figures).from_json(figures.to_json())
        assert repr(back) == repr(figures)
        assert dataclasses.is_dataclass(figures)
