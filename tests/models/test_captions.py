"""The sentence beside each picture says what is in the picture's numbers, and no symbols."""

import re

import numpy as np
import pytest
from qacg_models.data import Example
from qacg_models.reporting import captions
from qacg_models.reporting.attention_maps import ExampleMaps


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ([1.0, 0.5, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2], "fell from 1.00 to 0.20, and had levelled off at the end"),
        ([1.0, 0.8, 0.6, 0.4], "fell from 1.00 to 0.40, and was still falling at the end, so longer training may help"),
        ([0.5, 0.7, 0.9], "did not learn its training rows: its loss went from 0.50 to 0.90"),
        ([0.5], "too short for a curve"),
        ([], "too short for a curve"),
    ],
)
def test_the_loss_is_told_by_its_course_and_its_end(losses, wanted):
    assert wanted in captions.loss_caption([[step, loss] for step, loss in enumerate(losses)])


def test_the_gates_are_counted_and_the_strongest_is_named():
    told = captions.lambda_caption(np.array([[0.1, -0.2, 0.0], [0.3, -0.4, 0.2]]))
    assert "adds attention in 3 of 6 heads and takes it away in 2;" in told
    assert told.endswith("layer 2, head 2, where it takes away.")
    assert captions.lambda_caption(np.zeros((2, 2))) == "The aspect changes attention in no head."


def test_aspects_are_compared_where_their_gates_differ_most():
    lambdas = {"food": np.array([[[0.1, 0.1], [0.2, 0.4]]]), "price": np.array([[[0.0, 0.1, 0.2], [-0.1, -0.2, -0.3]]])}
    told = captions.spread_caption(lambdas)
    assert told.endswith("layer 1, head 2: there the aspect's weight runs from −0.200 for price to +0.300 for food.")
    assert "in 60% of the cases" in captions.spread_caption({"price": np.array([[[0.0, 0.1, -0.2, -0.1, -0.3]]])})


def test_words_are_whole_and_markers_are_left_out():
    tokens = ["[CLS]", "good", "##ness", "me", "[SEP]"]
    assert captions.words(tokens, np.array([9.0, 1.0, 2.0, 0.5, 9.0])) == [("goodness", 3.0), ("me", 0.5)]


def test_scores_are_told_by_their_strongest_words():
    tokens = ["[CLS]", "not", "good", "food", "[SEP]"]
    assert captions.sensitivity_caption(tokens, np.array([9, 3, 4, 0.1, 9])) == (
        "A change of “good” or “not” would move this verdict most."
    )
    # What has less than a quarter of the first is not named beside it, nor a tenth of it on the other side.
    relevance = np.array([5, -3, 4, 0.5, 5])
    assert captions.relevance_caption(tokens, relevance, "Positive") == (
        "“good” speaks most for Positive, “not” most against it."
    )
    relevance[1] = -0.3
    assert captions.relevance_caption(tokens, relevance, "Positive").endswith(", no word clearly against it.")
    assert captions.relevance_caption(tokens, -relevance, "Positive") == (
        "No word clearly speaks for Positive, “good” most against it."
    )
    assert captions.sensitivity_caption(["[CLS]", "[SEP]"], np.ones(2)) == "No word matters for this verdict."


def maps(softmax, quasi, tokens=("[CLS]", "good", "food")):
    row = Example("", "good food", "food", "", "food", 1, 1)
    softmax, quasi = (np.array(one, float)[None, None] for one in (softmax, quasi))
    return ExampleMaps(row, list(tokens), np.ones(2) / 2, softmax, quasi, softmax + quasi, np.zeros((1, 1, 3)))


def test_maps_are_told_by_where_attention_goes_and_what_the_aspect_does():
    plain = [[0.2, 0.5, 0.3]] * 3
    assert captions.layer_caption(maps(plain, [[0.0, -0.3, 0.4]] * 3), 0) == (
        "In layer 1 most attention goes to “food”; the aspect draws it towards “food” and away from “good”."
    )
    assert captions.layer_caption(maps(plain, np.zeros((3, 3))), 0).endswith("“good”; the aspect changes nothing.")
    assert "more attention is taken away than given" in captions.layer_caption(maps(plain, [[0, -0.9, -0.9]] * 3), 0)
    assert "no word to look at" in captions.layer_caption(maps(plain, plain, ("[CLS]", "[SEP]", "[PAD]")), 0)


def test_no_sentence_has_a_symbol():
    ones = np.ones((2, 2))
    told = [
        captions.loss_caption([[1, 1.0], [2, 0.5]]),
        captions.lambda_caption(ones),
        captions.spread_caption({"a": np.ones((2, 2, 3)), "b": np.zeros((2, 2, 2))}),
        captions.layer_caption(maps([[0.2, 0.5, 0.3]] * 3, ones.sum() * np.ones((3, 3))), 0),
        captions.sensitivity_caption(["a"], np.ones(1)),
        captions.relevance_caption(["a"], np.ones(1), "good"),
    ]
    for sentence in told:
        assert not re.search(r"[λΛ·=]|\b[PG]\b|softmax|sigmoid|logit|lambda|gradient", sentence), sentence
        assert re.match("[A-Z“]", sentence) and sentence.endswith(".") and "\n" not in sentence
