"""Metrics, weights and bootstrap intervals, compared with worked examples and independent counts."""

import dataclasses
import json
import math

import numpy as np
import pytest
from qacg_models.sentiment.dataset import label_shares, load_data
from qacg_models.sentiment.example import SEMEVAL, SENTIHOOD, Example, Task
from qacg_models.sentiment.metrics import (
    Auc,
    ClassificationJudge,
    SemEvalJudge,
    SentiHoodJudge,
    SentiHoodMetrics,
    group_table,
    intervals,
    judge,
    judge_for,
    majority_probabilities,
)
from sklearn.metrics import f1_score, precision_recall_fscore_support, roc_auc_score

SENTIHOOD_ASPECTS = ("general", "price", "safety", "transit location")


def sentihood_metrics(*rows):
    return SentiHoodJudge(*rows)()


def rows_of(*gold):
    """Group names, aspects and gold classes, from four classes per group."""
    groups = [name for name, _ in enumerate(gold) for _ in SENTIHOOD_ASPECTS]
    return groups, list(SENTIHOOD_ASPECTS) * len(gold), [label for labels in gold for label in labels]


def sure(classes, strength=0.9):
    return np.full((len(classes), 3), (1 - strength) / 2) + np.eye(3)[classes] * (strength - (1 - strength) / 2)


def test_sentihood_metrics_match_a_worked_example():
    groups, aspects, gold = rows_of((0, 1, 2, 0), (0, 0, 0, 0), (2, 0, 0, 1), (1, 2, 1, 2))
    guess = rows_of((0, 1, 1, 0), (0, 0, 0, 0), (0, 0, 1, 1), (1, 2, 1, 2))[2]
    result = sentihood_metrics(groups, aspects, gold, sure(guess))
    assert result.strict_accuracy == 2 / 4
    # Precision 1, 1/2, 1 and recall 1, 1/2, 1 over the three groups with an opinion.
    assert result.aspect_macro_f1 == pytest.approx(5 / 6)
    # general: two of four are None, one of the others scored as None: (2 + 2 * 0.5) / 4. price: perfect.
    # safety: None at 0.9 and 0.05 against 0.05, 0.05: (2 + 2 * 0.5) / 4. transit: perfect.
    assert result.aspect_auc == pytest.approx((0.75 + 1 + 0.75 + 1) / 4)
    # Rows with an opinion: price +, safety - (missed), general - (None at a tie, so Positive: missed),
    # transit +, and all of the last group.
    assert result.sentiment_accuracy == pytest.approx(6 / 8)
    # general: Negative at 0.5 above Positive at 0.05. price: perfect. safety: a tie. transit: perfect.
    assert result.sentiment_auc == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert result.undefined == ()


def test_aspect_macro_f1_is_the_harmonic_mean_of_averages():
    groups, aspects, gold = rows_of((1, 0, 0, 0), (1, 1, 1, 1), (0, 0, 0, 0))
    guess = rows_of((1, 1, 1, 1), (1, 0, 0, 0), (1, 1, 1, 1))[2]  # groups without an opinion are ignored
    result = sentihood_metrics(groups, aspects, gold, sure(guess))
    precision, recall = (1 / 4 + 1) / 2, (1 + 1 / 4) / 2
    assert result.aspect_macro_f1 == pytest.approx(2 * precision * recall / (precision + recall))


def random_case(groups=40, seed=3):
    rng = np.random.default_rng(seed)
    names, aspects, gold = rows_of(*rng.integers(0, 3, (groups, 4)).tolist())
    return names, aspects, gold, rng.dirichlet((1, 1, 1), len(gold))


def test_sentihood_metrics_ignore_row_order():
    groups, aspects, gold, probabilities = random_case()
    expected = sentihood_metrics(groups, aspects, gold, probabilities)
    order = np.random.default_rng(4).permutation(len(gold))
    got = sentihood_metrics(
        [groups[i] for i in order], [aspects[i] for i in order], np.array(gold)[order], probabilities[order]
    )
    assert got == expected


