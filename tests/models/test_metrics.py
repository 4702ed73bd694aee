import dataclasses
import json
import math

import numpy as np
import pytest
from qacg_models.data import label_shares, load_data
from qacg_models.metrics import majority_probabilities
from qacg_models.metrics.sentihood import SentiHoodMetrics, sentihood_metrics

ASPECTS = ("general", "price", "safety", "transit location")


def rows_of(*gold):
    """Group names, aspects and gold classes of groups given as four classes each."""
    groups = [name for name, _ in enumerate(gold) for _ in ASPECTS]
    return groups, list(ASPECTS) * len(gold), [label for labels in gold for label in labels]


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


@pytest.mark.parametrize(
    "change,reason",
    [
        (lambda g, a, y, p: (g[:-1], a[:-1], y[:-1], p[:-1]), "no row for the aspect 'transit location'"),
        (lambda g, a, y, p: (g, ["price", *a[1:]], y, p), "got two for group"),
        (lambda g, a, y, p: (g, a, y, p[:, :2]), r"expected shapes \(8,\) and \(8, 3\)"),
        (lambda g, a, y, p: (g, a, [3, *y[1:]], p), "classes from 0 to 2, got 3"),
        (
            lambda g, a, y, p: (g, a, y, np.where([[i == 5] for i in range(8)], np.nan, p)),
            "expected finite numbers .* in row 5",
        ),
        (lambda g, a, y, p: (g, a, y, -p), "expected .* at least 0, got .* in row 0"),
        (lambda g, a, y, p: ([], [], [], p[:0]), "rows: expected at least one"),
    ],
)
def test_sentihood_metrics_bad_input_raises(change, reason):
    groups, aspects, gold = rows_of((0, 1, 2, 0), (1, 0, 0, 2))
    with pytest.raises(ValueError, match=reason):
        sentihood_metrics(*change(groups, aspects, gold, sure(gold)))


def test_majority_row_of_sentihood(sentihood):
    dataset = load_data(sentihood)
    test = dataset.splits["test"]
    probabilities = majority_probabilities(label_shares(dataset.splits["train"], dataset.task), len(test))
    result = sentihood_metrics(
        [row.group for row in test], [row.aspect for row in test], [row.label for row in test], probabilities
    )
    figures = [round(100 * value, 1) for value in list(dataclasses.astuple(result))[:5]]
    assert figures == [47.9, 0.0, 50.0, 66.6, 50.0]
