"""Captions of plots: their numbers agree with the plotted values, and the captions have no symbols."""

import re

import numpy as np
import pytest
from qacg_models.data import Example
from qacg_models.reporting import captions
from qacg_models.reporting.attention_maps import ExampleMaps


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0, 0.5, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2], "fell from 1.00 to 0.20, and was flat at the end"),
        ([1.0, 0.8, 0.6, 0.4], "fell from 1.00 to 0.40, and was still falling at the end, so longer training may help"),
        ([0.5, 0.7, 0.9], "training loss did not fall: it went from 0.50 to 0.90"),
        ([0.5], "too short for a loss curve"),
        ([], "too short for a loss curve"),
    ],
)
def test_loss_caption_describes_course_and_end(losses, expected):
    assert expected in captions.loss_caption([[step, loss] for step, loss in enumerate(losses)])


def test_lambda_caption_counts_gates():
    output = captions.lambda_caption(np.array([[0.1, -0.2, 0.0], [0.3, -0.4, 0.2]]))
    assert "adds attention in 3 of 6 heads and takes it away in 2;" in output
    assert output.endswith("layer 2, head 2, where it takes attention away.")
    assert captions.lambda_caption(np.array([[0.1, -0.2]]), first=4).startswith(
        "The aspect adds attention in 1 of 2 heads"
    )
    assert "strongest in layer 5, head 2" in captions.lambda_caption(np.array([[0.1, -0.2]]), first=4)
    assert captions.lambda_caption(np.zeros((2, 2))) == "The aspect changes attention in no head."


def test_spread_caption_names_the_largest_difference():
    lambdas = {"food": np.array([[[0.1, 0.1], [0.2, 0.4]]]), "price": np.array([[[0.0, 0.1, 0.2], [-0.1, -0.2, -0.3]]])}
    output = captions.spread_caption(lambdas)
    assert output.endswith("layer 1, head 2: their mean weight ranges from −0.200 for price to +0.300 for food.")
    assert "in 60% of all combinations of" in captions.spread_caption(
        {"price": np.array([[[0.0, 0.1, -0.2, -0.1, -0.3]]])}
    )


def test_words_joins_pieces_and_omits_markers():
    tokens = ["[CLS]", "good", "##ness", "me", "[SEP]"]
    assert captions.words(tokens, np.array([9.0, 1.0, 2.0, 0.5, 9.0])) == [("goodness", 3.0), ("me", 0.5)]


def test_score_captions_name_the_strongest_words():
    tokens = ["[CLS]", "not", "good", "food", "[SEP]"]
    assert captions.sensitivity_caption(tokens, np.array([9, 3, 4, 0.1, 9])) == (
        "A change of “good” or “not” would affect this prediction most."
    )
    # Words below a quarter of the strongest, or a tenth on the opposite side, are not named.
    relevance = np.array([5, -3, 4, 0.5, 5])
    assert captions.relevance_caption(tokens, relevance, "Positive") == (
        "“good” supports Positive most; “not” opposes it most."
    )
    relevance[1] = -0.3
    assert captions.relevance_caption(tokens, relevance, "Positive").endswith("; no word clearly opposes it.")
    assert captions.relevance_caption(tokens, -relevance, "Positive") == (
        "No word clearly supports Positive; “good” opposes it most."
    )
    assert captions.sensitivity_caption(["[CLS]", "[SEP]"], np.ones(2)) == "No word affects this prediction."


def maps(softmax, quasi, tokens=("[CLS]", "good", "food")):
    row = Example("", "good food", "food", "", "food", 1, 1)
    softmax, quasi = (np.array(one, float)[None, None] for one in (softmax, quasi))
    return ExampleMaps(row, list(tokens), np.ones(2) / 2, softmax, quasi, softmax + quasi, np.zeros((1, 1, 3)))


def test_layer_caption_names_attended_words():
    plain = [[0.2, 0.5, 0.3]] * 3
    assert captions.layer_caption(maps(plain, [[0.0, -0.3, 0.4]] * 3), 0) == (
        "In layer 1 most attention goes to “food”; the aspect draws it towards “food” and away from “good”."
    )
    assert captions.layer_caption(maps(plain, np.zeros((3, 3))), 0).endswith("“good”; the aspect changes nothing.")
    assert "more attention is taken away than given" in captions.layer_caption(maps(plain, [[0, -0.9, -0.9]] * 3), 0)
    assert "the text has no words" in captions.layer_caption(maps(plain, plain, ("[CLS]", "[SEP]", "[PAD]")), 0)


def test_captions_have_no_symbols():
    ones = np.ones((2, 2))
    output = [
        captions.loss_caption([[1, 1.0], [2, 0.5]]),
        captions.lambda_caption(ones),
        captions.spread_caption({"a": np.ones((2, 2, 3)), "b": np.zeros((2, 2, 2))}),
        captions.layer_caption(maps([[0.2, 0.5, 0.3]] * 3, ones.sum() * np.ones((3, 3))), 0),
        captions.sensitivity_caption(["a"], np.ones(1)),
        captions.relevance_caption(["a"], np.ones(1), "good"),
    ]
    for sentence in output:
        assert not re.search(r"[λΛ·=]|\b[PG]\b|softmax|sigmoid|logit|lambda|gradient", sentence), sentence
        assert re.match("[A-Z“]", sentence)
        assert sentence.endswith(".")
        assert "\n" not in sentence