def test_sentihood_matches_an_independent_count():
    groups, aspects, gold, probabilities = random_case()
    result = sentihood_metrics(groups, aspects, gold, probabilities)
    guess = [max(range(3), key=lambda c: p[c]) for p in probabilities]
    right = [all(gold[4 * g + a] == guess[4 * g + a] for a in range(4)) for g in range(40)]
    assert result.strict_accuracy == sum(right) / 40
    opinions = [i for i, label in enumerate(gold) if label]
    hits = [(probabilities[i][2] > probabilities[i][1]) == (gold[i] == 2) for i in opinions]
    assert result.sentiment_accuracy == sum(hits) / len(hits)
    pairs = []
    for aspect in range(4):
        rows = range(aspect, len(gold), 4)
        wins = [
            (probabilities[i][0] > probabilities[j][0]) + 0.5 * (probabilities[i][0] == probabilities[j][0])
            for i in rows
            for j in rows
            if gold[i] == 0 and gold[j] != 0
        ]
        pairs.append(sum(wins) / len(wins))
    assert result.aspect_auc == pytest.approx(sum(pairs) / 4)


def test_sentihood_certain_none_has_no_zero_division():
    groups, aspects, gold = rows_of((0, 1, 2, 0), (2, 0, 1, 1))
    with np.errstate(all="raise"):
        result = sentihood_metrics(groups, aspects, gold, np.eye(3)[[0] * 8])
    assert result.sentiment_accuracy == 3 / 5  # no preference counts as Positive
    assert result.aspect_macro_f1 == 0.0


def test_sentihood_undefined_metrics_are_listed():
    groups, aspects, gold = rows_of((0, 1, 0, 0), (0, 2, 0, 0))
    result = sentihood_metrics(groups, aspects, gold, sure(gold))
    assert math.isnan(result.aspect_auc)
    assert result.sentiment_auc == 1.0
    assert "aspect_auc: price" in result.undefined  # always an opinion
    assert "aspect_auc: safety" in result.undefined  # never an opinion
    assert "sentiment_auc: price" not in result.undefined

    silent = sentihood_metrics(*rows_of((0, 0, 0, 0)), sure([0] * 4))
    assert silent.strict_accuracy == 1.0
    assert math.isnan(silent.aspect_macro_f1)
    assert math.isnan(silent.sentiment_accuracy)
    text = json.dumps(silent.to_json(), allow_nan=False)
    back = SentiHoodMetrics.from_json(json.loads(text))
    assert math.isnan(back.aspect_macro_f1)
    assert repr(back) == repr(silent)  # NaN is not equal to itself, its text is


@pytest.mark.parametrize("aspects", ["aba", "abaa"])
def test_group_that_lacks_or_repeats_an_aspect_raises(aspects):
    with pytest.raises(ValueError, match="rows: expected one row per group and aspect, 4 in all"):
        group_table([0, 0, 1, 1][: len(aspects)], list(aspects))


def test_metrics_of_a_diverged_model_raise():
    groups, aspects, gold = rows_of((0, 1, 2, 0), (1, 0, 0, 2))
    probabilities = sure(gold)
    probabilities[5, 1] = np.nan
    with pytest.raises(ValueError, match=r"probabilities: expected finite numbers, got .* in row 5"):
        sentihood_metrics(groups, aspects, gold, probabilities)


def test_majority_row_of_sentihood(sentihood):
    dataset = load_data(sentihood)
    test = dataset.splits["test"]
    probabilities = majority_probabilities(label_shares(dataset.splits["train"], dataset.task), len(test))
    result = sentihood_metrics(
        [row.group for row in test], [row.aspect for row in test], [row.label for row in test], probabilities
    )
    figures = [round(100 * value, 1) for value in list(dataclasses.astuple(result))[:5]]
    assert figures == [47.9, 0.0, 50.0, 66.6, 50.0]


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
    judge_rows = ClassificationJudge(groups, GOLD, PROBABILITIES, has_absent=False)
    plain = judge_rows()
    assert plain.undefined == ("aspect_f1", "sentiment_accuracy")
    assert plain.macro_f1 == figures.macro_f1
    kinds = {type(value) for name, value in vars(plain).items() if name != "undefined"}
    assert kinds == {float}, "NumPy's numbers print as np.float64(...)"
    assert np.isnan(intervals(judge_rows, groups, repeats=10)["aspect_f1"]).all(), "an undefined metric"


def test_macro_f1_leaves_out_labels_without_gold_rows():
    gold = np.where(GOLD == 1, 2, GOLD)
    guess = PROBABILITIES.argmax(axis=1)
    assert (guess == 1).any(), "the label without gold rows is predicted"
    figures = ClassificationJudge([*range(len(gold))], gold, PROBABILITIES, has_absent=True)()
    assert figures.macro_f1 == pytest.approx(f1_score(gold, guess, labels=np.unique(gold), average="macro"))
    assert figures.macro_f1 > f1_score(gold, guess, average="macro")


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
